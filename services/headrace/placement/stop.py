"""When a process should stop: a signal, or the end of its lifeline. One event that everything waits for."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

_INTERRUPTED = 130


class Stop:
    """`wait()` returns once the process was asked to stop. A second signal ends the process at once.

    last_act: what is still done then. It must return at once.
    """

    def __init__(self) -> None:
        self.last_act: Callable[[], None] | None = None
        self._event = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None

    @staticmethod
    async def arm(*, lifeline: bool) -> "Stop":
        """Listen for SIGINT, SIGTERM, the end of the terminal and, with `lifeline`, the closing of standard input."""
        stop = Stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, *_terminal_ends()):
            loop.add_signal_handler(number, stop._on_signal)
        if lifeline:
            stop._transport, _ = await loop.connect_read_pipe(lambda: _Lifeline(stop), sys.stdin)
        return stop

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def ask(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    async def unless_asked(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` to its end (True), or give it up when the process is asked to stop first (False)."""
        task = asyncio.create_task(work)
        asked = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            for each in (task, asked):
                each.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)

    def _on_signal(self) -> None:
        if self._event.is_set():
            try:
                if self.last_act is not None:
                    self.last_act()
            finally:
                os._exit(_INTERRUPTED)
        self._event.set()


def _terminal_ends() -> tuple[signal.Signals, ...]:
    """SIGHUP, but where whoever started the process asked that it outlive its terminal, as nohup does."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


class _Lifeline(asyncio.Protocol):
    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop.ask()
