"""Store: the one way to Redis. Every call is a Lua script or a stream read, with a deadline, and may be retried.

Knows connections, deadlines and health. It knows no key, and nothing of what the scripts mean.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias, TypeVar, cast

import redis.asyncio as aioredis
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from headrace.core.errors import StartupError, Unavailable
from headrace.store.address import without_secrets

log = structlog.get_logger()

Argument = str | bytes | int
Reply: TypeAlias = "int | bytes | list[Reply] | None"
_T = TypeVar("_T")

STREAM_START = b"0-0"
_FOLLOW_BATCH = 256


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a stream. id: the position to follow on from."""

    id: bytes
    fields: Mapping[bytes, bytes]


class Store:
    """A Redis that may be away. No call takes longer than its deadline; failure is always `Unavailable`.

    A connection lost in the middle of a call makes the call run again within its deadline, so scripts must be
    safe to run twice. `healthy` is the outcome of the last call.
    """

    def __init__(self, url: str, *, deadline_s: float = 2.0) -> None:
        """Does not connect yet. url: redis://, rediss:// or unix://. Raises StartupError if it is none."""
        self._where = without_secrets(url)
        self._deadline_s = deadline_s
        self._scripts: dict[str, AsyncScript] = {}
        self._healthy: bool | None = None
        retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), 3, supported_errors=(RedisConnectionError,))
        try:
            self._calls = aioredis.Redis.from_url(url, protocol=2, retry=retry, socket_timeout=None)
            # A blocked read holds its connection, so followers never share those of the calls.
            self._followers = aioredis.Redis.from_url(url, protocol=2, retry=retry, socket_timeout=None)
        except ValueError as error:
            raise StartupError(
                f"{self._where!r} is not the address of a Redis.",
                remedy="Write redis://host:port/0, rediss://host:port/0 or unix:///path/to/socket.",
            ) from error

    @property
    def healthy(self) -> bool:
        """Whether the last call succeeded; False before the first."""
        return self._healthy is True

    async def ping(self) -> None:
        """Return if Redis answers. Raises Unavailable."""
        await self._within(self._deadline_s, self._ping)

    async def run(self, script: str, keys: Sequence[str], args: Sequence[Argument]) -> Reply:
        """Run `store/{script}.lua` atomically. Raises Unavailable."""
        prepared = self._prepared(script)
        return await self._within(self._deadline_s, lambda: _reply(prepared(keys=list(keys), args=list(args))))

    async def last_id(self, stream: str) -> bytes:
        """The position behind the newest entry of a stream, STREAM_START if it is empty. Raises Unavailable."""
        newest = await self._within(self._deadline_s, lambda: self._calls.xrevrange(stream, count=1))
        return cast(bytes, newest[0][0]) if newest else STREAM_START

    async def follow(self, stream: str, after: bytes, wait_s: float) -> tuple[StreamEntry, ...]:
        """Entries behind `after`, waiting up to wait_s for the first; none if none came. Raises Unavailable."""
        found = await self._within(
            wait_s + self._deadline_s,
            lambda: self._followers.xread({stream: after}, count=_FOLLOW_BATCH, block=max(1, round(wait_s * 1000))),
        )
        streams = cast(list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]], found or [])
        return tuple(StreamEntry(id, fields) for _, entries in streams for id, fields in entries)

    async def close(self) -> None:
        """Close every connection. The store cannot be used afterwards."""
        await self._calls.aclose()
        await self._followers.aclose()

    async def _ping(self) -> None:
        await self._calls.ping()

    def _prepared(self, script: str) -> AsyncScript:
        if script not in self._scripts:
            source = files("headrace.store").joinpath(f"{script}.lua").read_text()
            self._scripts[script] = self._calls.register_script(source)
        return self._scripts[script]

    async def _within(self, deadline_s: float, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(deadline_s):
                result = await call()
        except (TimeoutError, OSError, RedisError) as error:
            reason = str(error) or f"no answer within {deadline_s:g} s"
            self._note(False, reason)
            raise Unavailable(
                f"Redis at {self._where} is away: {reason}.",
                remedy="Check that it runs and can be reached.",
                retry_after_s=self._deadline_s,
            ) from error
        self._note(True, "")
        return result

    def _note(self, healthy: bool, reason: str) -> None:
        if healthy == self._healthy:
            return
        self._healthy = healthy
        if healthy:
            log.info("store.connected", redis=self._where)
        else:
            log.warning("store.lost", redis=self._where, reason=reason)


async def _reply(call: Awaitable[object]) -> Reply:
    return cast(Reply, await call)
