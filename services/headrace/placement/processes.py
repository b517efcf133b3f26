"""Child processes: start one, know when it is ready, stop it, learn why it ended.

Knows nothing of models or roles. A child says that it is ready by printing one JSON object on standard output, logs
to standard error (a file here), and stops when its standard input closes, so that none outlives this process
however it ends. Whatever else comes on standard output (native libraries print their warnings there) goes to the log
too: a child must neither be mistaken by it nor wait for a full pipe.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import StartupError

_LOG_TAIL_BYTES = 4096
_READ_BYTES = 65_536


# Stands in a command line for the address of the machine that it will run on.
MACHINE_ADDRESS = "{machine_address}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one tensor-parallel rank needs on a machine. Fractions are shares of a core or GPU."""

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run. argv begins with a Python interpreter. log: where standard error goes, appended over restarts.

    bundles: what it needs of whatever machine it is placed on, one a rank and all on the same; none: it runs beside us.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    bundles: tuple[Bundle, ...] = ()

    def on(self, machine_address: str) -> "ProcessSpec":
        """The same on the machine that we are on, which others reach at this address."""
        argv = tuple(word.replace(MACHINE_ADDRESS, machine_address) for word in self.argv)
        return replace(self, argv=argv, log=self.log.expanduser())


class Child:
    """One life of one process."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self._process = process

    @staticmethod
    async def start(spec: ProcessSpec) -> "Child":
        """Start it in a process group of its own: a terminal's Ctrl-C is for us, and we tell the child in order.

        Not in a session of its own: Linux deals processor time out to sessions first, and where all cores are taken a
        process that wakes in one of several waits for hundreds of milliseconds.
        """
        with spec.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=dict(spec.environment),
                process_group=0,
            )
        return Child(spec, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def ready(self, within_s: float) -> dict[str, str]:
        """What the child says of itself once it serves. Raises StartupError if it ends before or takes longer."""
        try:
            async with asyncio.timeout(within_s):
                said = await self._announcement()
                if said is not None:
                    return said
                code = await self._process.wait()
        except TimeoutError:
            sentence = f"{self.spec.name} does not serve after {within_s:g} s."
            raise StartupError(sentence, remedy=f"Its log is {self.spec.log}.") from None
        raise StartupError(f"{self.spec.name} did not start: {self._last_words(code)}")

    async def ended(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        listening = asyncio.create_task(self._listen(), name=f"output of {self.spec.name}")
        try:
            return await self._process.wait()
        finally:
            listening.cancel()
            await asyncio.wait({listening})

    def interrupt(self) -> None:
        """Ask for a graceful stop: drain, then exit."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    async def stop(self, grace_s: float) -> int:
        """Graceful stop, then the hard one after `grace_s`. Safe to repeat; returns the exit code."""
        self.interrupt()
        try:
            async with asyncio.timeout(grace_s):
                return await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()
        finally:
            self._close_lifeline()

    async def _announcement(self) -> dict[str, str] | None:
        """The first JSON object among the lines; None if the output ends without one."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            if isinstance(said, dict):
                return {key: str(value) for key, value in said.items()}
            self._log(line)
        return None

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while said := await self._process.stdout.read(_READ_BYTES):
            self._log(said)

    def _log(self, said: bytes) -> None:
        # What cannot be kept (a full disk) must still be read, or the child would wait.
        with contextlib.suppress(OSError), self.spec.log.open("ab") as log:
            log.write(said)

    def _close_lifeline(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _last_words(self, code: int) -> str:
        with self.spec.log.open("rb") as log:
            log.seek(max(0, self.spec.log.stat().st_size - _LOG_TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("headrace: ") if lines else "it said nothing."
        return last if code == 2 else f"it ended with code {code}. {last} Its log is {self.spec.log}."
