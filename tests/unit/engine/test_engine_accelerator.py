"""Where a replica's tensors lie: what is refused without a GPU, and that a model is put there whole."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files
from torch import Tensor

from headrace.core.errors import StartupError
from headrace.engine.accelerator import Accelerator, pick_accelerator
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace.engine.torch_build import load_model
from headrace.modelfiles.files import ModelConfig

GEMMA = replace(CONFIG, architecture="gemma3_text", activation="gelu_tanh", local_rope_theta=1000.0)


def test_without_a_gpu_cuda_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StartupError, match=r"no CUDA device .* Leave out --device"):
        build_engine(tiny_files(tmp_path), VOCABULARY, EngineOptions(device="cuda"))


def test_the_cpu_is_no_accelerator() -> None:
    assert pick_accelerator(EngineOptions()) is None


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_are_those_asked_for(tmp_path: Path, threads: int) -> None:
    before, on_cpu = torch.get_num_threads(), Accelerator(torch.device("cpu"), "torch", 2**30, None)
    options = EngineOptions(dtype="float32", device="cuda", kv_cache_memory_bytes=2**20, threads=threads)
    try:
        build_engine(tiny_files(tmp_path), VOCABULARY, options, accelerator=on_cpu)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("config", [CONFIG, GEMMA], ids=["llama", "gemma"])
def test_a_model_is_loaded_whole_to_its_device(config: ModelConfig, tmp_path: Path) -> None:
    held = list(_tensors(load_model(tiny_files(tmp_path, config), torch.float32, 64, device=torch.device("meta"))))
    # Of two layers: matrices and norms, and the rotary tables, which no file holds.
    assert len(held) > 2 * 6
    assert all(tensor.is_meta for tensor in held)


def _tensors(thing: object) -> Iterator[Tensor]:
    """Every tensor, however deep in tuples and dataclasses."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, tuple):
        for one in thing:
            yield from _tensors(one)
    elif is_dataclass(thing):
        for one in fields(thing):
            yield from _tensors(getattr(thing, one.name))
