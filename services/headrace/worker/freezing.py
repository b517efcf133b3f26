"""Freezing: a job that writes its answer stops where it stands, so that its pages can go on elsewhere."""

import structlog

from headrace.core.errors import HeadraceError
from headrace.core.jobs import Frozen
from headrace.engine.engine import Engine, Progress
from headrace.worker.jobs import Leg
from headrace.worker.loop import EngineLoop

log = structlog.get_logger()


def freeze(leg: Leg, engine: EngineLoop) -> None:
    """Hold the leg's job between two steps and tell its router how far it is. One that has ended is left alone: its
    ending is the answer. One that cannot be held is said to have no pages."""

    def hold(engine: Engine) -> Progress | None:
        return engine.hold(leg.key)

    def held(result: Progress | HeadraceError | None) -> None:
        if leg.outcome is not None:
            return
        tokens = result.computed_tokens if isinstance(result, Progress) else 0
        leg.outbox.frozen(Frozen(leg.key, tokens))
        log.info("job.frozen", job=str(leg.key), tokens=tokens)

    if leg.outcome is None:
        engine.call(hold, held)
