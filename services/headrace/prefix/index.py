"""The borders of the prefix index: workers write it, routers read a copy of it.

Owns nothing. An entry belongs to one incarnation and lives as long as somebody renews it. Nobody here knows
leases, roles or addresses; a reader keeps only the holders that it can reach.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.core.blocks import IndexUpdate
from headrace.core.fleet import WorkerRef


@dataclass(frozen=True, slots=True)
class Head:
    """What identifies an entry's content. digest: XOR of its hashes as 128-bit big-endian numbers."""

    sequence: int
    count: int
    digest: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An entry as it was right after the update `sequence`."""

    sequence: int
    hashes: frozenset[bytes]


class ChangeKind(Enum):
    """delta: the update's lists say all. reset: read the entry anew. dropped: the entry is gone."""

    DELTA = "delta"
    RESET = "reset"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Change:
    """One step in the life of an entry, as followers see it. `evicted` applies before `stored`."""

    worker: WorkerRef
    kind: ChangeKind
    sequence: int
    stored: tuple[bytes, ...] = ()
    evicted: tuple[bytes, ...] = ()


class PrefixIndex(Protocol):
    """The writing side. Each call is atomic; it raises Unavailable when the index is away, and then may or may not
    have happened: repeating it unchanged is always safe."""

    async def apply(self, update: IndexUpdate, ttl_s: float) -> bool:
        """Make an update part of its incarnation's entry and let the entry live for ttl_s.

        True if the entry contains it now (an update that it already contained changes nothing). False if it does
        not: there is no entry, or an update before this one is missing. Then everything must be sent again with
        `reset`. After `drop` the answer is False to a reset, too.
        """
        ...

    async def renew(self, ref: WorkerRef, ttl_s: float) -> bool:
        """Let an entry live for ttl_s from now. False if it is gone."""
        ...

    async def drop(self, ref: WorkerRef) -> None:
        """Remove an incarnation's entry for good. Late updates to it are refused."""
        ...


class PrefixSource(Protocol):
    """The reading side. Raises Unavailable when the index is away.

    Following: take `tail`, then the snapshots, then `changes` from that position on. A change whose sequence an
    entry's snapshot has already reached says nothing new. Followers who read too slowly miss changes without being
    told; the sequences show it at the entry's next change, `heads` at any time.
    """

    async def heads(self) -> Mapping[WorkerRef, Head]:
        """Every live entry."""
        ...

    async def snapshot(self, ref: WorkerRef) -> Snapshot | None:
        """One entry's content, None if there is none."""
        ...

    async def tail(self) -> bytes:
        """The position behind the newest change. Positions mean nothing else."""
        ...

    async def changes(self, after: bytes, wait_s: float) -> tuple[bytes, tuple[Change, ...]]:
        """The changes behind `after`, oldest first, and the position behind them; waits up to wait_s for one."""
        ...


class PrefixMatcher(Protocol):
    """What the router asks while it chooses."""

    def match(self, hashes: Sequence[bytes]) -> Mapping[WorkerRef, int]:
        """How many leading blocks of a prompt each incarnation holds; those that hold none are left out.
        Answers from memory, at once."""
        ...
