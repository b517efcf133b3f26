"""`headrace soak`: configuration in, one soak, its outcome out."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from headrace import config as configuration
from headrace.bootstrap.logs_directory import put_away
from headrace.chaos.soak.plan import describe
from headrace.chaos.soak.run import Soak, laps_of
from headrace.chaos.soak.run import run as run_soak
from headrace.chaos.soak.table import PLACE, Outcome, as_json, markdown, print_outcome
from headrace.config_soak import SoakConfig
from headrace.placement.stop import Stop
from headrace.telemetry import logs

_INTERRUPTED = 130
_GIT_S = 10.0


async def run(config: SoakConfig) -> int:
    """Exit code 0 if nothing grew and every count is zero, 1 if not, 130 if it was asked to stop before. Raises
    StartupError."""
    logs.setup("soak", level="error")
    if config.list_only:
        print("\n".join(describe(lap) for lap in laps_of(_soak(config, Path()))))
        return 0
    if config.report is not None:
        PLACE.require(config.report)
    stop = await Stop.arm(lifeline=False)
    directory = config.logs or Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    outcomes: list[Outcome] = []

    async def work() -> None:
        soak = _soak(config, directory)
        outcomes.append(await run_soak(soak, lambda line: print(line, file=sys.stderr, flush=True)))

    try:
        # Who is asked to stop takes the cluster away first.
        if not await stop.unless_asked(work()):
            return _INTERRUPTED
    finally:
        chosen = config.logs is not None
        if put_away(directory, keep=chosen or not (outcomes and outcomes[0].clean), ours=not chosen):
            print(f"The logs stay in {directory}.", file=sys.stderr)
    await _tell(config, outcomes[0])
    return 0 if outcomes[0].clean else 1


async def _tell(config: SoakConfig, outcome: Outcome) -> None:
    if config.json_output:
        print(json.dumps(as_json(outcome), indent=2))
    else:
        print_outcome(outcome, Console())
    if config.report is not None:
        PLACE.fill(config.report, markdown(outcome, await _commit(config.report.parent)))


async def _commit(directory: Path) -> str:
    """That of the tree in which the report stands; "" if it is in none."""
    try:
        asked = await asyncio.create_subprocess_exec(
            "git",
            *("-C", str(directory), "describe", "--always", "--abbrev=10", "--dirty"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return ""
    async with asyncio.timeout(_GIT_S):
        said, _ = await asked.communicate()
    return said.decode().strip()


def _soak(config: SoakConfig, directory: Path) -> Soak:
    environment = {**configuration.inherited_environment(), "OMP_NUM_THREADS": "1"}
    return Soak(
        config.seed,
        config.requests,
        config.laps,
        config.clients,
        config.link,
        config.model,
        config.network,
        directory,
        configuration.python(),
        environment,
    )
