"""`headrace drain WORKER`: has a worker give its requests to others and leave, and watches it do so."""

import time
from dataclasses import dataclass
from typing import Any

import httpx

from headrace.core.errors import DeadlineExceeded
from headrace.terminal.client import answer, gateway

AWAY_S = 3.0
"""Seconds after which a worker that no router has attached has left, though one still lists it. A stream that broke
comes back sooner, or its router counts the worker as dead."""

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """worker: its name, or name@incarnation, of which the beginning is enough. grace_s: what its jobs get, 0 for what
    it was configured with. timeout_s: how long it is watched; 0: not at all."""

    url: str
    api_key: str
    worker: str
    grace_s: float
    timeout_s: float


def drain(options: DrainOptions) -> int:
    """Ask for it, then return once the worker has left. Raises NotFound if no such worker is attached, and
    DeadlineExceeded if it has not left in time: it goes on leaving."""
    with gateway(options.url, options.api_key) as client:
        asked = answer(client.post(f"/v1/fleet/{options.worker}/drain", json={"grace_s": options.grace_s}))
        ref = asked["info"]["ref"]
        name = f"{ref['worker']}@{ref['incarnation'][:8]}"
        print(f"{name} is leaving, with {_jobs(asked)}.")
        if options.timeout_s:
            _watch(client, ref, name, options.timeout_s)
            print(f"{name} has left.")
    return 0


@dataclass(slots=True)
class Departure:
    """Whether a worker has left, by what is seen of it. since: from when on it has been away; None: it is there."""

    since: float | None = None

    def over(self, worker: dict[str, Any] | None, now: float) -> bool:
        """worker: as it is listed now, None if it is not."""
        if worker is None:
            return True
        if worker["attached"]:
            self.since = None
        elif self.since is None:
            self.since = now
        return self.since is not None and now - self.since > AWAY_S


def _watch(client: httpx.Client, ref: dict[str, str], name: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    departure, said = Departure(), ""
    while not departure.over(worker := _find(answer(client.get("/v1/fleet")), ref), time.monotonic()):
        assert worker is not None
        if worker["draining"] and said != (said := _jobs(worker)):
            print(f"{name} has {said}.")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"{name} has not left within {timeout_s:g} s.", remedy="`headrace status` shows it.")
        time.sleep(_LOOK_EVERY_S)


def _find(fleet: dict[str, Any], ref: dict[str, str]) -> dict[str, Any] | None:
    """The worker as long as it is listed."""
    return next((worker for worker in fleet["workers"] if worker["info"]["ref"] == ref), None)


def _jobs(worker: dict[str, Any]) -> str:
    count = worker["load"]["running"] + worker["load"]["waiting"]
    return f"{count} job{'' if count == 1 else 's'}"
