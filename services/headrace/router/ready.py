"""Readiness: would a chat sent now be answered? `choose` itself says so, over a fleet thought idle."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.router.choose import NoRoute, choose
from headrace.router.models import ServedModel
from headrace.router.policy import Policy
from headrace.router.view import Ask, Inflight, WorkerView


def unready(models: Iterable[ServedModel], fleet: Sequence[WorkerView], policy: Policy) -> str:
    """Why not, in one sentence; "" if every model has workers that could answer."""
    idle = [_idle(view) for view in fleet]
    for model in models:
        outcome = choose(Ask(model.name, tokens=1, total_tokens=2), idle, {}, policy)
        if isinstance(outcome, NoRoute):
            return outcome.reason
    return ""


def _idle(view: WorkerView) -> WorkerView:
    """Being full passes; being away does not."""
    load = replace(view.state.load, credits=max(1, view.state.load.credits))
    return WorkerView(replace(view.state, load=load), Inflight())
