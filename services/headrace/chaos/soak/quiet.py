"""Quiet: the samples at the end of a lap, taken once what ends by itself has ended.

Tasks and connections of the last requests take a moment to end; whatever stays is for `flat` to judge.
"""

import asyncio
import time
from collections.abc import Sequence

import httpx

from headrace.chaos.cluster import Cluster
from headrace.chaos.soak.sample import Sample, sample

# What comes back to what it was, if time is given to it; threads and keys come to stay.
_COUNTS = ("fds", "sockets", "tasks")
_SETTLES_S = 5.0
_POLL_S = 0.5


class Quiet:
    """Remembers the least that each process, by name, had at the end of a lap. within_s: how long it waits for that."""

    def __init__(self, client: httpx.AsyncClient, cluster: Cluster, within_s: float = _SETTLES_S) -> None:
        self._client = client
        self._cluster = cluster
        self._within_s = within_s
        self._least: dict[tuple[str, str], int] = {}

    async def samples(self) -> tuple[Sample, ...]:
        """Of every process, once none has more than ever before, or once its time is over."""
        deadline = time.monotonic() + self._within_s
        former: tuple[Sample, ...] = ()
        while True:
            now = await sample(self._client, self._cluster)
            if time.monotonic() >= deadline or (self._calm(now) if self._least else _alike(former, now)):
                break
            former = now
            await asyncio.sleep(_POLL_S)
        self._remember(now)
        return now

    def _calm(self, now: Sequence[Sample]) -> bool:
        """Whether everything that was ever told is told, and is no more than it was then."""
        counts = {(each.member, name): each.values[name] for each in now for name in _COUNTS if name in each.values}
        return all(key in counts and counts[key] <= least for key, least in self._least.items())

    def _remember(self, now: Sequence[Sample]) -> None:
        for each in now:
            for name in _COUNTS:
                if name in each.values:
                    key = each.member, name
                    self._least[key] = min(self._least.get(key, each.values[name]), each.values[name])


def _alike(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    return [_counts(each) for each in one] == [_counts(each) for each in other]


def _counts(each: Sample) -> list[int | None]:
    return [each.values.get(name) for name in _COUNTS]
