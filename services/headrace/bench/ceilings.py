"""What this machine can do at best: how fast it reads and copies memory, and multiplies matrices.

Owns the measurements, on as many threads as the engine gets. Of each the best of a few tries counts: whatever else runs
only takes away from it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_kernels import native
from headrace_kernels.native import Format, Linear, Program, Step
from headrace_kernels.packed_tensor import packed_tensor

# Far beyond any cache that two cores are given.
_READ_BYTES = 256 * 2**20
# A product large enough for any kernel, small enough for one that is slow.
_ROWS, _COLUMNS, _INNER = 384, 1024, 1024
_TRIES, _ENOUGH_S = 7, 0.4
_INTEGER = "native int"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """read, copy: bytes a second; what is copied counts twice. products: operations a second of a product of
    matrices, by who computed it."""

    read: float
    copy: float
    products: Mapping[str, float]

    @property
    def bandwidth(self) -> float:
        return max(self.read, self.copy)

    def product_rate(self, integer: bool) -> float:
        """The best there is in floats; `integer`: or in integers."""
        return max(rate for name, rate in self.products.items() if integer or not name.startswith(_INTEGER))


def higher(one: Ceilings, other: Ceilings) -> Ceilings:
    """Of two measurements of one machine the better ones."""
    products = {name: max(rate, other.products[name]) for name, rate in one.products.items()}
    return Ceilings(max(one.read, other.read), max(one.copy, other.copy), products)


def measure_ceilings(threads: int, dtype: torch.dtype) -> Ceilings:
    """Takes two seconds or three. dtype: of the weights; products in float32 are measured beside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        read, copy = _bandwidths(threads)
        return Ceilings(read, copy, {**_torch_products(dtype), **_native_products(threads)})
    finally:
        torch.set_num_threads(before)


def _bandwidths(threads: int) -> tuple[float, float]:
    source = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    target = torch.empty_like(source)
    copy = 2 * _READ_BYTES / _best(lambda: target.copy_(source))
    reading = (lambda: native.read(source.numpy(), threads)) if native.instruction_set() else source.sum
    return _READ_BYTES / _best(reading), copy


def _torch_products(dtype: torch.dtype) -> dict[str, float]:
    kinds = dict.fromkeys((torch.float32, dtype))
    return {f"torch {str(kind).removeprefix('torch.')}": _rate(_torch_product(kind)) for kind in kinds}


def _torch_product(kind: torch.dtype) -> Callable[[], object]:
    rows, weights = _rows().to(kind), _weights().to(kind)
    return lambda: rows @ weights.T


def _native_products(threads: int) -> dict[str, float]:
    if native.instruction_set() is None:
        return {}
    return {f"native {kind.name.lower()}": _rate(_native_product(kind, threads)) for kind in Format}


def _native_product(kind: Format, threads: int) -> Callable[[], None]:
    rows, out, weights = _rows(), torch.empty(_ROWS, _COLUMNS), packed_tensor(_weights(), kind)
    room = native.scratch(kind, _ROWS, _INNER)
    scratch = None if room is None else room.ctypes.data
    product = Linear(*(rows.data_ptr(), weights.address, None, out.data_ptr(), scratch), *(_COLUMNS, _INNER, kind, 0))
    program = Program((product,), (rows, out, weights, room))
    return lambda: program.run(Step(rows=_ROWS), threads)


def _rows() -> Tensor:
    return torch.randn(_ROWS, _INNER, generator=torch.Generator().manual_seed(1))


def _weights() -> Tensor:
    return torch.randn(_COLUMNS, _INNER, generator=torch.Generator().manual_seed(2))


def _rate(product: Callable[[], object]) -> float:
    return 2 * _ROWS * _COLUMNS * _INNER / _best(product)


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few tries; a second try at least, the first pays for fresh memory."""
    took: list[float] = []
    while len(took) < 2 or (len(took) < _TRIES and sum(took) < _ENOUGH_S):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took[1:])
