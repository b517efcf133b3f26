"""How a service begins: its log, the configuration it runs with, and the one line that says it serves."""

import json

import structlog

from headrace.config import ProcessConfig, effective
from headrace.core.errors import StartupError
from headrace.telemetry import logs

log = structlog.get_logger()


def redis_of(config: ProcessConfig, who: str) -> str:
    """The address of the fleet's Redis, asked for before `begin`: what is missing stands alone then. Raises
    StartupError."""
    url = config.redis_url.get_secret_value()
    if not url:
        raise StartupError(f"{who} needs the fleet's Redis.", remedy="Give --redis-url, or use `headrace up`.")
    return url


def begin(name: str, config: ProcessConfig) -> None:
    """Set up logging and log what was configured, without the secrets."""
    logs.setup(name, level=config.log_level, as_json=config.log_json)
    log.info("process.configured", **effective(config))


def ready(**facts: object) -> None:
    """Print one JSON object on standard output, for the supervisor or whoever started the process."""
    print(json.dumps({name: str(fact) for name, fact in facts.items()}), flush=True)
