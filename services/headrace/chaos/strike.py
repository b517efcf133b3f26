"""The blows: what a fault does to a process, and what ends it.

Each is struck at once and ends by itself or is mended by us, who are the cluster's supervisor.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.chaos.cells import Cell, Fault, Target
from headrace.chaos.cluster import STOP_S, Cluster
from headrace.chaos.members import Kind, of_kind
from headrace.chaos.probes import Pair
from headrace.core.errors import InternalError

# For how long a process is frozen or cut off: longer than any keepalive.
OUTAGE_S = 4.0
_DIES_S = 5.0


@dataclass(frozen=True, slots=True)
class Blow:
    """victim: the process that is struck. apart_from: those that it is parted from, by a partition."""

    fault: Fault
    victim: str
    apart_from: tuple[str, ...] = ()
    graceful: bool = False

    @property
    def breaks_connections(self) -> bool:
        """Whether whoever is connected to the victim may find the connection broken."""
        return self.fault is Fault.KILL or (self.fault is Fault.RESTART and not self.graceful)


def aimed(cell: Cell, pair: Pair, cluster: Cluster) -> Blow:
    """The blow of a cell at those who serve the held request. Odd seeds part a worker from its peer only, and restart
    without asking."""
    victim = _VICTIMS[cell.target](pair)
    odd = bool(cell.seed % 2)
    others = tuple(member.name for member in cluster.members if member.name != victim)
    if cell.target is Target.GATEWAY:
        others = tuple(member.name for member in of_kind(cluster.members, Kind.ROUTER))
    if odd and cell.target in (Target.PREFILL, Target.DECODE):
        others = (pair.decode if cell.target is Target.PREFILL else pair.prefill,)
    return Blow(cell.fault, victim, others if cell.fault is Fault.PARTITION else (), graceful=not odd)


async def strike(cluster: Cluster, blow: Blow) -> None:
    """Returns once the fault is there."""
    match blow.fault:
        case Fault.KILL:
            cluster.signal(blow.victim, signal.SIGKILL)
            await cluster.ended(blow.victim, _DIES_S)
        case Fault.FREEZE:
            cluster.signal(blow.victim, signal.SIGSTOP)
        case Fault.PARTITION:
            assert cluster.networks is not None, "partitions are skipped where there are no namespaces"
            await cluster.networks.cut(blow.victim, blow.apart_from)
        case Fault.RESTART:
            cluster.signal(blow.victim, signal.SIGTERM if blow.graceful else signal.SIGKILL)
        case _:
            raise InternalError(f"{blow.fault.value} is no fault of a process.")


async def pass_by(cluster: Cluster, blow: Blow) -> tuple[str, ...]:
    """Wait for the end of what ends by itself, and start again who restarts. A killed process stays dead: the rest
    must carry on. Returns what hung, in sentences."""
    match blow.fault:
        case Fault.FREEZE:
            await asyncio.sleep(OUTAGE_S)
            cluster.signal(blow.victim, signal.SIGCONT)
        case Fault.PARTITION:
            await asyncio.sleep(OUTAGE_S)
            await clear(cluster, blow)
        case Fault.RESTART:
            stopped = await cluster.ended(blow.victim, STOP_S)
            if not stopped:
                cluster.signal(blow.victim, signal.SIGKILL)
                await cluster.ended(blow.victim, _DIES_S)
            await cluster.launch(blow.victim)
            return () if stopped else (f"{blow.victim} did not stop within {STOP_S:g} s of being asked",)
    return ()


async def clear(cluster: Cluster, blow: Blow) -> None:
    """Nothing of the blow that could last is left. May be called at any time."""
    if blow.fault is Fault.PARTITION and cluster.networks is not None:
        await cluster.networks.heal(blow.victim)
    if blow.fault is Fault.FREEZE:
        cluster.signal(blow.victim, signal.SIGCONT)


_VICTIMS: Mapping[Target, Callable[[Pair], str]] = {
    Target.PREFILL: lambda pair: pair.prefill,
    Target.DECODE: lambda pair: pair.decode,
    Target.ROUTER: lambda pair: pair.router,
    Target.GATEWAY: lambda pair: "gateway",
    Target.REDIS: lambda pair: "redis",
}
