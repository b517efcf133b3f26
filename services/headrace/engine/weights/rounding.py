"""Rounding of float32 to what a model's dtype can hold, to nearest, ties to even."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def rounded(values: Floats, dtype: str) -> Floats:
    """As float32 again. dtype: "float32" or "bfloat16"."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    # A NaN's bits would carry over into the sign.
    whole: Floats = np.where(np.isnan(values), values, upper.view(np.float32))
    return whole
