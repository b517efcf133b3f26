"""`headrace chaos`: configuration in, cases chosen, one run out."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from headrace import config as configuration
from headrace.bootstrap.logs_directory import put_away
from headrace.chaos.cells import Cell, Filter, ci_subset, matrix, select
from headrace.chaos.report import require_place, write_report
from headrace.chaos.run import Plan
from headrace.chaos.run import run as run_plan
from headrace.chaos.table import Outcome, as_json, print_outcome
from headrace.config_chaos import ChaosConfig
from headrace.core.errors import StartupError
from headrace.placement.stop import Stop
from headrace.telemetry import logs

_INTERRUPTED = 130


async def run(config: ChaosConfig) -> int:
    """Exit code 0 if every count is zero, 1 if not, 130 if it was asked to stop before. Raises StartupError."""
    logs.setup("chaos", level="error")
    wanted = Filter(config.target, config.fault, config.phase, config.link, config.seed)
    cells = select(ci_subset() if config.subset == "ci" else matrix(), wanted, config.limit)
    if not cells:
        raise StartupError("No case is all of that.", remedy="`headrace chaos --list` shows what there is.")
    if config.list_only:
        print("\n".join(cell.id for cell in cells))
        return 0
    if config.report is not None:
        require_place(config.report)
    stop = await Stop.arm(lifeline=False)
    directory = config.logs or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    outcomes: list[Outcome] = []

    async def work() -> None:
        outcomes.append(await run_plan(_plan(config, cells, directory)))

    try:
        # Who is asked to stop takes the cluster away first.
        if not await stop.unless_asked(work()):
            return _INTERRUPTED
    finally:
        chosen = config.logs is not None
        if put_away(directory, keep=chosen or not (outcomes and outcomes[0].clean), ours=not chosen):
            print(f"The logs stay in {directory}.", file=sys.stderr)
    _tell(config, outcomes[0])
    return 0 if outcomes[0].clean else 1


def _tell(config: ChaosConfig, outcome: Outcome) -> None:
    if config.json_output:
        print(json.dumps(as_json(outcome), indent=2))
    else:
        print_outcome(outcome, Console())
    if config.report is not None:
        write_report(outcome, config.report)


def _plan(config: ChaosConfig, cells: Sequence[Cell], directory: Path) -> Plan:
    environment = {**configuration.inherited_environment(), "OMP_NUM_THREADS": "1"}
    return Plan(cells, config.model, config.network, directory, configuration.python(), environment)
