"""Whether a failure is excused because a worker leaves is settled when the failure is heard, whenever it is weighed."""

import pytest
from held_handover import held_handover
from scripted_worker import ScriptedWorker, expected, worker_info
from toy_cluster import ToyCluster, ask, cluster, ids, options

from headrace.core.errors import TransferFailed, Unavailable
from headrace.core.fleet import FleetStatus, Role
from headrace.core.jobs import Ending, Events, JobKind, Outcome


async def gone(toy: ToyCluster, worker: ScriptedWorker) -> None:
    """It ends, and its lease with it: the router knows of no such worker any more."""
    await toy.roster.leave(worker.info.ref)
    worker.die()
    await toy.status_when(lambda status: worker.info.ref not in {one.info.ref for one in status.workers})


def running(status: FleetStatus, worker: ScriptedWorker) -> int:
    """Its jobs, as the router has heard."""
    return sum(one.load.running for one in status.workers if one.info.ref == worker.info.ref)


def retried(toy: ToyCluster) -> dict[str, float]:
    found = {cause: toy.counted("headrace_attempt_retries_total", cause=cause) for cause in ("moved", "failed")}
    return {cause: count for cause, count in found.items() if count}


@pytest.mark.parametrize("leaver", ["p1", "d1"])
async def test_the_leaver_may_be_gone_when_its_failure_is_weighed(leaver: str) -> None:
    """Prefill fails before the decode worker has committed, so its failure is in doubt for a moment."""
    async with cluster(prefill=2, decode=1) as toy:
        held = await held_handover(toy)
        p, d = held.p, held.d
        before = toy.budget
        toy.worker(leaver).report_load(draining=True)
        await toy.status_when(lambda status: any(worker.draining for worker in status.workers))
        p.fail(TransferFailed("It broke."))
        if leaver == "p1":
            await gone(toy, p)
        else:
            # Once the failure has been heard, it stays after all.
            await toy.status_when(lambda status: not running(status, p))
            d.report_load(draining=False)
        await d.until(lambda: bool(d.aborts))
        await held.answered()
        assert (retried(toy), toy.budget) == ({"moved": 1}, before)
        await toy.quiet()


async def test_who_leaves_after_a_failure_has_no_excuse_for_it() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        held = await held_handover(toy)
        p, d = held.p, held.d
        before = toy.budget
        p.fail(TransferFailed("It broke."))
        p.report_load(draining=True)
        await toy.status_when(lambda status: any(worker.draining for worker in status.workers))
        await d.until(lambda: bool(d.aborts))
        await held.answered()
        assert (retried(toy), toy.budget) == ({"failed": 1}, before - 1)
        await toy.quiet()


async def test_the_leaver_may_be_gone_when_a_slow_caller_hears_of_it() -> None:
    async with cluster(local=1, with_options=options(comeback_s=5.0)) as toy:
        old = toy.worker("l1")
        old.gate("token 3")
        stream = toy.router.generate(ask())
        chunks = [await anext(stream)]
        await old.passed("token 3")
        before = toy.budget
        old.report_load(draining=True)
        error = Unavailable("The worker stopped before the job was done.")
        old.send(Events((), (Ending(old.submits[0].key, Outcome.FAILED, error),), old.load, draining=True))
        await gone(toy, old)
        await toy.join(new := ScriptedWorker(worker_info("l2", Role.LOCAL)))
        await toy.attached(1)
        chunks += [chunk async for chunk in stream]
        assert ids(chunks) == expected(3, 6)
        assert (retried(toy), toy.budget) == ({"moved": 1}, before)
        assert [job.kind for job in new.submits] == [JobKind.LOCAL]
