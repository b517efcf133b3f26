"""`headrace chaos`: configuration in, cases chosen, one run out."""

from collections.abc import Sequence

from headrace import config as configuration
from headrace.chaos.cells import Cell, Filter, ci_subset, matrix, select
from headrace.chaos.run import Plan
from headrace.chaos.run import run as run_plan
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
    stop = await Stop.arm(lifeline=False)
    codes: list[int] = []

    async def work() -> None:
        codes.append(await run_plan(_plan(config, cells)))

    # Who is asked to stop takes the cluster away first.
    return codes[0] if await stop.unless_asked(work()) else _INTERRUPTED


def _plan(config: ChaosConfig, cells: Sequence[Cell]) -> Plan:
    environment = {**configuration.inherited_environment(), "OMP_NUM_THREADS": "1"}
    return Plan(
        cells, config.model, config.network, config.logs, config.json_output, configuration.python(), environment
    )
