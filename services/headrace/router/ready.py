"""Readiness: would a chat sent now be answered? `choose` itself says so, over a fleet thought idle."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.core.fleet import RefusedWorker
from headrace.router.choose import NoRoute, choose
from headrace.router.models import ServedModel
from headrace.router.policy import Policy
from headrace.router.view import Ask, Inflight, WorkerView

_NAMED = 4


def unready(
    models: Iterable[ServedModel], fleet: Sequence[WorkerView], refused: Sequence[RefusedWorker], policy: Policy
) -> str:
    """Why not, and which workers were refused; "" if every model has workers that could answer."""
    idle = [_idle(view) for view in fleet]
    for model in models:
        outcome = choose(Ask(model.name, tokens=1, total_tokens=2), idle, {}, policy)
        if isinstance(outcome, NoRoute):
            return " ".join((outcome.reason, *(_told(worker) for worker in refused[:_NAMED])))
    return ""


def _told(worker: RefusedWorker) -> str:
    return f"{worker.info.ref} is refused: it {worker.reason}."


def _idle(view: WorkerView) -> WorkerView:
    """Being full passes; being away does not."""
    load = replace(view.state.load, credits=max(1, view.state.load.credits))
    return WorkerView(replace(view.state, load=load), Inflight())
