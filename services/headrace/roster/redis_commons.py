"""RedisCommons: what the routers of a fleet share. `store/commons_exchange.lua` makes an exchange atomic."""

from typing import cast

from headrace.core.commons import Deposit, Share
from headrace.store.connection import Argument, Store
from headrace.store.keys import key

_REFUSED = 1000
_REMEMBERED_MS = 3_600_000


class RedisCommons:
    """Commons over a Store. most: retries that the fleet saves up; it begins with as many."""

    def __init__(self, store: Store, *, fleet: str = "default", most: int = 100) -> None:
        self._store = store
        self._fleet = fleet
        self._most = most

    async def exchange(self, router: str, sequence: int, deposit: Deposit) -> Share:
        """See Commons."""
        keys = [key(self._fleet, part) for part in ("retries", "refused", f"exchange:{router}")]
        args: list[Argument] = [sequence, repr(deposit.earned), repr(deposit.wanted), self._most]
        args += [_REFUSED, _REMEMBERED_MS]
        for fingerprint, seconds in deposit.deaths:
            args += [fingerprint, round(seconds * 1000)]
        granted, *refused = cast(list[bytes | int], await self._store.run("commons_exchange", keys, args))
        pairs = zip(refused[::2], refused[1::2], strict=True)
        left = ((cast(bytes, fingerprint), int(milliseconds) / 1000) for fingerprint, milliseconds in pairs)
        return Share(float(granted), tuple(left))
