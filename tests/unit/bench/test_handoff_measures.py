"""What `headrace bench handoff` measures with: the bare link, turns, prompts told as they are computed, a child."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fixtures.random_gguf import write_random

from headrace.bench.handoff_bare import WINDOW, BareLink
from headrace.bench.handoff_child import ChildSender
from headrace.bench.handoff_end import Cut, HandoffEnd, Wiring, make_ticket
from headrace.bench.handoff_prompt import PromptReader
from headrace.bench.handoff_rates import Connected, measure_rates
from headrace.core.errors import StartupError, TransferFailed, Unavailable
from headrace.core.layout import KvLayout
from headrace.engine.options import EngineOptions
from headrace.transfer.loopback import LoopbackLink, Switchboard
from headrace.transfer.plan import units
from headrace.transfer.wire import HEADER_BYTES

LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=8, block_tokens=16, dtype="bfloat16")
CUT = Cut(LAYOUT, 4)


@pytest.mark.parametrize("blocks", [1, 4, 5, 160])
def test_the_bare_link_carries_the_frames_of_a_transfer(blocks: int) -> None:
    planned = units(make_ticket(CUT, "tcp", "", blocks))
    assert CUT.frames(blocks) == tuple(HEADER_BYTES + unit.block_count * LAYOUT.block_bytes for unit in planned)


@pytest.fixture
def bare() -> Iterator[tuple[BareLink, BareLink]]:
    board = Switchboard()
    ends = tuple(BareLink(LoopbackLink(board), 1000) for _ in range(2))
    yield ends[0], ends[1]
    for end in ends:
        end.close()


def test_the_bare_link_carries_all_frames_however_many(bare: tuple[BareLink, BareLink]) -> None:
    sending, receiving = bare
    sizes = (1000,) * (3 * WINDOW + 1) + (10,)
    beside = threading.Thread(target=sending.send, args=(receiving.address, b"t" * 16, sizes, 20.0))
    beside.start()
    receiving.receive(b"t" * 16, sizes, 20.0)
    beside.join(20.0)
    assert not beside.is_alive()


def test_a_frame_that_the_link_loses_is_told(bare: tuple[BareLink, BareLink]) -> None:
    with pytest.raises(TransferFailed, match="lost a frame: no link at"):
        bare[0].send("loopback:99", b"t" * 16, (10,), 20.0)


def test_frames_that_do_not_come_are_given_up(bare: tuple[BareLink, BareLink]) -> None:
    with pytest.raises(TransferFailed, match=r"did not carry 1 frames within 0\.01 s"):
        bare[0].receive(b"t" * 16, (10,), 0.01)


def test_bare_link_and_transfer_take_turns_and_the_first_round_is_for_warmth() -> None:
    seen: list[str] = []

    def timed(way: str, seconds: float) -> Any:
        return lambda blocks: seen.append(way) or (seconds if len(seen) > 2 else 100.0)

    both = cast(Connected, SimpleNamespace(bare=timed("bare", 0.5), handoff=timed("handoff", 1.0)))
    rates = measure_rates(both, CUT, 10, 3)
    size = 10 * LAYOUT.block_bytes
    assert rates.bare == (size / 0.5,) * 3
    assert rates.handoff == (size / 1.0,) * 3
    assert rates.share == 0.5
    assert seen == ["handoff", "bare", "bare", "handoff"] * 2


class ToldEnd:
    """An end that takes note of what it is told and has sent everything at once."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.thread = SimpleNamespace(
            send=lambda ticket, timeout_s: None, advance=lambda transfer, blocks: self.told.append(len(blocks))
        )

    def completed(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("model") / "random.gguf")


OPTIONS = EngineOptions(
    max_num_seqs=1, max_num_batched_tokens=40, threads=1, kv_cache_memory_bytes=1 << 22, enable_prefix_caching=False
)


def test_pages_leave_as_they_are_whole_or_all_at_the_end(model: Path) -> None:
    reader = PromptReader(str(model), model.parent, OPTIONS)
    ticket = make_ticket(Cut(reader.pages.layout, 4), "tcp", "", 7)
    for streamed, told in ((True, [2, 5, 7]), (False, [7]), (True, [2, 5, 7])):
        end = ToldEnd()
        prefilled = reader.hand_over(cast(HandoffEnd, end), ticket, 103, streamed=streamed)
        assert end.told == told
        assert prefilled.computed > prefilled.began


def test_what_fails_in_the_child_fails_here_as_what_it_is() -> None:
    child = ChildSender()
    try:
        with pytest.raises(StartupError, match="There is no transfer link 'pigeon'"):
            child.call("open", Wiring("pigeon", "pigeon"), CUT, 4)
        child._process.kill()
        child._process.wait(10.0)
        with pytest.raises(Unavailable, match="ended before its answer"):
            child.call("shut")
    finally:
        child.end()
