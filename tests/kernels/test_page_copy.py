"""Whole blocks between a pool and a buffer: every byte where it belongs, and none elsewhere."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from headrace_kernels import native, page_copy

Bytes = npt.NDArray[np.uint8]
BLOCKS = 11
GUARD = 64


@pytest.fixture(params=["native", "numpy"], autouse=True)
def _copier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(page_copy, "_library", lambda: None)
    elif native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")


def _memory(size: int, shift: int) -> Bytes:
    """Bytes of noise that begin `shift` behind a multiple of 64, with guards around them that nobody may touch."""
    memory = np.random.default_rng(size).integers(0, 256, size + 3 * GUARD, dtype=np.uint8)
    begin = -memory.ctypes.data % GUARD + shift
    return memory[begin : begin + size]


@pytest.mark.parametrize("page", [64, 256, 12288, 100, 7])
@pytest.mark.parametrize("blocks", [(4,), (2, 3, 4, 5), (10, 0, 7), tuple(range(BLOCKS)), ()])
def test_pages_of_any_size_and_place(page: int, blocks: tuple[int, ...]) -> None:
    for shift, layers in itertools.product((0, 16, 32, 5), (1, 3, 4)):
        there_and_back(shift, page, layers, blocks)


def there_and_back(shift: int, page: int, layers: int, blocks: tuple[int, ...]) -> None:
    pool = _memory(layers * BLOCKS * page, shift).reshape(layers, BLOCKS, page)
    pages = page_copy.PageCopy(pool)
    wanted = pool[:, np.array(blocks, np.intp)].reshape(-1)
    buffer = _memory(len(wanted), shift)
    around = buffer.base
    assert around is not None
    before = np.array(around)
    pages.gather(blocks, buffer)
    assert np.array_equal(buffer, wanted)
    buffer[:] = buffer[::-1]
    data, left = buffer.copy(), pool.copy()
    pages.scatter(blocks, buffer)
    assert np.array_equal(buffer, data)
    left[:, np.array(blocks, np.intp)] = data.reshape(layers, len(blocks), page)
    assert np.array_equal(pool, left)
    begin = (buffer.ctypes.data - around.ctypes.data) if len(buffer) else 0
    assert np.array_equal(around[:begin], before[:begin])
    assert np.array_equal(around[begin + len(buffer) :], before[begin + len(buffer) :])


def test_memory_that_is_not_ours_to_write_is_not_written() -> None:
    pool, buffer = _memory(BLOCKS * 64, 0).reshape(1, BLOCKS, 64), _memory(64, 0)
    pool.flags.writeable = buffer.flags.writeable = False
    pages = page_copy.PageCopy(pool)
    with pytest.raises(AssertionError):
        pages.gather((1,), buffer)
    with pytest.raises(AssertionError):
        pages.scatter((1,), buffer)
