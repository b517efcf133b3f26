"""A whole run: a cluster a link, its undisturbed answers, then case after case, and the outcome.

Owns the directories, the sockets and the clusters, and takes all of them away again.
"""

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.chaos.case import Arena, Row, run_case, unplayed
from headrace.chaos.cells import Cell, Fault
from headrace.chaos.checkpoint import make_checkpoint
from headrace.chaos.client import Heard, ask
from headrace.chaos.cluster import Cluster
from headrace.chaos.control import Control
from headrace.chaos.members import MODEL, NAMES, Kind, Settings, members, of_kind
from headrace.chaos.mix import Ask, mix, salted, with_stop
from headrace.chaos.namespaces import Namespaces, namespaces, obstacle
from headrace.chaos.proxies import Proxies
from headrace.chaos.rest import until_at_rest, until_whole
from headrace.chaos.table import Outcome, row_json
from headrace.chaos.verdict import finished
from headrace.core.errors import HeadraceError, StartupError

# Beside the logs: a line of JSON a case, written when it is over.
ROWS = "rows.jsonl"
_LOOPBACK = "127.0.0.1"
_PORTS = (9000, 8000)
_UNDISTURBED_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. model: a directory or file; "": one of our own. network: "namespaces", "host", or "auto": whichever
    the machine allows. logs: the directory that processes write to, and everything else that is kept.

    python, environment: of the processes.
    """

    cells: Sequence[Cell]
    model: str
    network: str
    logs: Path
    python: str
    environment: Mapping[str, str]


async def run(plan: Plan) -> Outcome:
    """Play all cells that can be played here. Raises StartupError."""
    why = _without_namespaces(plan.network)
    playable = [cell for cell in plan.cells if not (why and cell.fault is Fault.PARTITION)]
    skipped = [cell.id for cell in plan.cells if cell not in playable]
    plan.logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows, hung = await _played(plan, playable, plan.logs, in_namespaces=not why)
    return Outcome(rows, skipped, f"{why}, so nothing can be parted", hung, time.monotonic() - began)


def _without_namespaces(network: str) -> str:
    """Why processes share this machine's network; "" if each gets its own. Raises StartupError."""
    if network == "host":
        return "processes share this machine's network"
    why = obstacle()
    if why and network == "namespaces":
        raise StartupError(f"There can be no namespaces: {why}.", remedy="Become root, or give --network=host.")
    return why


async def _played(
    plan: Plan, cells: Sequence[Cell], directory: Path, *, in_namespaces: bool
) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    hung: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncExitStack() as closing:
        model = plan.model or str(await asyncio.to_thread(_own_model, directory))
        networks, hosts = await _networks(closing, in_namespaces)
        # It is left before the namespaces are: what it draws is not disturbed by their end.
        progress = closing.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = progress.add_task("chaos", total=len(cells))
        for (link, proxied), together in groupby(cells, key=lambda cell: (cell.link, cell.proxied)):
            left = list(together)
            while left:
                everyone = members(hosts, _ports(len(hosts), same=networks is not None))
                cluster = Cluster(everyone, _settings(plan, model, link, directory), directory, networks)
                proxies = Proxies(networks.outside if networks else _LOOPBACK) if proxied else None
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
        async with _arena(cluster, control, proxies) as arena:
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


@asynccontextmanager
async def _arena(cluster: Cluster, control: Control, proxies: Proxies | None) -> AsyncIterator[Arena]:
    """A cluster that has come up whole, and what it answers undisturbed. Raises StartupError."""
    # A connection that a blow has broken is used for nothing else.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=None) as client:
        await cluster.start()
        amiss = await until_whole(client, cluster)
        if amiss:
            raise StartupError(f"The cluster does not come up: {'; '.join(amiss)}.", remedy="Read the logs.")
        asks, references = await _undisturbed(client, cluster)
        yield Arena(cluster, control, client, asks, references, secrets.token_hex(3), proxies)


async def _undisturbed(client: httpx.AsyncClient, cluster: Cluster) -> tuple[tuple[Ask, ...], Mapping[str, Heard]]:
    """The requests, with a stop string that occurs, and what each hears when nothing happens. Raises StartupError."""
    salt = secrets.token_hex(4)
    door = of_kind(cluster.members, Kind.GATEWAY)[0].url

    async def hear(one: Ask) -> Heard:
        heard = await ask(client, door, salted(one, salt), f"{salt}-{secrets.token_hex(4)}", _UNDISTURBED_S)
        if not finished(heard):
            raise StartupError(f"Undisturbed, {one.name} was not answered: {heard.errors or heard.cut or 'late'}.")
        return heard

    asks = {one.name: one for one in mix(MODEL)}
    asks["stop"] = with_stop(asks["stop"], (await hear(asks["stop"])).choices[0].text)
    references = {name: await hear(one) for name, one in asks.items()}
    held, _ = await until_at_rest(client, cluster)
    if held:
        raise StartupError(f"Undisturbed, the cluster does not come to rest: {'; '.join(held)}.")
    return tuple(asks.values()), references


async def _networks(closing: AsyncExitStack, in_namespaces: bool) -> tuple[Namespaces | None, Mapping[str, str]]:
    if not in_namespaces:
        return None, dict.fromkeys(NAMES, _LOOPBACK)
    made = await closing.enter_async_context(namespaces(tuple(NAMES)))
    return made, made.hosts


def _note(file: Path, row: Row) -> None:
    """Cases that were played count though the run be broken off."""
    with file.open("a") as out:
        out.write(json.dumps(row_json(row)) + "\n")


def _settings(plan: Plan, model: str, link: str, directory: Path) -> Settings:
    where = directory / f"{link}.sock"
    return Settings(plan.python, plan.environment, Path(model), directory / "cache", link, where)


def _own_model(directory: Path) -> Path:
    model = directory / MODEL
    model.mkdir(exist_ok=True)
    make_checkpoint(model)
    return model


def _ports(count: int, *, same: bool) -> list[int]:
    """Two for each: the same for all where each has an address of its own, else whichever are free now."""
    if same:
        return list(_PORTS) * count
    taken = [socket.create_server((_LOOPBACK, 0)) for _ in range(2 * count)]
    try:
        return [int(each.getsockname()[1]) for each in taken]
    finally:
        for each in taken:
            each.close()
