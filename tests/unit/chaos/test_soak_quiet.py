"""The quiet point of a lap: what is about to end is waited for, what stays is told as it is."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from headrace.chaos.cluster import Cluster
from headrace.chaos.members import Settings
from headrace.chaos.soak import quiet
from headrace.chaos.soak.quiet import Quiet
from headrace.chaos.soak.sample import Sample

SETTINGS = Settings("python", {}, Path("/model"), Path("/cache"), "tcp", Path("/chaos.sock"))


def of(fds: int, **more: int) -> tuple[Sample, ...]:
    return (Sample("router-0", 7, {"fds": fds, **more}),)


async def told(
    monkeypatch: pytest.MonkeyPatch, *laps: Sequence[tuple[Sample, ...]], within_s: float = 10.0
) -> list[tuple[Sample, ...]]:
    """What is sampled at the end of each lap, if looking finds these, one after the other."""
    found: list[tuple[Sample, ...]] = []
    monkeypatch.setattr(quiet, "_POLL_S", 0.0)
    async with httpx.AsyncClient() as client:
        point = Quiet(client, Cluster((), SETTINGS, Path(), None), within_s)
        for seen in laps:
            looks: Iterator[tuple[Sample, ...]] = iter(seen)

            async def look(*_: object, looks: Iterator[tuple[Sample, ...]] = looks) -> tuple[Sample, ...]:
                return next(looks)

            monkeypatch.setattr(quiet, "sample", look)
            found.append(await point.samples())
            assert next(looks, None) is None, "it looked too few times"
    return found


async def test_the_first_point_is_when_two_looks_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(monkeypatch, [of(30), of(25), of(25)]) == [of(25)]


async def test_later_ones_wait_for_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [of(28), of(28), of(26), of(25)]
    assert await told(monkeypatch, [of(25), of(25)], later, [of(24)]) == [of(25), of(25), of(24)]


async def test_whoever_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = (Sample("router-0", 7, {}),)
    assert await told(monkeypatch, [of(25), of(25)], [mute, of(25)]) == [of(25), of(25)]


async def test_keys_and_threads_come_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = of(25, threads=3, keys=1), of(25, threads=9, keys=2)
    assert await told(monkeypatch, [first, first], [later]) == [first, later]


async def test_what_does_not_end_is_told_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(monkeypatch, [of(25)], [of(28)], within_s=0.0) == [of(25), of(28)]
