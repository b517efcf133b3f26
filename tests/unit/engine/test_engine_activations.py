"""Element-wise functions cut by rows: a row's bits stay, whatever number of rows and threads there is."""

from collections.abc import Iterator

import pytest
import torch

from headrace.engine.activations import ACTIVATIONS
from headrace.engine.rows import ROW_MULTIPLE, padded_rows

MOST = 72


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [25, 768, 4864, 28_672])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rows_keep_their_bits(name: str, inner: int, dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(5)
    gates = (torch.randn(MOST, 2 * inner, generator=noise) * 2).to(dtype).chunk(2, dim=-1)[0]
    torch.set_num_threads(1)
    expected = torch.cat([ACTIVATIONS[name](row) for row in gates.split(ROW_MULTIPLE)])
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        for rows in range(ROW_MULTIPLE, MOST + 1, ROW_MULTIPLE):
            assert torch.equal(ACTIVATIONS[name](gates[:rows]), expected[:rows])


def test_rows_are_padded_up() -> None:
    assert [padded_rows(count) for count in (0, 1, 8, 9)] == [0, 8, 8, 16]
