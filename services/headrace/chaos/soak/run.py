"""A whole soak: a cluster a link, its undisturbed answers, then lap after lap, and the outcome.

Owns the directories, the sockets and the clusters, and takes all of them away again.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.chaos.cluster import Cluster
from headrace.chaos.control import Control
from headrace.chaos.ground import networks, own_model, ports, without_namespaces
from headrace.chaos.members import Settings, members
from headrace.chaos.mix import mix
from headrace.chaos.soak.blows import Blows
from headrace.chaos.soak.crowd import Crowd
from headrace.chaos.soak.doors import Doors
from headrace.chaos.soak.lap import LapRow, Stage, play
from headrace.chaos.soak.plan import Lap, Shape, plan
from headrace.chaos.soak.quiet import Quiet
from headrace.chaos.soak.remains import remains, shared_memory
from headrace.chaos.soak.table import LinkOutcome, Outcome, lap_line
from headrace.chaos.verdict import Counts
from headrace.chaos.whole import Whole, come_up
from headrace.core.errors import HeadraceError
from headrace.testbed.namespaces import Namespaces

# Beyond a request's own time: for a door that is frozen meanwhile.
_GRACE_S = 12.0


@dataclass(frozen=True, slots=True)
class Soak:
    """What to run. requests: on each of the links. model: a directory or file; "": one of our own. network: as
    `without_namespaces` has it. logs: the directory that processes write to.

    python, environment: of the processes.
    """

    seed: int
    requests: int
    laps: int
    clients: int
    links: Sequence[str]
    model: str
    network: str
    logs: Path
    python: str
    environment: Mapping[str, str]


def laps_of(soak: Soak) -> tuple[Lap, ...]:
    """The plan, the same for every link. Raises StartupError if the network that is asked for cannot be had."""
    names = [one.name for one in mix("")]
    return plan(Shape(soak.seed, soak.requests, soak.laps, names, not without_namespaces(soak.network)))


async def run(soak: Soak, tell: Callable[[str], None]) -> Outcome:
    """tell: takes a line a lap, and before them one of what cannot be played. Raises StartupError if a cluster does
    not come up."""
    why = without_namespaces(soak.network)
    laps = laps_of(soak)
    if why:
        tell(f"Nobody is parted: {why}.")
    soak.logs.mkdir(parents=True, exist_ok=True)
    began, before = time.monotonic(), shared_memory()
    outcomes = []
    async with AsyncExitStack() as closing:
        model = soak.model or str(own_model(soak.logs))
        own_networks, hosts = await networks(closing, not why)
        for link in soak.links:
            everyone = members(hosts, ports(len(hosts), same=own_networks is not None))
            where = soak.logs / f"{link}.sock"
            settings = Settings(soak.python, soak.environment, Path(model), soak.logs / "cache", link, where)
            cluster = Cluster(everyone, settings, soak.logs, own_networks)
            tell(f"{link}: starting")
            outcomes.append(await _on_link(cluster, laps, soak.clients, tell))
        left = await _remains(before, own_networks)
    return Outcome(soak.seed, outcomes, left, why, time.monotonic() - began)


async def _remains(before: frozenset[str], own_networks: Namespaces | None) -> tuple[str, ...]:
    """Looked for while the namespaces are ours still; then they are taken away, and must be gone."""
    left = await remains(before, own_networks)
    if own_networks is None:
        return left
    await own_networks.remove()
    return (*left, *(f"namespace {name} is left" for name in own_networks.left()))


async def _on_link(cluster: Cluster, laps: Sequence[Lap], clients: int, tell: Callable[[str], None]) -> LinkOutcome:
    """Lap after lap, until all are played or the cluster is broken."""
    began = time.monotonic()
    rows: list[LapRow] = []
    hung: tuple[str, ...] = ()
    control = Control(cluster.settings.socket)
    await control.start()
    try:
        async with come_up(cluster) as whole:
            stage = _stage(cluster, control, whole, clients)
            for lap in laps:
                rows.append(await _row(stage, lap))
                tell(lap_line(rows[-1], len(laps)))
                if rows[-1].broken:
                    break
    finally:
        hung = await cluster.stop()
        await control.close()
    return LinkOutcome(cluster.settings.link, rows, hung, time.monotonic() - began)


async def _row(stage: Stage, lap: Lap) -> LapRow:
    try:
        return await play(stage, lap)
    except HeadraceError as error:
        return LapRow(lap, counts=Counts(hung=1), complaints=[f"it was broken off: {error}"], broken=True)


def _stage(cluster: Cluster, control: Control, whole: Whole, clients: int) -> Stage:
    client, doors = whole.client, Doors(cluster.members)
    within_s = cluster.settings.timeout_s + _GRACE_S
    crowd = Crowd(client, doors, whole.asks, clients=clients, run=secrets.token_hex(3), within_s=within_s)
    blows = Blows(cluster, control, client, doors)
    return Stage(cluster, client, crowd, blows, Quiet(client, cluster), whole.references)
