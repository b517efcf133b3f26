"""Link: the border between a transfer's state machine and whatever carries its frames between two workers.

Owns the contract and the receipt every link hands out. It knows neither what a frame holds nor which wire moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

END_UNIT = 0xFFFF
MAX_UNITS = END_UNIT
# Why the second of two sends of one frame fails.
SENT_TWICE = "the same frame is on its way to this peer already"


class FrameId(NamedTuple):
    """Names one frame between two workers, once and for ever. A tuple: links look frames up at every step.

    transfer: the ticket's 16 bytes: 8 random ones per incarnation of the receiver, then its counter, big-endian.
    unit: index of the unit, or END_UNIT for the transfer's closing frame.
    """

    transfer: bytes
    unit: int


class ReceiptState(Enum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class Receipt:
    """The fate of one `post` or `send`; read on the transfer thread. `reason` is set when it failed."""

    __slots__ = ("_on_withdraw", "pending", "reason", "state")

    def __init__(self, on_withdraw: "Callable[[Receipt], None]") -> None:
        self.state = ReceiptState.PENDING
        self.pending = True
        self.reason = ""
        self._on_withdraw = on_withdraw

    def withdraw(self) -> None:
        """Ask that it settle soon. It still may settle DONE, and until it settles nothing changes: see Link."""
        if self.pending:
            self._on_withdraw(self)

    def settle(self, state: ReceiptState, reason: str = "") -> None:
        """For links only. A receipt settles once."""
        assert self.pending, "a receipt settles once"
        self.state, self.reason, self.pending = state, reason, False


class Link(Protocol):
    """Carries frames between workers. Made, used and closed on one thread; no call but `progress` blocks.

    The fence: **a buffer belongs to the link until its receipt is settled.** A posted buffer may be written by the
    peer and a sent one read until then, through a timeout, a withdrawal and `close` alike; afterwards never. The link
    keeps a reference to the buffer for as long.

    A send settles DONE only when the peer's posted receive took the whole frame: nothing is buffered on the way, and
    a frame that nobody posts stays with its sender. Sends and posts match by FrameId whatever their order. The same id
    may be posted again only after its receipt failed. While a send is pending another one of the same id to the same
    peer settles FAILED at once, with the reason SENT_TWICE, and changes nothing for the first. A frame larger than the
    posted buffer fails its receive, and its send where the link hears of it; a smaller one leaves the rest of the
    buffer as it was (frames say their own length). A frame of no bytes is never posted: sending one settles DONE once
    the peer's link answered, so it shows that the way there is open.

    An address means one life of a link. A link that comes to the same place later takes nothing that was sent to the
    former one, and is reached afresh.

    A peer that dies or closes fails the sends to it and the frames then arriving from it. A receive whose frame had
    not begun to arrive stays pending. A withdrawn receive settles FAILED at the next progress if nothing arrives in
    it; if something does, it settles when the frame is whole or its peer is gone. Withdrawing a send may
    fail other sends to the same peer; it is for peers that do not answer.
    """

    @property
    def address(self) -> str:
        """What peers pass to `send`; constant, opaque, at most 255 characters, no other life of a link had it."""
        ...

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        """Receive `frame` into `buffer` (writable, contiguous bytes)."""
        ...

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        """Send the whole of `buffer` to the link at `address`. What a peer does wrong shows in the receipt only."""
        ...

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        """Move bytes and settle receipts. With nothing to do, wait for the network or for `wake_fd` to become
        readable (it is left unread), at most `timeout_s` seconds. Returns when a receipt settled, at once if one did
        since the last call."""
        ...

    def close(self) -> None:
        """Let go of every peer. Receipts that the link can fence settle FAILED; the others stay pending for the life
        of the process, and so must their buffers stay out of use. Nothing may be called afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class LinkFactory:
    """A link that was chosen and is not open yet. name: what tickets call it. open: to be called on the thread that
    will use the link; raises StartupError."""

    name: str
    open: Callable[[], Link]
