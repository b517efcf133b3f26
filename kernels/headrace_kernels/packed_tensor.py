"""A torch tensor as a matrix of the native kernels."""

import numpy as np
import torch
from torch import Tensor

from headrace_kernels.native import Format, Packed, Stored

_STORED = {torch.float32: Stored.F32, torch.float16: Stored.F16, torch.bfloat16: Stored.BF16}


def packed_tensor(weights: Tensor, format: Format, threads: int = 1) -> Packed:
    """weights: [columns, inner]. Rounds where the format asks for it. threads: that pack."""
    rows = weights.contiguous()
    step = rows.shape[1] * rows.element_size()
    stored = np.full(len(rows), _STORED[rows.dtype], dtype=np.int32)
    addresses = np.arange(len(rows), dtype=np.int64) * step + rows.data_ptr()
    return Packed.of_rows(addresses, stored, rows.shape[1], format, threads)
