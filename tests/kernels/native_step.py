"""Runs single operations of the native kernels over tensors."""

import torch
from torch import Tensor

from headrace_kernels.native import Operation, Program, Step


def run(
    *operations: Operation,
    rows: int,
    threads: int = 2,
    ids: list[int] | None = None,
    starts: list[int] | None = None,
    counts: list[int] | None = None,
    slots: list[int] | None = None,
    table: Tensor | None = None,
    head_rows: list[int] | None = None,
    logits: Tensor | None = None,
) -> None:
    """starts, counts: position of each sequence's first row, and its rows; table: int32 [sequence, blocks]."""
    starts, counts = starts or [0], counts or [rows]
    positions = [start + index for start, count in zip(starts, counts, strict=True) for index in range(count)]
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    small = [
        torch.tensor(each, dtype=torch.int32)
        for each in (ids or [0] * rows, positions, firsts, counts, head_rows or [])
    ]
    wide = torch.tensor(slots or [-1] * rows, dtype=torch.int64)
    id_tensor, position_tensor, first, count, heads = small
    step = Step(
        ids=id_tensor.data_ptr(),
        positions=position_tensor.data_ptr(),
        slots=wide.data_ptr(),
        first_row=first.data_ptr(),
        seq_rows=count.data_ptr(),
        table=None if table is None else table.data_ptr(),
        head_rows=heads.data_ptr(),
        logits=None if logits is None else logits.data_ptr(),
        rows=rows,
        sequences=len(counts),
        table_stride=0 if table is None else table.shape[1],
        head_count=len(heads),
    )
    Program(operations, ()).run(step, threads)
