"""How fast whole transfers are, and the bare link between the same two processes, in turns.

Owns the order of measuring and the clock. It knows neither engines nor reports.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.bench.handoff_end import LIMIT_S, Cut, HandoffEnd, Wiring, make_ticket
from headrace.core.pages import PagePort
from headrace.engine.page_memory import PageMemory
from headrace.transfer.loopback import Switchboard


class Caller(Protocol):
    """The sender, wherever it is."""

    def call(self, method: str, *args: Any) -> Any:
        """What its method returns. Raises what it raises."""
        ...

    def abandon(self) -> None:
        """Break off what it does, once nobody wants it any more: calls in progress end, others may fail."""
        ...


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one link, bytes a second of payload in each round: of the bare link's frames and of transfers."""

    bare: tuple[float, ...]
    handoff: tuple[float, ...]

    @property
    def share(self) -> float:
        """What of the bare link's rate transfers reach: the median over the rounds, each of which has both."""
        return statistics.median(ours / bare for ours, bare in zip(self.handoff, self.bare, strict=True))


class Connected:
    """Two open ends, the receiving one in this process."""

    def __init__(self, sender: Caller, end: HandoffEnd, wiring: Wiring, cut: Cut) -> None:
        self._sender, self._end, self._cut, self._link = sender, end, cut, wiring.link
        self._beside = ThreadPoolExecutor(1, "bench-sender")

    def bare(self, blocks: int) -> float:
        """Seconds that frames of so many blocks' units take, from the sender's being told."""
        transfer, sizes = os.urandom(16), self._cut.frames(blocks)
        began = time.monotonic()
        sent = self._beside.submit(self._sender.call, "bare", self._end.addresses.bare, transfer, sizes)
        self._end.bare.receive(transfer, sizes, LIMIT_S)
        took = time.monotonic() - began
        sent.result(LIMIT_S)
        return took

    def handoff(self, blocks: int) -> float:
        """Seconds of one transfer of so many blocks, likewise, to the receiver's report."""
        ticket = make_ticket(self._cut, self._link, self._end.addresses.transfers, blocks)
        places = tuple(range(blocks))
        began = time.monotonic()
        self._end.thread.receive(ticket, places, LIMIT_S)
        sent = self._beside.submit(self._sender.call, "send", ticket, places)
        took = self._end.completed() - began
        sent.result(LIMIT_S)
        return took

    def prompt(self, tokens: int, *, streamed: bool) -> tuple[float, float]:
        """Seconds of a prompt's computing, and from its end until its last page is here and verified."""
        blocks = -(-tokens // self._cut.layout.block_tokens)
        ticket = make_ticket(self._cut, self._link, self._end.addresses.transfers, blocks)
        self._end.thread.receive(ticket, tuple(range(blocks)), LIMIT_S)
        sent = self._beside.submit(self._sender.call, "prefill", ticket, tokens, streamed)
        complete = self._end.completed()
        prefilled = sent.result(LIMIT_S)
        return prefilled.computed - prefilled.began, complete - prefilled.computed

    def close(self) -> None:
        # Its last call has been waited for, or is abandoned.
        self._beside.shutdown(wait=False)


@contextmanager
def connected(
    sender: Caller, wiring: Wiring, cut: Cut, blocks: int, board: Switchboard | None = None
) -> Iterator[Connected]:
    """Ends over `blocks` pages of noise and as many for them, open until the block ends."""
    sender.call("open", wiring, cut, blocks)
    yield from _connected(sender, wiring, cut, _written(cut, blocks), board)


@contextmanager
def connected_to_engine(sender: Caller, wiring: Wiring, cut: Cut, blocks: int) -> Iterator[Connected]:
    """The same, where the sender's pages are its engine's."""
    sender.call("open_engine", wiring, cut.unit_blocks)
    yield from _connected(sender, wiring, cut, _written(cut, blocks), None)


def _connected(
    sender: Caller, wiring: Wiring, cut: Cut, pages: PagePort, board: Switchboard | None
) -> Iterator[Connected]:
    end = HandoffEnd(wiring, wiring.receiver, pages, cut.unit_blocks, board)
    try:
        both = Connected(sender, end, wiring, cut)
        try:
            yield both
        except BaseException:
            # First: our end need not wait for what the sender has under way.
            sender.abandon()
            raise
        finally:
            both.close()
    finally:
        end.close()
    sender.call("shut")


def _written(cut: Cut, blocks: int) -> PageMemory:
    """Pages whose memory is there already, as a worker's is once it has served for a while."""
    pages = PageMemory(cut.layout, blocks)
    pages.bytes[:] = 1
    return pages


def measure_rates(both: Connected, cut: Cut, blocks: int, rounds: int) -> Rates:
    """Bare link and transfer in turns, the order changing from round to round, after one round that does not count."""
    size = blocks * cut.layout.block_bytes
    ways: tuple[Callable[[int], float], ...] = (both.bare, both.handoff)
    found: dict[Callable[[int], float], list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways if number % 2 else reversed(ways):
            seconds = way(blocks)
            if number:
                found[way].append(size / seconds)
    return Rates(tuple(found[both.bare]), tuple(found[both.handoff]))
