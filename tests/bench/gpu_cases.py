"""What is measured of each Triton kernel: a launch, the bytes it must move and the operations it must do.

Shapes follow from Sizes, so that the same cases can be launched small, under the interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headrace_kernels.gate import gate
from headrace_kernels.kv_write import kv_write
from headrace_kernels.mixed_attention import DECODE_ROWS, PREFILL_ROWS, mixed_attention
from headrace_kernels.page_pack import pack_pages, unpack_pages
from headrace_kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_add
from headrace_kernels.rope import rope

_BLOCK = 16
_DTYPE = torch.bfloat16
_BYTES = _DTYPE.itemsize


@dataclass(frozen=True, slots=True)
class Sizes:
    """rows: of the kernels without attention. spans: (start, count) of each sequence of a batch for attention."""

    rows: tuple[int, ...]
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    dim: int
    layers: int
    unit_blocks: int
    batches: tuple[tuple[tuple[int, int], ...], ...]


# Those of Llama 3 8B.
FULL = Sizes(
    rows=(1, 32, 2048),
    hidden=4096,
    inner=14_336,
    heads=32,
    kv_heads=8,
    dim=128,
    layers=32,
    unit_blocks=4,
    batches=(
        ((1023, 1),),
        ((8191, 1),),
        ((1023, 1),) * 32,
        ((8191, 1),) * 32,
        ((0, 2048),),
        ((7680, 512),),
        ((*((2047, 1),) * 31, (1536, 512))),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """bytes: read and written at least. flops: of matrix products, 0 where there is none."""

    kernel: str
    shape: str
    launch: Callable[[], None]
    bytes: int
    flops: int = 0


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Made one after the other, so that the tensors of one are gone before the next."""
    for rows in sizes.rows:
        yield from _row_cases(sizes, rows, device)
    yield from _page_cases(sizes, device)
    for spans in sizes.batches:
        yield _attention(sizes, spans, device)


def _values(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, dtype=_DTYPE, device=device)


def _row_cases(sizes: Sizes, rows: int, device: torch.device) -> Iterator[Case]:
    hidden, other, out = (_values(rows, sizes.hidden, device=device) for _ in range(3))
    weight, shape, size = _values(sizes.hidden, device=device), f"{rows} x {sizes.hidden}", hidden.numel() * _BYTES
    yield Case("rms_norm", shape, partial(rms_norm, hidden, weight, 1e-5, out=out), 2 * size)
    launch = partial(add_rms_norm, hidden, other, weight, 1e-5, total=hidden.clone(), out=out)
    yield Case("add_rms_norm", shape, launch, 4 * size)
    yield Case("rms_norm_add", shape, partial(rms_norm_add, hidden, other, weight, 1e-5, out=out), 3 * size)
    gate_up, inner = _values(rows, 2 * sizes.inner, device=device), _values(rows, sizes.inner, device=device)
    for activation in ("silu", "gelu_tanh"):
        launch = partial(gate, gate_up, activation, out=inner)
        yield Case(f"gate {activation}", f"{rows} x {sizes.inner}", launch, 3 * inner.numel() * _BYTES)
    states, angles = (_values(rows, heads, sizes.dim, device=device) for heads in (sizes.heads + sizes.kv_heads, 2))
    turn = partial(rope, states, angles[:, 0], angles[:, 1], out=states.clone())
    yield Case("rope", f"{rows} x {states.shape[1]} x {sizes.dim}", turn, 2 * states.numel() * _BYTES)
    pages = _values(-(-rows // _BLOCK), sizes.kv_heads, 2, _BLOCK, sizes.dim, device=device)
    keys, values = (_values(rows, sizes.kv_heads, sizes.dim, device=device) for _ in range(2))
    write = partial(kv_write, keys, values, pages, torch.arange(rows, device=device))
    yield Case("kv_write", f"{rows} x {sizes.kv_heads} x {sizes.dim}", write, 4 * keys.numel() * _BYTES)


def _page_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    page = (sizes.kv_heads, 2, _BLOCK, sizes.dim)
    pool = _values(sizes.layers, 4 * sizes.unit_blocks, *page, device=device)
    unit = _values(sizes.layers, sizes.unit_blocks, *page, device=device)
    blocks = torch.arange(sizes.unit_blocks, device=device) * 3
    shape, size = f"{sizes.layers} layers x {sizes.unit_blocks} blocks", 2 * unit.numel() * _BYTES
    yield Case("pack_pages", shape, partial(pack_pages, pool, blocks, unit), size)
    yield Case("unpack_pages", shape, partial(unpack_pages, unit, pool, blocks), size)


def _attention(sizes: Sizes, spans: tuple[tuple[int, int], ...], device: torch.device) -> Case:
    """Sequences of different pages; a query's products are with the keys and the values that it sees."""
    width = max(-(-(start + count) // _BLOCK) for start, count in spans)
    pages = _values(len(spans) * width, sizes.kv_heads, 2, _BLOCK, sizes.dim, device=device)
    table = torch.randperm(len(pages), device=device).view(len(spans), width).int()
    counts = torch.tensor([0, *(count for _, count in spans)], device=device)
    positions = torch.cat([torch.arange(start, start + count, device=device) for start, count in spans]).int()
    queries = _values(len(positions), sizes.heads, sizes.dim, device=device)
    seen = sum(int(start + index + 1) for start, count in spans for index in range(count))
    kept = sum(start + count for start, count in spans) * 2 * sizes.kv_heads * sizes.dim
    launch = partial(
        mixed_attention,
        *(queries, pages, table, counts.cumsum(0).int(), positions),
        scale=sizes.dim**-0.5,
        out=torch.empty_like(queries),
        tile_rows=PREFILL_ROWS if len(queries) > len(spans) else DECODE_ROWS,
    )
    flops = 4 * sizes.heads * sizes.dim * seen
    return Case("mixed_attention", _spelled(spans), launch, (kept + 2 * queries.numel()) * _BYTES, flops)


def _spelled(spans: tuple[tuple[int, int], ...]) -> str:
    kinds = {span: spans.count(span) for span in spans}
    return " + ".join(f"{times} x {count} at {start}" for (start, count), times in kinds.items())
