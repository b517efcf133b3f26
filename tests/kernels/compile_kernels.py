"""Compiles every kernel, launched as the engine launches it, to machine code for a GPU that need not be here.

Usage: compile_kernels.py CAPABILITY, as in 90 for compute capability 9.0. Prints a line a launch: the kernel's name and
the bytes of shared memory that a program takes. It replaces Triton's driver, so it must be a process of its own.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from headrace_kernels.gate import gate
from headrace_kernels.kv_write import kv_write
from headrace_kernels.mixed_attention import DECODE_ROWS, PREFILL_ROWS, mixed_attention
from headrace_kernels.page_pack import pack_pages, unpack_pages
from headrace_kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_add
from headrace_kernels.rope import rope


class AbsentDevice:
    """What Triton asks of a driver before it launches: which GPU to compile for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_instead_of_launching(kernel: Any, grid: Any) -> Callable[..., None]:
    def compile_and_report(*args: Any, **kwargs: Any) -> None:
        compiled = kernel.warmup(*args, grid=grid, **kwargs)
        assert compiled.asm["cubin"]
        print(kernel.__name__, compiled.metadata.shared)

    return compile_and_report


def attend(dtype: torch.dtype, dim: int, tile_rows: int, *, parts: bool, **options: float) -> None:
    """window, softcap: as of mixed_attention."""
    queries, pages = torch.zeros(2, 8, dim, dtype=dtype), torch.zeros(40, 2, 2, 16, dim, dtype=dtype)
    table, first_row, positions = torch.zeros(2, 20).long(), torch.tensor([0, 1, 2]), torch.tensor([5, 5])
    given: tuple[Tensor, ...] = (queries, pages, table, first_row, positions)
    sizes = {"tile_rows": tile_rows, "scratch_bytes": 1 << 30 if parts else 0}
    mixed_attention(*given, scale=0.125, out=queries.clone(), **sizes, **options)


def attend_all() -> None:
    """Both passes, and the widest heads of 32 bits, for which shared memory is scarcest."""
    attend(torch.bfloat16, 64, DECODE_ROWS, parts=True)
    attend(torch.bfloat16, 128, PREFILL_ROWS, parts=False)
    attend(torch.bfloat16, 256, PREFILL_ROWS, parts=True, window=512, softcap=50.0)
    attend(torch.float16, 96, DECODE_ROWS, parts=False, window=100)
    attend(torch.float32, 256, PREFILL_ROWS, parts=False)


def launch_small(dtype: torch.dtype) -> None:
    states, pages = torch.zeros(2, 8, 64, dtype=dtype), torch.zeros(4, 2, 2, 16, 64, dtype=dtype)
    kv_write(states[:, :2], states[:, 2:4], pages, torch.tensor([0, 1]))
    rope(states, states[:, 0, :32], states[:, 1, :32], out=states)
    rows, weight = states.flatten(1), torch.zeros(512, dtype=dtype)
    rms_norm(rows, weight, 1e-5, out=rows)
    add_rms_norm(rows, rows, weight.float(), 1e-5, total=rows, out=rows)
    rms_norm_add(rows, rows, weight, 1e-5, out=rows)
    for activation in ("silu", "gelu_tanh"):
        gate(rows, activation, out=rows[:, :256])
    pool, unit, blocks = pages[None], pages[None, :2].clone(), torch.tensor([0, 1])
    pack_pages(pool, blocks, unit)
    unpack_pages(unit, pool, blocks)


if __name__ == "__main__":
    driver.set_active(AbsentDevice(int(sys.argv[1])))
    JITFunction.__getitem__ = compile_instead_of_launching
    attend_all()
    for dtype in (torch.float32, torch.bfloat16):
        launch_small(dtype)
