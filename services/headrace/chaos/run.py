"""A whole run: a cluster a link, its undisturbed answers, then case after case, and the outcome.

Owns the directories, the sockets and the clusters, and takes all of them away again.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.chaos.case import Arena, Row, run_case, unplayed
from headrace.chaos.cells import Cell, Fault
from headrace.chaos.cluster import Cluster
from headrace.chaos.control import Control
from headrace.chaos.ground import LOOPBACK, networks, own_model, ports, way_to_namespaces, without_namespaces
from headrace.chaos.members import Settings, members
from headrace.chaos.proxies import Proxies
from headrace.chaos.table import Outcome, row_json
from headrace.chaos.whole import come_up
from headrace.core.errors import HeadraceError, StartupError

# Beside the logs: a line of JSON a case, written when it is over.
ROWS = "rows.jsonl"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. model: a directory or file; "": one of our own. network: as `without_namespaces` has it. logs:
    the directory that processes write to, and everything else that is kept.

    python, environment: of the processes.
    """

    cells: Sequence[Cell]
    model: str
    network: str
    logs: Path
    python: str
    environment: Mapping[str, str]


async def run(plan: Plan) -> Outcome:
    """Play all cells that can be played here. Raises StartupError, also if none can."""
    why = without_namespaces(plan.network)
    playable = [cell for cell in plan.cells if not (why and cell.fault is Fault.PARTITION)]
    if not playable:
        raise StartupError(
            f"No case that was chosen can be played: {why}, so nothing can be parted.",
            remedy=f"{way_to_namespaces(plan.network)}, or choose other faults than partition.",
        )
    skipped = [cell.id for cell in plan.cells if cell not in playable]
    plan.logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows, hung = await _played(plan, playable, plan.logs, in_namespaces=not why)
    return Outcome(rows, skipped, f"{why}, so nothing can be parted", hung, time.monotonic() - began)


async def _played(
    plan: Plan, cells: Sequence[Cell], directory: Path, *, in_namespaces: bool
) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    hung: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncExitStack() as closing:
        model = plan.model or str(await asyncio.to_thread(own_model, directory))
        own_networks, hosts = await networks(closing, in_namespaces)
        # It is left before the namespaces are: what it draws is not disturbed by their end.
        progress = closing.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = progress.add_task("chaos", total=len(cells))
        for (link, proxied), together in groupby(cells, key=lambda cell: (cell.link, cell.proxied)):
            left = list(together)
            while left:
                everyone = members(hosts, ports(len(hosts), same=own_networks is not None))
                cluster = Cluster(everyone, _settings(plan, model, link, directory), directory, own_networks)
                proxies = Proxies(own_networks.outside if own_networks else LOOPBACK) if proxied else None
                done, stuck = await _on_one_cluster(left, cluster, proxies, progress, task)
                rows += done
                hung += stuck
                left = left[len(done) :]
    return rows, hung


async def _on_one_cluster(
    cells: Sequence[Cell], cluster: Cluster, proxies: Proxies | None, progress: Progress, task: TaskID
) -> tuple[list[Row], tuple[str, ...]]:
    """Play cases until all are played or the cluster is broken; the rows, and who did not stop in time."""
    rows: list[Row] = []
    hung: tuple[str, ...] = ()
    control = Control(cluster.settings.socket, None if proxies is None else proxies.advertised)
    await control.start()
    try:
        progress.update(task, description=f"{cluster.settings.link}: starting")
        async with come_up(cluster) as whole:
            run_word = secrets.token_hex(3)
            arena = Arena(cluster, control, whole.client, whole.asks, whole.references, run_word, proxies)
            for cell in cells:
                progress.update(task, description=cell.id)
                rows.append(await _row(arena, cell))
                _note(cluster.directory / ROWS, rows[-1])
                progress.update(task, advance=1)
                if rows[-1].broken:
                    break
    finally:
        hung = await cluster.stop()
        await control.close()
        if proxies is not None:
            await proxies.close()
    return rows, hung


async def _row(arena: Arena, cell: Cell) -> Row:
    try:
        return await run_case(arena, cell)
    except HeadraceError as error:
        return unplayed(cell, error)


def _note(file: Path, row: Row) -> None:
    """Cases that were played count though the run be broken off."""
    with file.open("a") as out:
        out.write(json.dumps(row_json(row)) + "\n")


def _settings(plan: Plan, model: str, link: str, directory: Path) -> Settings:
    where = directory / f"{link}.sock"
    return Settings(plan.python, plan.environment, Path(model), directory / "cache", link, where)
