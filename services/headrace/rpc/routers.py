"""Routers: those that a gateway may ask, which of them take requests now, and whose turn it is.

Owns the connections, the watch over each, and which routers the configured names mean at present. Knows no requests.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import structlog

from headrace.core.errors import HeadraceError, RouterLost
from headrace.rpc.clients import FleetClient, InferenceClient, connect
from headrace.rpc.contracts import Fleet, Inference

log = structlog.get_logger()

Locate = Callable[[], Awaitable[tuple[str, ...]]]
"""Addresses of all routers now; none where no name resolves."""


@dataclass(frozen=True, slots=True)
class Door:
    """The way to one router. serving: whether it takes requests, now and at every change; raises HeadraceError when
    it is out of reach, and can then be called again."""

    address: str
    inference: Inference
    fleet: Fleet
    serving: Callable[[], AsyncGenerator[bool, None]]
    close: Callable[[], Awaitable[None]]


def door_to(address: str, admin_key: str = "") -> Door:
    """Over gRPC, by one connection: what the watch finds out of it is true for every call. admin_key: the fleet's."""
    channel = connect(address)
    inference, fleet = (
        InferenceClient(address, channel=channel),
        FleetClient(address, admin_key=admin_key, channel=channel),
    )
    return Door(address, inference, fleet, inference.serving, inference.close)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. rest_s: for which a router that lost a request gets no other, unless it says before that it serves.
    again_s: between attempts to watch one that is out of reach. locate_s: between looks at what names mean; 0: once."""

    rest_s: float = 1.0
    again_s: float = 0.25
    locate_s: float = 5.0


@dataclass(slots=True, eq=False)
class _Post:
    """serving: None before its first word. calls: those that use it; one that is listed no more is closed at zero."""

    door: Door
    serving: bool | None = None
    rested: asyncio.TimerHandle | None = None
    calls: int = 0
    listed: bool = True
    watching: "asyncio.Task[None] | None" = None

    @property
    def usable(self) -> bool:
        return bool(self.serving) and self.rested is None


class Routers:
    """Start it, close it. A router is used from its first word that it serves until it says or shows otherwise."""

    def __init__(self, locate: Locate, reach: Callable[[str], Door] = door_to, pace: Pace = Pace()) -> None:
        self._locate = locate
        self._reach = reach
        self._pace = pace
        self._posts: list[_Post] = []
        self._leaving: list[_Post] = []
        self._turn = 0
        self._news = asyncio.Event()
        self._locating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look where the routers are and begin to watch them."""
        self._list(await self._locate())
        if self._pace.locate_s:
            self._locating = asyncio.create_task(self._keep_located(), name="locate routers")

    async def close(self) -> None:
        """Close all connections. Calls in progress fail with RouterLost."""
        if self._locating is not None:
            self._locating.cancel()
            await asyncio.wait({self._locating})
        for post in (*self._posts, *self._leaving):
            await self._shut(post)
        self._posts, self._leaving = [], []

    async def turn(self, within_s: float) -> Door:
        """The next of those that serve. Raises RouterLost if for `within_s` seconds there is none."""
        try:
            async with asyncio.timeout(within_s):
                while (door := self._next()) is None:
                    await self._news.wait()
        except TimeoutError:
            raise self.none() from None
        return door

    def answering(self) -> tuple[Door, ...]:
        """All but those known not to serve: in the configured order, so that the same one is asked as long as it is
        well, and those last that have yet to say a word or have just lost a call."""
        posts = sorted(self._posts, key=lambda post: not post.usable)
        return tuple(post.door for post in posts if post.serving is not False)

    @asynccontextmanager
    async def using(self, door: Door) -> AsyncIterator[None]:
        """A call to `door`: its connection stays until it has ended, also if the router leaves the list."""
        post = next((post for post in self._posts if post.door is door), None)
        if post is None:
            raise RouterLost(f"The router at {door.address} has left.")
        post.calls += 1
        try:
            yield
        finally:
            post.calls -= 1
            if not post.listed and not post.calls:
                await self._dismiss(post)

    def lost(self, door: Door) -> None:
        """A call to it failed because it has gone or goes: others have their turn first."""
        for post in self._posts:
            if post.door is door and post.rested is None:
                loop = asyncio.get_running_loop()
                post.rested = loop.call_later(self._pace.rest_s, self._rested, post)

    def none(self) -> RouterLost:
        """What callers are told when there is nobody to ask."""
        where = ", ".join(post.door.address for post in self._posts) or "any of the configured names"
        return RouterLost(f"No router answers at {where}.", remedy="Start one, or check --router.", retry_after_s=1.0)

    def _next(self) -> Door | None:
        count = len(self._posts)
        for index in (place % count for place in range(self._turn, self._turn + count)):
            if self._posts[index].usable:
                self._turn = (index + 1) % count
                return self._posts[index].door
        return None

    def _list(self, addresses: tuple[str, ...]) -> None:
        """From now on these are the routers. Without any, those known before: a name service may be away."""
        if not addresses:
            return
        known = {post.door.address: post for post in self._posts}
        self._posts = [known.pop(address) if address in known else self._enter(address) for address in addresses]
        self._turn %= len(addresses)
        for post in known.values():
            post.listed = False
            self._leaving.append(post)
            log.info("router.leaves", router=post.door.address, calls=post.calls)

    def _enter(self, address: str) -> _Post:
        post = _Post(self._reach(address))
        post.watching = asyncio.create_task(self._watch(post), name=f"watch {address}")
        return post

    async def _keep_located(self) -> None:
        while True:
            await asyncio.sleep(self._pace.locate_s)
            self._list(await self._locate())
            for post in [post for post in self._leaving if not post.calls]:
                await self._dismiss(post)

    async def _watch(self, post: _Post) -> None:
        while True:
            reason = "It says so."
            try:
                async with aclosing(post.door.serving()) as words:
                    async for serving in words:
                        self._heard(post, serving, reason)
            except HeadraceError as error:
                reason = error.message
            except Exception as error:
                log.exception("router.watch_failed", router=post.door.address)
                reason = str(error)
            self._heard(post, False, reason)
            await asyncio.sleep(self._pace.again_s)

    def _heard(self, post: _Post, serving: bool, reason: str) -> None:
        if serving != post.serving:
            if serving:
                log.info("router.serves", router=post.door.address)
            else:
                log.warning("router.away", router=post.door.address, reason=reason)
        post.serving = serving
        if serving and post.rested is not None:
            post.rested.cancel()
            post.rested = None
        self._changed()

    def _rested(self, post: _Post) -> None:
        post.rested = None
        self._changed()

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _dismiss(self, post: _Post) -> None:
        """Twice is once: its last call may end while it is being looked for."""
        await self._shut(post)
        if post in self._leaving:
            self._leaving.remove(post)

    async def _shut(self, post: _Post) -> None:
        if post.rested is not None:
            post.rested.cancel()
        if post.watching is not None:
            post.watching.cancel()
            await asyncio.wait({post.watching})
        await post.door.close()
