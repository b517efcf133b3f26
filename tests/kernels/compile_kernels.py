"""Compiles every kernel, launched as the engine launches it, to machine code for a GPU that need not be here.

Usage: compile_kernels.py CAPABILITY, as in 90 for compute capability 9.0. Prints one kernel name a line. It replaces
Triton's driver, so it must be a process of its own.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from headrace_kernels.kv_write import kv_write
from headrace_kernels.page_pack import pack_pages, unpack_pages
from headrace_kernels.paged_decode import paged_decode


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
        print(kernel.__name__)

    return compile_and_report


def launch_all(dtype: torch.dtype) -> None:
    queries, pages = torch.zeros(2, 8, 64, dtype=dtype), torch.zeros(4, 2, 2, 16, 64, dtype=dtype)
    table, lengths = torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    paged_decode(queries, pages, table, lengths, scale=0.125, out=queries.clone())
    kv_write(queries[:, :2], queries[:, 2:4], pages, torch.tensor([0, 1]))
    pool, unit, blocks = pages[None], pages[None, :2].clone(), torch.tensor([0, 1])
    pack_pages(pool, blocks, unit)
    unpack_pages(unit, pool, blocks)


if __name__ == "__main__":
    driver.set_active(AbsentDevice(int(sys.argv[1])))
    JITFunction.__getitem__ = compile_instead_of_launching
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        launch_all(dtype)
