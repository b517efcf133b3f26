"""Peers: what a worker has under way to each peer, when each last took something, and how long to wait for it.

Owns the bounds of one peer's share. It knows no frames and no clock: its callers say what happened, and when.
"""

from dataclasses import dataclass

NEVER = float("inf")
# A peer that said nothing for long still gets this long to hear that a transfer is over.
FAREWELL_S = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a sender waits for what a peer has not taken, in seconds.

    silent_s: for a peer that takes nothing from anybody here. short_s: for one that takes other frames and not these:
    it is alive, and short of slabs.
    """

    silent_s: float
    short_s: float

    def ends_at(self, waiting_since: float, heard_at: float) -> float:
        """When a frame that the peer has had since `waiting_since` is given up; the peer last took one at `heard_at`.
        NEVER while nothing waits."""
        return min(max(waiting_since, heard_at) + self.silent_s, waiting_since + self.short_s)

    def farewell_ends_at(self, closed_at: float, waiting_since: float, heard_at: float) -> float:
        """The same for a transfer that is over and whose peer was told so at `closed_at`; never NEVER."""
        told = closed_at + min(FAREWELL_S, self.silent_s)
        return min(max(told, max(waiting_since, heard_at) + self.silent_s), closed_at + self.short_s)

    def dead_ends_at(self, said_at: float, heard_at: float) -> float:
        """The same for a peer of which somebody said at `said_at` that it is dead: at once, unless it took something a
        moment ago. To hang up on a peer fails all that is under way to it, which is not one router's to decide."""
        return max(said_at, heard_at + min(FAREWELL_S, self.silent_s))


@dataclass(slots=True)
class _Share:
    """What one peer has of ours: slabs with so many bytes, and frames of any kind that wait. heard_at: when it last
    took one."""

    slabs: int = 0
    nbytes: int = 0
    waiting: int = 0
    heard_at: float = -NEVER


class Peers:
    """The shares of all peers that have something under way, by address.

    A peer gets at most `most_slabs` slabs and `most_bytes` bytes of ours at once, and one slab in any case, so that
    one that stands still keeps no more than its share from the others.
    """

    def __init__(self, most_slabs: int, most_bytes: int) -> None:
        self._most_slabs = max(1, most_slabs)
        self._most_bytes = most_bytes
        self._shares: dict[str, _Share] = {}
        self._turns = 0
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Under way to all peers together. May be read on any thread."""
        return self._nbytes

    def may_send(self, address: str, nbytes: int) -> bool:
        """Whether the peer's share has room for a slab of `nbytes`."""
        share = self._shares.get(address)
        if share is None or not share.slabs:
            return True
        return share.slabs < self._most_slabs and share.nbytes + nbytes <= self._most_bytes

    def sent(self, address: str, nbytes: int) -> int:
        """A frame is under way; nbytes: 0 if it lies in no slab. Returns the number of this turn, counted over all
        peers: who had none for longest goes next."""
        share = self._shares.setdefault(address, _Share())
        share.slabs += nbytes > 0
        share.nbytes += nbytes
        self._nbytes += nbytes
        share.waiting += 1
        self._turns += 1
        return self._turns

    def back(self, address: str, nbytes: int, taken_at: float | None) -> None:
        """A frame is not under way any more. taken_at: when the peer took it, if it did."""
        share = self._shares[address]
        share.slabs -= nbytes > 0
        share.nbytes -= nbytes
        self._nbytes -= nbytes
        share.waiting -= 1
        if taken_at is not None:
            share.heard_at = taken_at
        # Who waits later waits since later.
        if not share.waiting:
            del self._shares[address]

    def heard_at(self, address: str) -> float:
        """When the peer last took a frame, of those that waited together with what waits now."""
        share = self._shares.get(address)
        return -NEVER if share is None else share.heard_at
