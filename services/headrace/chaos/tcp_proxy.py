"""TcpProxy: what stands between a tcp link and its peers, and does one wrong thing to what they say.

Owns its listener, the connections it joins, and both directions of each. It follows the link's protocol message by
message, and passes on every other one as it came. Which wrong thing is `tcp_fault`'s.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from headrace.chaos.tcp_fault import Harm, TcpFault, harmed
from headrace.core.errors import DeadlineExceeded
from headrace.transfer.data_address import DataAddress
from headrace.transfer.tcp_head import HEAD_BYTES, Head, ProtocolBreach, Verb, unpack_head

_DIAL_S = 5.0
_FLUSH_S = 1.0
_READ_AHEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class _Message:
    """raw: the head's bytes and the payload's."""

    head: Head
    raw: bytes


class _Cut(Exception):
    """The connection ends here."""


class TcpProxy:
    """Stands before one life of a tcp link, whose address is `behind`. Used on one event loop.

    It keeps two messages a direction in memory at most, each as large as a frame.
    """

    def __init__(self, behind: str) -> None:
        """Raises ValueError for what is no address of a tcp link."""
        self._behind = DataAddress.parse(behind)
        self._server: asyncio.Server | None = None
        self._joined: set[asyncio.Task[None]] = set()
        self._fault: TcpFault | None = None
        self._passed = 0
        self._struck: asyncio.Queue[Head] = asyncio.Queue()

    async def start(self, host: str) -> str:
        """Listen on any port of `host`, a numeric address. Returns what the link is to advertise: this place, and its
        own nonce. Raises OSError."""
        self._server = await asyncio.start_server(self._join, host, 0, limit=_READ_AHEAD)
        return str(replace(self._behind, host=host, port=self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Cut everything that goes through here."""
        if self._server is not None:
            self._server.close()
        for task in self._joined:
            task.cancel()
        if self._joined:
            await asyncio.wait(self._joined)

    def arm(self, fault: TcpFault) -> None:
        """In place of the one that was armed. Forgets what was struck before."""
        self._fault, self._passed = fault, 0
        self._struck = asyncio.Queue()

    def disarm(self) -> None:
        self._fault = None

    async def struck(self, timeout_s: float) -> Head:
        """Wait until the armed fault strikes a message; what that said. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._struck.get()
        except TimeoutError as error:
            raise DeadlineExceeded(f"No message was there to be struck within {timeout_s:g} s.") from error

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one caller until either side leaves; then the other one is left too."""
        task = asyncio.current_task()
        assert task is not None
        self._joined.add(task)
        writers = [writer]
        try:
            async with asyncio.timeout(_DIAL_S):
                beyond = await asyncio.open_connection(self._behind.host, self._behind.port, limit=_READ_AHEAD)
            writers.append(beyond[1])
            await _first_ended(self._pass(reader, beyond[1]), self._pass(beyond[0], writer))
            await _flushed(writers)
        except OSError:
            pass  # the link behind is not there: the caller hears that as it would without a proxy
        finally:
            for one in writers:
                one.transport.abort()
            self._joined.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until it ends or is cut."""
        with contextlib.suppress(OSError, EOFError, ProtocolBreach, _Cut):
            while True:
                message = await _read(reader)
                fault = self._strikes(message.head)
                if fault is None:
                    await _write(writer, message.raw)
                else:
                    self._struck.put_nowait(message.head)
                    await _harm(fault, message, reader, writer)

    def _strikes(self, head: Head) -> TcpFault | None:
        fault = self._fault
        if fault is None or not fault.fits(head):
            return None
        self._passed += 1
        if self._passed <= fault.nth:
            return None
        self._fault = None
        return fault


async def _harm(fault: TcpFault, message: _Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if fault.harm is Harm.DELAYED:
        await asyncio.sleep(fault.seconds)
    elif fault.harm is Harm.REORDERED:
        await _let_overtake(fault.seconds, reader, writer, behind=message)
        return
    await _write(writer, harmed(fault.harm, message.raw, HEAD_BYTES))
    if fault.harm is Harm.CUT:
        raise _Cut


async def _let_overtake(
    seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, behind: _Message
) -> None:
    """Pass on the next message first, if it comes in time."""
    coming = asyncio.create_task(_read(reader))
    try:
        await asyncio.wait({coming}, timeout=seconds)
        if coming.done():
            await _write(writer, coming.result().raw)
            await _write(writer, behind.raw)
        else:
            await _write(writer, behind.raw)
            await _write(writer, (await coming).raw)
    finally:
        coming.cancel()


async def _read(reader: asyncio.StreamReader) -> _Message:
    """Raises OSError, EOFError or ProtocolBreach."""
    raw = await reader.readexactly(HEAD_BYTES)
    head = unpack_head(raw)
    if head.verb is Verb.DATA:
        raw += await reader.readexactly(head.nbytes)
    return _Message(head, raw)


async def _write(writer: asyncio.StreamWriter, raw: bytes) -> None:
    writer.write(raw)
    await writer.drain()


async def _first_ended(*ways: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends."""
    tasks = {asyncio.create_task(way) for way in ways}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _flushed(writers: list[asyncio.StreamWriter]) -> None:
    """Close them, what was written included, unless somebody does not read."""
    for writer in writers:
        writer.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_FLUSH_S):
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
