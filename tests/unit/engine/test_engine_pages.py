"""Page memory, on host and device, and the fake engine's marked pages: what is written is read, the rest is noticed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixtures.tiny_model import VOCABULARY

from headrace.core.errors import InternalError
from headrace.core.layout import KvLayout
from headrace.core.sampling import SamplingParams
from headrace.engine.device_pages import DevicePages
from headrace.engine.fake import FakeRunner, MarkedPages
from headrace.engine.history import TokenHistory
from headrace.engine.page_memory import PageMemory
from headrace.engine.runner import Draw, Drawn, Pages, Span

LAYOUT = KvLayout(3, 2, 4, 16, "bfloat16")
DIGEST = b"0123456789abcdef"
MakePages = Callable[[KvLayout, int], Pages]
EVERY_MEMORY = pytest.mark.parametrize(
    "make", [PageMemory, lambda layout, count: DevicePages(layout, count, torch.device("cpu"))], ids=["host", "device"]
)


def _noise(blocks: int) -> bytes:
    return np.random.default_rng(0).bytes(blocks * LAYOUT.block_bytes)


def _read(memory: Pages, *blocks: int) -> bytearray:
    out = bytearray(len(blocks) * LAYOUT.block_bytes)
    memory.read(blocks, memoryview(out))
    return out


@EVERY_MEMORY
def test_blocks_move_whole_and_in_order(make: MakePages) -> None:
    memory, data = make(LAYOUT, 8), _noise(3)
    memory.write((6, 1, 4), memoryview(data))
    assert _read(memory, 6, 1, 4) == data
    # Layer by layer in the buffer: block 1 is the second of each layer.
    single = _read(memory, 1)
    for layer in range(3):
        page = LAYOUT.page_bytes
        assert single[layer * page : (layer + 1) * page] == data[(3 * layer + 1) * page : (3 * layer + 2) * page]
    assert not any(_read(memory, 0, 2, 3, 5, 7))


@EVERY_MEMORY
def test_copies_are_whole_and_one_after_the_other(make: MakePages) -> None:
    memory, data = make(LAYOUT, 8), _noise(3)
    memory.write((0, 1, 2), memoryview(data))
    memory.copy([(0, 5), (1, 0), (5, 6)])
    assert _read(memory, 6, 0, 2) == data


@EVERY_MEMORY
def test_cleared_blocks_are_zero_and_others_stay(make: MakePages) -> None:
    memory, data = make(LAYOUT, 8), _noise(3)
    memory.write((0, 1, 2), memoryview(data))
    before = _read(memory, 1)
    memory.clear([0, 2])
    assert not any(_read(memory, 0, 2))
    assert _read(memory, 1) == before


@EVERY_MEMORY
@pytest.mark.parametrize(("blocks", "size"), [((1, 2), 1), ((8,), 1), ((-1,), 1), ((), 1)])
def test_wrong_sizes_and_blocks_are_refused(make: MakePages, blocks: tuple[int, ...], size: int) -> None:
    memory = make(LAYOUT, 8)
    buffer = memoryview(bytearray(size * LAYOUT.block_bytes))
    with pytest.raises(InternalError):
        memory.read(blocks, buffer)
    with pytest.raises(InternalError):
        memory.write(blocks, buffer)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pages_with_scales_are_whole_pages_to_whoever_moves_them(ranks: int) -> None:
    layout = KvLayout(layers=3, kv_heads=4, head_dim=8, block_tokens=16, dtype="int8", scale_bytes=16)
    memory = PageMemory(layout, 4, ranks=ranks)
    data = bytearray(np.random.default_rng(1).bytes(2 * layout.block_bytes))
    memory.write((3, 1), memoryview(data))
    back = bytearray(len(data))
    memory.read((3, 1), memoryview(back))
    assert back == data
    # Each rank has whole heads, each with its scales behind it.
    heads = np.frombuffer(data, np.uint8).reshape(3, 2, 4, 2 * (16 * 8 + 16))
    for rank, share in enumerate(memory.shares):
        own = heads[:, :, rank * 4 // ranks : (rank + 1) * 4 // ranks]
        assert np.array_equal(share[:, [3, 1]], own.reshape(3, 2, -1))


class Fakes:
    """A fake runner over 8 pages."""

    def __init__(self) -> None:
        self.pages = MarkedPages(LAYOUT, 8, DIGEST)
        self.runner = FakeRunner(self.pages, VOCABULARY, 128, DIGEST, stop_after=None, before_step=None)

    def run(self, tokens: list[int], start: int, blocks: list[int]) -> object:
        draw = Draw(SamplingParams(seed=1), 0, TokenHistory(tokens, len(tokens)))
        (result,) = self.runner.run([Span(tokens, start, len(tokens) - start, blocks, draw)])
        return result.token if isinstance(result, Drawn) else result


def _filled() -> tuple[Fakes, list[int], bytearray]:
    fakes, tokens = Fakes(), list(range(40))
    assert isinstance(fakes.run(tokens, 0, [5, 0, 3]), int)
    buffer = bytearray(3 * LAYOUT.block_bytes)
    fakes.pages.read([5, 0, 3], memoryview(buffer))
    return fakes, [*tokens, 40], buffer


def test_moved_pages_are_recognised() -> None:
    source, tokens, data = _filled()
    target = Fakes()
    target.pages.write([1, 2, 7], memoryview(data))
    assert target.run(tokens, 40, [1, 2, 7]) == source.run(tokens, 40, [5, 0, 3])


@pytest.mark.parametrize("where", [0, 1, -449, 3 * LAYOUT.page_bytes + 9])
def test_one_wrong_bit_is_noticed(where: int) -> None:
    _, tokens, data = _filled()
    target = Fakes()
    data[where] ^= 0x10
    target.pages.write([1, 2, 7], memoryview(data))
    assert isinstance(target.run(tokens, 40, [1, 2, 7]), InternalError)


def test_pages_in_the_wrong_order_or_of_other_tokens_are_noticed() -> None:
    _, tokens, data = _filled()
    target = Fakes()
    target.pages.write([1, 2, 7], memoryview(data))
    assert isinstance(target.run(tokens, 40, [2, 1, 7]), InternalError)
    assert isinstance(target.run([9, *tokens[1:]], 40, [1, 2, 7]), InternalError)


def test_a_copied_page_is_recognised_and_a_wrong_copy_noticed() -> None:
    source, tokens, _ = _filled()
    source.pages.copy([(0, 6)])
    assert source.run(tokens, 40, [5, 6, 3]) == source.run(tokens, 40, [5, 0, 3])
    source.pages.copy([(5, 6)])
    assert isinstance(source.run(tokens, 40, [5, 6, 3]), InternalError)


def test_a_page_that_never_came_or_was_overwritten_is_noticed() -> None:
    source, tokens, data = _filled()
    target = Fakes()
    target.pages.write([1, 2], memoryview(_part(data, (0, 1))))
    assert isinstance(target.run(tokens, 40, [1, 2, 7]), InternalError)
    source.pages.write([0], memoryview(_noise(1)))
    assert isinstance(source.run(tokens, 40, [5, 0, 3]), InternalError)


def _part(data: bytearray, blocks: tuple[int, ...]) -> bytes:
    pages = np.frombuffer(data, dtype=np.uint8).reshape(3, 3, LAYOUT.page_bytes)
    return pages[:, list(blocks)].tobytes()
