"""Puts a worker under a chaos harness: its engine and its links are wrapped, and a thread hears what to do to whom.

The one place that knows both ends of it; a worker that is under no harness never imports this package.
"""

import os
from dataclasses import replace
from pathlib import Path

from headrace.chaos.agent import Agent
from headrace.chaos.faulty_link import FaultyLink
from headrace.chaos.held_engine import HeldEngine
from headrace.chaos.messages import Arrived
from headrace.core.fleet import WorkerRef
from headrace.engine.engine import Engine
from headrace.transfer.link import LinkFactory


def dial(socket: Path, ref: WorkerRef) -> Agent:
    """The agent of worker `ref`, to be closed by the caller. Raises StartupError."""
    return Agent(socket, Arrived(ref.worker, ref.incarnation, os.getpid()))


def held(engine: Engine, agent: Agent) -> Engine:
    """The engine, made to stand still where the harness says."""
    return HeldEngine(engine, agent.aim)


def faulty(link: LinkFactory, agent: Agent) -> LinkFactory:
    """The link, whose frames meet what the harness says, at the address that it says."""

    def opened() -> FaultyLink:
        below = link.open()
        try:
            return FaultyLink(below, agent.aim, agent.advertised(below.address))
        except BaseException:
            below.close()
            raise

    return replace(link, open=opened)
