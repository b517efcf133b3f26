"""One faulty frame between two real transfer threads: the data is right or the transfer fails; no more breaks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from chaos_peer import BLOCKS, HASTY, KEY, PATIENT, REFUSED, WATCHFUL, FaultyPeer, Transfer, make, well_and_at_rest
from transfer_peer import BF16, Peer, Tickets

from headrace.chaos.messages import Damage, FrameKind, Held, Hold, LetGo, Phase, Struck, WireFault
from headrace.core.errors import TransferFailed
from headrace.transfer.carrier import Side, TransferStatus
from headrace.transfer.site import TransferOptions
from headrace.transfer.wire import Refusal

COMPLETE, FAILED, CANCELLED = TransferStatus.COMPLETE, TransferStatus.FAILED, TransferStatus.CANCELLED
UNIT, END = FrameKind.UNIT, FrameKind.END
UNIT_BLOCKS = 4


class Pair:
    """A sender under chaos and a receiver."""

    def __init__(self, link: str, options: TransferOptions) -> None:
        self.link = link
        self.p, self.d = FaultyPeer(link, 1, options), Peer(link, BF16, 64, 0, options)
        self._tickets = Tickets()

    def transfer(self, place: int = 0) -> Transfer:
        return make(self.p, self.d, self._tickets, self.link, place=place)

    def mine(self) -> Transfer:
        """The one that can be aimed at."""
        transfer = self.transfer()
        self.p.aim.carries(transfer.ticket.transfer, KEY)
        return transfer

    def refused(self) -> float:
        return sum(self.d.sample(REFUSED, reason=refusal.value) for refusal in Refusal)


@contextmanager
def pair_over(link: str, options: TransferOptions) -> Iterator[Pair]:
    before = set(threading.enumerate())
    made = Pair(link, options)
    yield made
    made.p.close()
    made.d.close()
    assert set(threading.enumerate()) <= before


@pytest.fixture(params=["tcp", "ucx"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair_over(request.param, PATIENT) as made:
        yield made


@pytest.fixture(params=["tcp", "ucx"])
def hasty(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A sender that does not wait long for a peer that takes nothing."""
    with pair_over(request.param, HASTY) as made:
        yield made


@pytest.fixture(params=["tcp", "ucx"])
def watchful(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A receiver that does not wait long for what must be here."""
    with pair_over(request.param, WATCHFUL) as made:
        yield made


@pytest.mark.parametrize("frame", [UNIT, END])
@pytest.mark.parametrize("kind", [Damage.DUPLICATED, Damage.DELAYED, Damage.REORDERED])
def test_what_comes_whole_arrives(pair: Pair, kind: Damage, frame: FrameKind) -> None:
    transfer = pair.mine()
    pair.p.aim.arm(WireFault(kind, frame, seconds=0.2, request_prefix="mine"))
    transfer.begin()
    sent, received = transfer.reports()
    assert (sent.status, received.status) == (COMPLETE, COMPLETE), received.error
    assert transfer.right()
    struck = pair.p.heard(Struck)
    assert isinstance(struck, Struck)
    assert (struck.kind, struck.transfer) == (kind, transfer.ticket.transfer.hex())
    assert pair.refused() == 0
    well_and_at_rest(pair.p, pair.d, pair.transfer)


@pytest.mark.parametrize(("frame", "nth", "verified"), [(UNIT, 0, 0), (UNIT, 1, UNIT_BLOCKS), (END, 0, BLOCKS)])
@pytest.mark.parametrize("kind", [Damage.TRUNCATED, Damage.CORRUPTED, Damage.CORRUPTED_HEADER])
def test_what_comes_damaged_is_refused(pair: Pair, kind: Damage, frame: FrameKind, nth: int, verified: int) -> None:
    transfer = pair.mine()
    pair.p.aim.arm(WireFault(kind, frame, nth, request_prefix="mine"))
    transfer.begin()
    _, received = transfer.reports()
    assert received.status is FAILED
    assert received.verified_blocks <= verified
    assert isinstance(received.error, TransferFailed)
    assert pair.refused() == 1
    if kind is Damage.CORRUPTED_HEADER:
        # Not by its payload, which is right: nobody who does not hold the ticket can have written that header.
        assert pair.d.sample(REFUSED, reason=Refusal.SECRET.value) == 1
    assert transfer.untouched(received.verified_blocks)
    well_and_at_rest(pair.p, pair.d, pair.transfer)


@pytest.mark.parametrize(("frame", "nth"), [(UNIT, 0), (UNIT, 2), (END, 0)])
def test_what_does_not_come_fails_its_transfer(hasty: Pair, frame: FrameKind, nth: int) -> None:
    transfer = hasty.mine()
    hasty.p.aim.arm(WireFault(Damage.LOST, frame, nth, request_prefix="mine"))
    transfer.begin()
    sent, received = transfer.reports()
    assert sent.status is FAILED
    assert "took nothing for 1.5 s" in str(sent.error)
    assert received.status in {FAILED, CANCELLED}
    assert transfer.untouched(received.verified_blocks)
    well_and_at_rest(hasty.p, hasty.d, hasty.transfer)


@pytest.mark.parametrize(("frame", "nth"), [(UNIT, 2), (END, 0)])
def test_what_a_link_says_was_taken_and_was_not(watchful: Pair, frame: FrameKind, nth: int) -> None:
    """No link may say so; the receiver sees it by what comes behind."""
    pair, transfer = watchful, watchful.mine()
    pair.p.aim.arm(WireFault(Damage.SWALLOWED, frame, nth, request_prefix="mine"))
    transfer.begin(timeout_s=600.0)
    sent, received = transfer.reports()
    assert (sent.status, received.status) == (COMPLETE, FAILED)
    assert "and it did not come for " in str(received.error)
    assert transfer.untouched(received.verified_blocks)
    well_and_at_rest(pair.p, pair.d, pair.transfer)


def test_an_end_that_is_withheld_stops_nothing_else(pair: Pair) -> None:
    transfer = pair.mine()
    pair.p.aim.arm(Hold(Phase.BEFORE_COMMIT, "mine"))
    transfer.begin()
    assert pair.p.heard(Held) == Held(KEY.request, KEY.attempt, Phase.BEFORE_COMMIT)
    # 1. All that came before it arrives, and so does another's transfer.
    other = pair.transfer(24)
    other.begin()
    assert [report.status for report in other.reports()] == [COMPLETE, COMPLETE]
    pair.d.wait_sample("headrace_kv_transfer_units_total", 6, direction=Side.RECEIVER.value)
    assert transfer.right()
    # 2. It is not over for that.
    assert pair.d.reports.empty()
    pair.p.aim.release()
    assert [report.status for report in transfer.reports()] == [COMPLETE, COMPLETE]
    assert pair.p.heard(LetGo) == LetGo(KEY.request, KEY.attempt, True)
    well_and_at_rest(pair.p, pair.d, pair.transfer)


def test_an_end_that_is_withheld_too_long(hasty: Pair) -> None:
    transfer = hasty.mine()
    hasty.p.aim.arm(Hold(Phase.BEFORE_COMMIT, "mine"))
    transfer.begin()
    sent, received = transfer.reports()
    assert (sent.status, received.status) == (FAILED, CANCELLED)
    assert hasty.p.heard(LetGo) == LetGo(KEY.request, KEY.attempt, False)
    well_and_at_rest(hasty.p, hasty.d, hasty.transfer)


def test_who_stops_with_frames_withheld_and_lost_lets_go_of_them(pair: Pair) -> None:
    held, lost = pair.mine(), pair.transfer(24)
    pair.p.aim.arm(Hold(Phase.BEFORE_COMMIT, "mine"))
    pair.p.aim.arm(WireFault(Damage.LOST, UNIT, nth=3))
    held.begin()
    pair.p.heard(Held)
    lost.begin()
    pair.p.heard(Struck)
    pair.p.close(0.1)
    assert {pair.p.report(1.0).status for _ in range(2)} <= {FAILED, CANCELLED}
    assert pair.p.heard(LetGo) == LetGo(KEY.request, KEY.attempt, False)
