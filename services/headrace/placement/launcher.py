"""The border between keeping processes running and where they run: on this machine or in a cluster.

A launcher finds places and starts lives in them; it restarts nothing. The supervisor does, and knows no place.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.placement.processes import ProcessSpec


class Life(Protocol):
    """One life of one process, from its start to its end. A restart is another life."""

    @property
    def spec(self) -> ProcessSpec: ...

    @property
    def pid(self) -> int:
        """Its process id on the machine that it runs on."""

    async def ready(self, within_s: float) -> dict[str, str]:
        """What the process says of itself once it serves; asked once. Raises StartupError, with its last words, if it
        ends before, and if it takes longer."""

    async def ended(self) -> int:
        """Wait for the end; the exit code, negative for a signal. A machine that is lost ends its processes."""

    async def stop(self, grace_s: float) -> int:
        """Ask it to end, and end it the hard way after `grace_s`. Safe to repeat, and after the end; the exit code.
        When it returns, nothing of this life runs any more."""


class Launcher(Protocol):
    """Places for processes, and their starts.

    `reserve` comes first, `close` last; a spec may be launched again and again in between, one life at a time.
    """

    async def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        """Hold what these need until `close`. What cannot be had is not waited for: raises StartupError, which says
        in one sentence what is missing, within 5 s; nothing is held then."""

    async def launch(self, spec: ProcessSpec) -> Life:
        """Start one life of a reserved spec. Raises StartupError if it cannot be started there."""

    async def close(self) -> None:
        """Give every place back. Lives still running are ended without grace. Safe to repeat."""
