"""Logging: one line per state change, key=value for people or JSON for machines, on standard error.

Use `log = structlog.get_logger()` and `log.info("worker.ready", worker=..., role=...)`: the event is a dotted
noun and verb, everything that varies is a key. Never log prompts, answers or secrets.
"""

import logging
import sys

import structlog


def setup(process: str, *, level: str = "info", as_json: bool = False) -> None:
    """Configure logging for this process. `process` stands in every line."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(process=process)
