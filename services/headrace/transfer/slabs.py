"""Staging slabs: the only memory that a peer may write or read, and who may have one when they are short.

Owns the buffers and their states. It knows no link: its callers say when a receipt settled.
"""

from collections.abc import Mapping
from enum import Enum

import numpy as np

# Slabs begin where a cache line does: whole lines are copied out of them.
_LINE = 64


class SlabState(Enum):
    """posted: the link has it, either way. arrived: a whole frame stands in it, unverified. quarantined: a transfer
    ended while the link still had it, so a peer may touch it yet."""

    FREE = "free"
    POSTED = "posted"
    ARRIVED = "arrived"
    QUARANTINED = "quarantined"


class Slab:
    """One buffer of the pool's fixed size. Only the pool changes its state."""

    __slots__ = ("frame", "owner", "state")

    def __init__(self, size: int) -> None:
        memory = np.empty(size + _LINE, dtype=np.uint8)
        begin = -memory.ctypes.data % _LINE
        self.frame = memory[begin : begin + size].data
        self.state = SlabState.FREE
        self.owner = b""


class SlabPool:
    """A bounded number of slabs, shared by transfers that each progress in unit order.

    A transfer that holds none goes before one that wants more, the longest registered first, and who takes a further
    slab leaves one for each that has none. So with no more transfers than slabs, none waits for one that stands still:
    only a transfer whose units arrive takes more than one, and those come back.
    """

    def __init__(self, count: int, size: int) -> None:
        """size: bytes of the largest frame. Memory is touched only when a slab is first used."""
        self.slab_bytes = size
        self._slabs = tuple(Slab(size) for _ in range(count))
        self._free = list(reversed(self._slabs))
        self._held: dict[bytes, int] = {}
        self.quarantined = 0

    @property
    def free(self) -> int:
        """How many nobody has."""
        return len(self._free)

    @property
    def counts(self) -> Mapping[SlabState, int]:
        """Counted now: slabs move more often than anybody looks."""
        counts = dict.fromkeys(SlabState, 0)
        for slab in self._slabs:
            counts[slab.state] += 1
        return counts

    def register(self, owner: bytes) -> None:
        """From now on a slab is kept back for `owner`, if there are enough."""
        if owner not in self._held:
            self._held[owner] = sum(slab.owner == owner and slab.state is not SlabState.FREE for slab in self._slabs)

    def unregister(self, owner: bytes) -> None:
        """Keep nothing back for `owner` any more. What it still holds comes back as ever."""
        self._held.pop(owner, None)

    def take(self, owner: bytes) -> Slab | None:
        """A slab in state POSTED, or None while others go first. `owner` must be registered."""
        if len(self._free) <= self._ahead_of(owner):
            return None
        slab = self._free.pop()
        slab.owner = owner
        self._held[owner] += 1
        slab.state = SlabState.POSTED
        return slab

    def arrive(self, slab: Slab) -> None:
        slab.state = SlabState.ARRIVED

    def quarantine(self, slab: Slab) -> None:
        """A slab that is not in quarantine yet."""
        slab.state = SlabState.QUARANTINED
        self.quarantined += 1

    def give_back(self, slab: Slab) -> None:
        """Only when the receipt of its frame is settled."""
        self.quarantined -= slab.state is SlabState.QUARANTINED
        slab.state = SlabState.FREE
        if slab.owner in self._held:
            self._held[slab.owner] -= 1
        self._free.append(slab)

    def _ahead_of(self, owner: bytes) -> int:
        if self._held[owner]:
            return sum(not held for held in self._held.values())
        ahead = 0
        for other, held in self._held.items():
            if other == owner:
                break
            ahead += not held
        return ahead
