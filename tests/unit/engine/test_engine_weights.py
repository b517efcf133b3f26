"""Tensors out of files: each encoding against the gguf package, the row permutation, and files that lie."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files, tiny_weights

from headrace.core.errors import StartupError
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions, model_digest
from headrace.engine.weights.decode import read_tensor
from headrace.engine.weights.load import Weights
from headrace.modelfiles.files import TensorEntry

SMALL = EngineOptions(dtype="float32", kv_cache_memory_bytes=2**20)


def _stored(path: Path, raw: bytes, encoding: str, shape: tuple[int, ...], **fields: int) -> TensorEntry:
    path.write_bytes(b"offset!!" + raw)
    return TensorEntry("tensor", path, 8, len(raw), encoding, shape, **fields)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_encodings_agree_with_gguf(tmp_path: Path, encoding: str) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[encoding]
    values = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    raw = np.ascontiguousarray(gguf.quants.quantize(values, kind)).tobytes()
    row = len(raw) // 6
    expected = gguf.quants.dequantize(np.frombuffer(raw, dtype=np.uint8).reshape(6, row), kind)
    read = read_tensor(_stored(tmp_path / "t", raw, encoding, (6, 64)))
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, expected.reshape(6, 64))


def test_permuted_rows_are_put_back(tmp_path: Path) -> None:
    heads, dim, width = 3, 8, 2
    values = np.arange(heads * dim * width, dtype=np.float32).reshape(heads * dim, width)
    # llama.cpp's converter: halves of a head interleaved.
    stored = values.reshape(heads, 2, dim // 2, width).swapaxes(1, 2).reshape(values.shape)
    entry = _stored(tmp_path / "t", stored.tobytes(), "F32", values.shape, permuted_heads=heads)
    np.testing.assert_array_equal(read_tensor(entry), values)


@pytest.mark.parametrize(
    "lie",
    [
        {"encoding": "Q9_9"},
        {"nbytes": 10_000},
        {"shape": (7, 64)},
        {"path": Path("/nowhere/at/all")},
    ],
)
def test_a_broken_file_is_a_sentence(tmp_path: Path, lie: dict[str, object]) -> None:
    entry = _stored(tmp_path / "t", bytes(6 * 64 * 4), "F32", (6, 64))
    with pytest.raises(StartupError, match="tensor"):
        read_tensor(replace(entry, **lie))  # type: ignore[arg-type]


def test_missing_misshapen_and_unknown_tensors_are_refused(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    first, *rest = files.tensors
    for tensors, sentence in (
        (tuple(rest), "is missing"),
        ((replace(first, shape=(150, 128)), *rest), "has shape"),
        ((*files.tensors, replace(first, name="model.layers.0.self_attn.q_proj.bias")), "does not use"),
    ):
        with pytest.raises(StartupError, match=sentence):
            build_engine(replace(files, tensors=tensors), VOCABULARY, SMALL)


def test_weights_come_in_the_wanted_dtype(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    taken = Weights(files, torch.bfloat16).matrix(name, (CONFIG.hidden_size, CONFIG.intermediate_size))
    assert torch.equal(taken, torch.from_numpy(tiny_weights()[name]).bfloat16())


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    with pytest.raises(StartupError, match="mamba"):
        build_engine(replace(files, config=replace(files.config, architecture="mamba")), VOCABULARY, SMALL)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kv_cache_memory_bytes": 2**50}, "are available"),
        ({"kv_cache_memory_bytes": 1000}, "holds 0 blocks"),
        ({"kv_cache_memory_bytes": 2**16, "max_model_len": 500}, "fewer than the 500"),
        ({"max_model_len": 513}, "own context of 512"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_arithmetic(
    tmp_path: Path, options: dict[str, int], sentence: str
) -> None:
    with pytest.raises(StartupError, match=sentence):
        build_engine(tiny_files(tmp_path), VOCABULARY, EngineOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"dtype": "int3"}, {"max_num_seqs": 0}, {"max_num_seqs": 64, "max_num_batched_tokens": 32}, {"block_size": 24}],
)
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(StartupError):
        EngineOptions(**options)  # type: ignore[arg-type]


def test_context_follows_the_pool_unless_it_is_asked_for(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    small = build_engine(files, VOCABULARY, replace(SMALL, kv_cache_memory_bytes=2**16))
    assert small.info.max_model_len == small.info.num_blocks * 16 < CONFIG.max_position
    assert build_engine(files, VOCABULARY, replace(SMALL, max_model_len=100)).info.max_model_len == 100


def test_workers_of_another_kv_dtype_do_not_match(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    digests = {model_digest(files, dtype) for dtype in ("float32", "bfloat16", "float16")}
    digests |= {model_digest(replace(files, digest=b"another"), "float32"), model_digest(files, "float32", "other")}
    assert len(digests) == 5
