"""What ends a worker process: a request to stop, the death of its engine, the end of a task it cannot be without."""

import asyncio

import pytest
from structlog.testing import capture_logs

from headrace.bootstrap.worker import until_over
from headrace.placement.stop import Stop

DEADLINE_S = 10.0


async def for_ever() -> None:
    await asyncio.Event().wait()


async def defect() -> None:
    raise KeyError("lease")


@pytest.mark.parametrize(
    ("cause", "code", "said"),
    [("asked", 0, None), ("leaving", 0, None), ("engine", 1, "worker.failed"), ("task", 1, "worker.crippled")],
)
async def test_a_worker_ends_with_what_it_cannot_be_without(cause: str, code: int, said: str | None) -> None:
    stop, failed = Stop(), asyncio.get_running_loop().create_future()
    leaving = asyncio.get_running_loop().create_future()
    kept = [asyncio.create_task(for_ever()), asyncio.create_task(defect() if cause == "task" else for_ever())]
    if cause == "asked":
        stop.ask()
    if cause == "leaving":
        leaving.set_result(5.0)
    if cause == "engine":
        failed.set_result(RuntimeError("dead"))
    with capture_logs() as logs:
        async with asyncio.timeout(DEADLINE_S):
            assert await until_over(stop, failed, kept, leaving) == code
    assert [line["event"] for line in logs] == ([said] if said else [])
    for task in kept:
        task.cancel()
    await asyncio.gather(*kept, return_exceptions=True)
