"""What a worker could never do is said before any process starts, with the flag that changes it."""

from pathlib import Path

import pytest
from fixtures.random_gguf import write_random

from headrace.bootstrap import feasible
from headrace.bootstrap.feasible import require_feasible, require_gpu
from headrace.config import UpConfig
from headrace.core.errors import StartupError
from headrace.modelfiles.resolve import resolve


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_model_len": 10**6}, r"max_model_len 1000000 .* own context .* --max-model-len"),
        ({"engine": "fake", "max_model_len": 10**6}, r"max_model_len 1000000 .* own context .* --max-model-len"),
        ({"quantization": "gguf", "dtype": "float32"}, r"no tensors .* --quantization"),
        ({"quantization": "int8", "kernels": "torch"}, r"native kernels, .* --quantization"),
        ({"cpu_isa": "avx2", "dtype": "float16"}, r"native kernels.* --cpu-isa"),
        ({"link": "nccl", "data_port_range": "9200-9299"}, r"nccl .* --data-port-range"),
        ({"data_port_range": "9300-9200"}, r"no range .* --data-port-range"),
        ({"tensor_parallel_size": 4}, r"2 key-value heads .* 4 tensor-parallel ranks.* --tensor-parallel-size"),
        ({"max_num_batched_tokens": 32}, r"max_num_batched_tokens \(32\) .* --max-num-seqs"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_cannot_be_is_said(changes: dict[str, object], sentence: str, tmp_path: Path) -> None:
    files = resolve(str(write_random(tmp_path / "random.gguf")), tmp_path)
    config = UpConfig(**{"kv_cache_memory_bytes": 1 << 24, **changes})
    with pytest.raises(StartupError, match=sentence):
        require_feasible(config, files)


def test_what_can_be_is_not_refused(tmp_path: Path) -> None:
    files = resolve(str(write_random(tmp_path / "random.gguf")), tmp_path)
    for changes in (
        {},
        {"engine": "fake", "max_model_len": 64},
        {"engine": "fake", "tensor_parallel_size": 4},
        {"tensor_parallel_size": 2},
        {"data_port_range": "9200-9299", "link": "tcp"},
    ):
        require_feasible(UpConfig(**{"kv_cache_memory_bytes": 1 << 24, **changes}), files)


class _Driver:
    """NVIDIA's library as far as it is asked."""

    def __init__(self, status: int, gpus: int) -> None:
        self._status, self._gpus = status, gpus

    def cuInit(self, flags: int) -> int:
        return self._status

    def cuDeviceGetCount(self, count: object) -> int:
        count._obj.value = self._gpus  # type: ignore[attr-defined]
        return 0


@pytest.mark.parametrize(("status", "gpus", "sentence"), [(100, 0, "has none"), (0, 0, "has none"), (0, 2, "")])
def test_a_machine_without_a_gpu_is_told(
    status: int, gpus: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feasible.ctypes, "CDLL", lambda name: _Driver(status, gpus))
    if sentence:
        with pytest.raises(StartupError, match=f"--device cuda .* {sentence}.* Leave out --device"):
            require_gpu()
    else:
        require_gpu()


def test_a_machine_without_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(feasible.ctypes, "CDLL", missing)
    with pytest.raises(StartupError, match="driver, and it is not installed"):
        require_gpu()


@pytest.mark.parametrize("content", [b"# Not a model\n", b"", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_what_is_no_model_leaves_nothing_behind(content: bytes, tmp_path: Path) -> None:
    place = tmp_path / "here"
    place.mkdir()
    readme = place / "README.md"
    readme.write_bytes(content)
    with pytest.raises(StartupError):
        resolve(str(readme), tmp_path / "cache")
    assert list(place.iterdir()) == [readme]
    assert not (tmp_path / "cache").exists()
