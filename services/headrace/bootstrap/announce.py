"""How a service begins: its log, the configuration it runs with, and the one line that says it serves."""

import json

import structlog

from headrace.config import ProcessConfig, effective
from headrace.telemetry import logs

log = structlog.get_logger()


def begin(name: str, config: ProcessConfig) -> None:
    """Set up logging and log what was configured, without the secrets."""
    logs.setup(name, level=config.log_level, as_json=config.log_json)
    log.info("process.configured", **effective(config))


def ready(**facts: object) -> None:
    """Print one JSON object on standard output, for the supervisor or whoever started the process."""
    print(json.dumps({name: str(fact) for name, fact in facts.items()}), flush=True)
