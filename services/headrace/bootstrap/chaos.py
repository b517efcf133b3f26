"""`headrace chaos`: configuration in, cases chosen, one run out."""

from headrace import config as configuration
from headrace.chaos.cells import Filter, ci_subset, matrix, select
from headrace.chaos.run import Plan
from headrace.chaos.run import run as run_plan
from headrace.config_chaos import ChaosConfig
from headrace.core.errors import StartupError
from headrace.telemetry import logs


async def run(config: ChaosConfig) -> int:
    """Exit code 0 if every count is zero, 1 if not. Raises StartupError."""
    logs.setup("chaos", level="error")
    wanted = Filter(config.target, config.fault, config.phase, config.link, config.seed)
    cells = select(ci_subset() if config.subset == "ci" else matrix(), wanted, config.limit)
    if not cells:
        raise StartupError("No case is all of that.", remedy="`headrace chaos --list` shows what there is.")
    if config.list_only:
        print("\n".join(cell.id for cell in cells))
        return 0
    environment = {**configuration.inherited_environment(), "OMP_NUM_THREADS": "1"}
    return await run_plan(
        Plan(cells, config.model, config.network, config.logs, config.json_output, configuration.python(), environment)
    )
