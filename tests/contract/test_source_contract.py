"""The Source border: torch's tensors and what the native kernels read are the same numbers, and the same errors."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fixtures.tiny_model import CONFIG, tiny_files, tiny_weights

from headrace.core.errors import StartupError
from headrace.engine.native.stored_weights import StoredWeights
from headrace.engine.weights.decode import read_tensor
from headrace.engine.weights.load import DTYPES, Weights
from headrace.engine.weights.rounding import rounded
from headrace.engine.weights.source import Source
from headrace.engine.weights.stored import StoredMatrix

Floats = npt.NDArray[np.float32]
DTYPE = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
EACH = pytest.mark.parametrize("kind", ["torch", "native"])
HIDDEN, INNER = CONFIG.hidden_size, CONFIG.intermediate_size
LAYER = "model.layers.0."
GATE, UP, DOWN = (f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
NORM = f"{LAYER}input_layernorm.weight"


def source(kind: str, directory: Path, dtype: str) -> Source[Any, Any]:
    files = tiny_files(directory)
    return Weights(files, DTYPES[dtype]) if kind == "torch" else StoredWeights(files, dtype)


def values(held: torch.Tensor | Floats | StoredMatrix, dtype: str) -> Floats:
    """What any of them holds."""
    if isinstance(held, torch.Tensor):
        whole: Floats = held.float().numpy()
        return whole
    if isinstance(held, StoredMatrix):
        return rounded(np.concatenate([read_tensor(entry) for entry in held.entries]), dtype)
    return held


@DTYPE
@EACH
def test_what_is_taken_is_what_the_file_says(kind: str, dtype: str, tmp_path: Path) -> None:
    taken, written = source(kind, tmp_path, dtype), tiny_weights()
    down = taken.matrix(DOWN, (HIDDEN, INNER), shard=1)
    both = taken.stacked((GATE, UP), ((INNER, HIDDEN), (INNER, HIDDEN)))
    norm = taken.vector(NORM, HIDDEN)
    expected = {name: rounded(written[name], dtype) for name in (DOWN, GATE, UP, NORM)}
    np.testing.assert_array_equal(values(down, dtype), expected[DOWN])
    np.testing.assert_array_equal(values(both, dtype), np.concatenate((expected[GATE], expected[UP])))
    np.testing.assert_array_equal(values(norm, dtype), expected[NORM])
    np.testing.assert_array_equal(values(taken.one_plus(norm), dtype), np.float32(1) + expected[NORM])
    heads = taken.per_head([(norm, 2), (taken.one_plus(norm) - 1.0, 1)])
    assert values(heads, dtype).shape == (3, HIDDEN)
    np.testing.assert_array_equal(values(heads, dtype)[1], expected[NORM])
    assert taken.own_rows(both) is both
    assert taken.ranks == 1


@DTYPE
@EACH
def test_vectors_are_joined(kind: str, dtype: str, tmp_path: Path) -> None:
    taken, written = source(kind, tmp_path, dtype), tiny_weights()
    names = [NORM, f"{LAYER}post_attention_layernorm.weight", "model.norm.weight"]
    expected = rounded(np.concatenate([written[name] for name in names]), dtype)
    np.testing.assert_array_equal(values(taken.joined(names, [HIDDEN] * 3), dtype), expected)


@DTYPE
@EACH
def test_a_fused_matrix_is_its_sections(kind: str, dtype: str, tmp_path: Path) -> None:
    taken, written = source(kind, tmp_path, dtype), tiny_weights()
    fused = taken.fused(GATE, (INNER - 3, 3), HIDDEN)
    np.testing.assert_array_equal(values(fused, dtype), rounded(written[GATE], dtype))


@EACH
def test_what_is_not_there_or_left_over_is_said(kind: str, tmp_path: Path) -> None:
    taken = source(kind, tmp_path, "float32")
    with pytest.raises(StartupError, match=r"nothing.weight of model .* is missing"):
        taken.vector("nothing.weight", 3)
    with pytest.raises(StartupError, match=r"has shape .* instead of \(3, 5\)"):
        taken.matrix(DOWN, (3, 5))
    everything = frozenset(tiny_weights())
    taken.finish(everything)
    with pytest.raises(StartupError, match=f"1 tensors that its architecture does not use, such as {NORM}"):
        taken.finish(everything - {NORM})
