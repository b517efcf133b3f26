"""Native attention and its way to the pages against the reference: boundaries, groups, windows, poison."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from kernels.instruction_sets import MAY_BUILD, instruction_set  # noqa: F401 - a fixture
from kernels.native_step import run
from torch import Tensor

from headrace_kernels import reference
from headrace_kernels.native import Attend, Format, Rope

pytestmark = MAY_BUILD

FORMATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}
BLOCKS = 240


@dataclass(frozen=True)
class Case:
    """Sequences of (first position, rows)."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    block_tokens: int = 16
    window: int = 0
    softcap: float = 0.0
    dtype: torch.dtype = torch.float32


CASES = {
    "one token": Case(((0, 1),)),
    "decode at page boundaries": Case(((14, 1), (15, 1), (16, 1), (31, 1), (32, 1))),
    "decode at tile boundaries": Case(((62, 1), (63, 1), (64, 1), (65, 1), (127, 1), (128, 1))),
    "prompt": Case(((0, 77),)),
    "chunk over a tile": Case(((60, 9),)),
    "chunk of many pieces": Case(((5, 130),)),
    "mixed": Case(((0, 33), (100, 1), (40, 30), (7, 1))),
    "bfloat16": Case(((0, 33), (100, 1), (40, 30)), dtype=torch.bfloat16),
    "pages of 32": Case(((0, 70), (31, 1), (32, 1)), block_tokens=32),
    "window": Case(((0, 90), (100, 1), (64, 3)), window=20),
    "window of one": Case(((0, 40), (66, 1)), window=1),
    "window of a tile": Case(((0, 150), (190, 1)), window=64),
    "contexts of several splits": Case(((254, 1), (255, 1), (256, 1), (300, 1), (250, 9)), dtype=torch.bfloat16),
    "window over splits": Case(((300, 1), (255, 1), (256, 2)), window=100),
    "group of three over splits": Case(((300, 1), (200, 99)), heads=3, kv_heads=1, dim=64, dtype=torch.bfloat16),
    "odd vectors in bfloat16": Case(((20, 1), (30, 9)), dim=80, dtype=torch.bfloat16),
    "softcap": Case(((0, 40), (66, 1)), softcap=1.5),
    "window and softcap": Case(((10, 100),), window=33, softcap=2.0),
    "large head": Case(((0, 20), (66, 1)), dim=256),
    "head of 80": Case(((0, 20), (66, 1)), dim=80),
    "the widest group": Case(((0, 5), (66, 1)), heads=64, kv_heads=1),
    "many splits": Case(((900, 1), (700, 90)), dtype=torch.bfloat16),
    "a window that leaves out splits": Case(((600, 1), (767, 1), (768, 1)), window=100),
    "a sequence without rows": Case(((0, 3), (5, 0), (9, 1))),
    "a last sequence without rows": Case(((0, 3), (9, 1), (5, 0))),
    **{f"group of {group}": Case(((0, 21), (66, 1)), heads=2 * group) for group in range(1, 9)},
}


@dataclass
class Paged:
    """A case's numbers. Pages beyond what a sequence has written are NaN."""

    case: Case
    queries: Tensor
    pages: Tensor
    table: Tensor

    @staticmethod
    def of(case: Case) -> "Paged":
        torch.manual_seed(len(case.sequences) + case.dim)
        pages = torch.full((BLOCKS, case.kv_heads, 2, case.block_tokens, case.dim), math.nan, dtype=case.dtype)
        free = torch.randperm(BLOCKS).tolist()
        table = torch.full((len(case.sequences), 60), -1, dtype=torch.int32)
        for row, (start, count) in enumerate(case.sequences):
            for token in range(start + count):
                if token % case.block_tokens == 0:
                    table[row, token // case.block_tokens] = free.pop()
                block = int(table[row, token // case.block_tokens])
                pages[block, :, :, token % case.block_tokens] = torch.randn(case.kv_heads, 2, case.dim)
        rows = sum(count for _, count in case.sequences)
        return Paged(case, torch.randn(rows, case.heads, case.dim), pages, table)

    def native(self, threads: int = 2, only: int | None = None) -> Tensor:
        """only: this sequence alone."""
        case, sequences = self.case, list(enumerate(self.case.sequences))
        chosen = [sequences[only]] if only is not None else sequences
        rows = sum(count for _, (_, count) in chosen)
        first = sum(count for _, count in case.sequences[: only or 0])
        queries = self.queries[first : first + rows].contiguous()
        out = torch.full_like(queries, math.nan)
        attend = Attend(
            *(queries.data_ptr(), self.pages.data_ptr(), out.data_ptr()),
            *(case.heads, case.kv_heads, case.dim, case.block_tokens, case.window),
            *(case.dim**-0.5, case.softcap, FORMATS[case.dtype]),
        )
        run(
            attend,
            rows=rows,
            threads=threads,
            starts=[start for _, (start, _) in chosen],
            counts=[count for _, (_, count) in chosen],
            table=self.table[[index for index, _ in chosen]].contiguous(),
        )
        return out

    def reference(self) -> Tensor:
        counts = [count for _, count in self.case.sequences]
        pieces = []
        for queries, (start, _), blocks in zip(
            self.queries.split(counts), self.case.sequences, self.table, strict=True
        ):
            numbers = {"scale": self.case.dim**-0.5, "window": self.case.window, "softcap": self.case.softcap}
            pieces.append(reference.paged_attention(queries, self.pages, blocks, start, **numbers))  # type: ignore[arg-type]
        return torch.cat(pieces)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_equals_the_reference(case: Case) -> None:
    paged = Paged.of(case)
    torch.testing.assert_close(paged.native(), paged.reference(), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_sequence_is_the_same_bits_whatever_it_is_computed_with(case: Case) -> None:
    paged = Paged.of(case)
    together = paged.native().split([count for _, count in case.sequences])
    for threads in (1, 2, 3):
        alone = [paged.native(threads, only=index) for index in range(len(case.sequences))]
        assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("window", [0, 270])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_a_row_is_the_same_bits_alone_and_within_a_chunk(dtype: torch.dtype, softcap: float, window: int) -> None:
    """Alone it reads pages as they stand and its context is cut; in the chunk its tile is laid out as matrices."""
    chunk = Paged.of(Case(((250, 60),), heads=3, kv_heads=1, dim=48, window=window, softcap=softcap, dtype=dtype))
    together = chunk.native()
    for row in (0, 5, 6, 20, 59):
        case = replace(chunk.case, sequences=((250 + row, 1),))
        alone = Paged(case, chunk.queries[row : row + 1], chunk.pages, chunk.table)
        assert torch.equal(alone.native()[0], together[row])


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("dim", "rotary"), [(16, 16), (64, 64), (32, 24)])
@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_turned_and_written(dtype: torch.dtype, dim: int, rotary: int, normed: bool) -> None:
    torch.manual_seed(dim)
    heads, kv_heads, rows, slots = 4, 2, 5, [3, 16, 31, -1, 40]
    states = torch.randn(rows, heads + 2 * kv_heads, dim)
    weights = torch.rand(heads + kv_heads, dim) + 0.5
    cosines, sines = torch.randn(20, rotary), torch.randn(20, rotary)
    pages = torch.full((3, kv_heads, 2, 16, dim), 7.0, dtype=dtype)
    queries = torch.full((rows, heads, dim), math.nan)
    rope = Rope(
        *(states.data_ptr(), weights.data_ptr() if normed else None, cosines.data_ptr(), sines.data_ptr()),
        *(queries.data_ptr(), pages.data_ptr(), heads, kv_heads, dim, rotary, 16, 1e-5, FORMATS[dtype]),
    )
    run(rope, rows=rows, starts=[9], slots=slots)
    turning = states[:, : heads + kv_heads]
    turning = reference.rms_norm(turning, weights, 1e-5) if normed else turning
    turned = reference.rope(turning, cosines[9:14], sines[9:14])
    expected = torch.full_like(pages, 7.0)
    reference.kv_write(
        turned[:, heads:].to(dtype), states[:, heads + kv_heads :].to(dtype), expected, torch.tensor(slots)
    )
    torch.testing.assert_close(queries, turned[:, :heads], atol=1e-5, rtol=0)
    # A last bit of the turn may tip the rounding to bfloat16.
    torch.testing.assert_close(pages, expected, atol=1e-5 if dtype is torch.float32 else 0.04, rtol=0)
    assert torch.equal(pages == 7.0, expected == 7.0)
