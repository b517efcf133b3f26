"""The Roster border: workers take leases, routers see who holds one.

Owns nothing. A lease is a promise for `ttl_s`, not a proof of life: a router that is attached to a worker knows
better than the roster.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from headrace.core.fleet import WorkerInfo, WorkerRef


class Roster(Protocol):
    """One lease per worker name. The lives of a name are ordered by when they joined: a later one takes the lease
    from an earlier one, never the other way round while it lasts. Calls are atomic and safe to repeat; they raise
    Unavailable when the roster is away (`watch` does not)."""

    async def join(self, info: WorkerInfo, ttl_s: float) -> bool:
        """Take the lease at the start of an incarnation: the latest of all lives so far. True unless a later one has
        joined at the same moment."""
        ...

    async def renew(self, info: WorkerInfo, ttl_s: float) -> bool:
        """Hold the lease for ttl_s from now, with this info; take it again if it was lost. False if a later life
        of the worker holds it."""
        ...

    async def leave(self, ref: WorkerRef) -> None:
        """Give the lease back. Nothing happens if another incarnation holds it."""
        ...

    async def members(self) -> tuple[WorkerInfo, ...]:
        """Who holds a lease now, ordered by ref."""
        ...

    def watch(self) -> AsyncGenerator[tuple[WorkerInfo, ...], None]:
        """The members now and again after every change, until the iterator is closed. While the roster is away it
        is silent; then it goes on. Expired leases show within a second or so, everything else at once."""
        ...
