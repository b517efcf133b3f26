"""Control: the harness's end of its workers' chaos sockets.

It aims at one request and hears that it hit. Owns the listener and one line a worker. What a worker does with an order
is `agent`'s; who is struck when is decided by whoever calls this.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from headrace.chaos.line import Line
from headrace.chaos.messages import (
    Arrived,
    Damage,
    Disarm,
    FrameKind,
    Held,
    Hold,
    LetGo,
    Opened,
    Phase,
    Release,
    Struck,
    WireFault,
)
from headrace.core.errors import DeadlineExceeded, NotFound

__all__ = ["Arrived", "Control", "Damage", "FrameKind", "Held", "Hold", "LetGo", "Phase", "Struck", "WireFault"]

# What a worker's link is to call its address: asked with the worker's name and the address that the link has. It may
# start a proxy first. "" leaves the address as it is.
Proxied = Callable[[str, str], Awaitable[str]]


class Control:
    """Listens on a unix socket that workers are given as `--chaos-socket`.

    A worker has one hold and one wire fault armed at most; a new one takes the place of the former. Each strikes once.
    Methods raise NotFound for a worker that is not connected, WorkerLost if it leaves meanwhile, and DeadlineExceeded.
    A worker that is started again connects anew under its name, with nothing armed.
    """

    def __init__(self, path: Path, proxied: Proxied | None = None) -> None:
        self._path = path
        self._proxied = proxied
        self._lines: dict[str, Line] = {}
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError if the socket cannot be made."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        """Workers then let go of what they hold, and go on without it."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        self._path.unlink(missing_ok=True)

    def workers(self) -> Mapping[str, Arrived]:
        """Those that are connected, by name."""
        return {name: line.who for name, line in self._lines.items()}

    async def arrived(self, worker: str, timeout_s: float, *, after: str = "") -> Arrived:
        """Wait until `worker` is connected. after: an incarnation of it that does not count."""

        def here() -> bool:
            line = self._lines.get(worker)
            return line is not None and line.who.incarnation != after

        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(here)
        except TimeoutError as error:
            raise DeadlineExceeded(f"Worker {worker} did not connect within {timeout_s:g} s.") from error
        return self._lines[worker].who

    async def arm(self, worker: str, hold: Hold) -> None:
        """Returns once the worker will hold."""
        await self._line(worker).order(hold)

    async def held(self, worker: str, timeout_s: float) -> Held:
        """Wait until a job reached the phase of the armed hold."""
        return await self._line(worker).hear(Held, timeout_s)

    async def let_go(self, worker: str, timeout_s: float) -> LetGo:
        """Wait until the hold is over, by release or by itself."""
        return await self._line(worker).hear(LetGo, timeout_s)

    async def release(self, worker: str) -> None:
        """Let what is held go on. Does nothing if nothing is held."""
        await self._line(worker).order(Release())

    async def arm_wire(self, worker: str, fault: WireFault) -> None:
        """Returns once the worker's link will do it."""
        await self._line(worker).order(fault)

    async def struck(self, worker: str, timeout_s: float) -> Struck:
        """Wait until the armed wire fault was applied."""
        return await self._line(worker).hear(Struck, timeout_s)

    async def disarm(self, worker: str) -> None:
        """Forget the hold and the wire fault; what is held goes on."""
        await self._line(worker).order(Disarm())

    def _line(self, worker: str) -> Line:
        line = self._lines.get(worker)
        if line is None:
            raise NotFound(f"Worker {worker} is not connected to the chaos socket.")
        return line

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear one worker until it leaves."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, ValueError):
                await self._keep(await Line.answer(reader, writer))
        finally:
            self._serving.discard(task)
            writer.close()

    async def _keep(self, line: Line) -> None:
        name = line.who.worker
        async with self._changed:
            self._lines[name] = line
            self._changed.notify_all()
        try:
            await line.attend(partial(self._advertised, name))
        finally:
            # A newer one of the same name stays.
            if self._lines.get(name) is line:
                del self._lines[name]

    async def _advertised(self, worker: str, opened: Opened) -> str:
        return "" if self._proxied is None else await self._proxied(worker, opened.address)
