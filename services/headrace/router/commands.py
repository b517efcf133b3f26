"""The outgoing side of one attachment: commands in order, except that aborts overtake. Knows no stream."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from headrace.core.jobs import Abort, Activate, Command, Drain, Freeze, Hello, JobKey, Meet, Submit


class CommandQueue:
    """Holds commands until the stream takes them; closing it ends the stream's commands."""

    def __init__(self, hello: Hello) -> None:
        self._queue: deque[Command] = deque([hello])
        self._news = asyncio.Event()
        self._news.set()
        self._closed = False

    def put(self, command: Submit | Activate | Meet | Freeze | Drain) -> None:
        self._queue.append(command)
        self._news.set()

    def abort(self, key: JobKey, *, lost: bool = False) -> bool:
        """Overtakes everything but a hello. True if the submit had not left yet and was taken back instead.

        lost: the job's peer is dead."""
        kept = [command for command in self._queue if _key(command) != key]
        unsent = any(isinstance(command, Submit) for command in self._queue if _key(command) == key)
        greeting = kept[:1] if kept and isinstance(kept[0], Hello) else []
        aborts: list[Command] = [] if unsent else [Abort(key, lost)]
        self._queue = deque([*greeting, *aborts, *kept[len(greeting) :]])
        self._news.set()
        return unsent

    @property
    def unsent(self) -> frozenset[JobKey]:
        """Jobs that the stream has not taken."""
        return frozenset(command.job.key for command in self._queue if isinstance(command, Submit))

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def stream(self) -> AsyncIterator[Command]:
        while not self._closed:
            await self._news.wait()
            while self._queue and not self._closed:
                yield self._queue.popleft()
            if not self._closed and not self._queue:
                self._news.clear()


def _key(command: Command) -> JobKey | None:
    match command:
        case Submit(job):
            return job.key
        case Activate(key) | Abort(key) | Freeze(key):
            return key
        case Hello() | Meet() | Drain():
            return None
