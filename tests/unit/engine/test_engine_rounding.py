"""Rounding to bfloat16: torch's bits, over every kind of float32 there is."""

import numpy as np
import torch

from headrace.engine.weights.rounding import rounded

EDGES = [0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0x80000000, 1, 0x3F808000, 0x3F818000]


def test_it_rounds_as_torch_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = np.concatenate((bits, np.array(EDGES, dtype=np.uint32))).view(np.float32)
    mine, theirs = rounded(values, "bfloat16"), torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(np.signbit(mine)[~np.isnan(mine)], np.signbit(theirs)[~np.isnan(theirs)])


def test_float32_stays() -> None:
    values = np.array([1.1, -0.0, 3e38], dtype=np.float32)
    assert rounded(values, "float32") is values
