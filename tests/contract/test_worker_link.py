"""A carrier that cannot repair its link: the worker has failed, and says so to everybody."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

from test_worker_pair import QUICK
from test_worker_transfer_states import DECODE_STATES, EVERY_STATE, PEER, bring, one_ending, scene
from worker_harness import DEADLINE_S, Gate, attached, fake_engine, job, only, served

from headrace.core.errors import StartupError, Unavailable, WorkerLost
from headrace.core.jobs import Abort, JobKey, JobKind, Outcome
from headrace.core.pages import PagePort
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import TransferReport
from headrace.transfer.link import Link, LinkFactory
from headrace.transfer.loopback import LoopbackLink, Switchboard
from headrace.transfer.thread import TransferThread
from headrace.worker.service import Worker

BROKEN = RuntimeError("the wire is cut")


async def break_link(worker: Worker) -> None:
    """As a carrier does, on a thread of its own."""
    await asyncio.to_thread(worker.link_broke, BROKEN)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.shield(worker.failed) is BROKEN


@EVERY_STATE
async def test_what_needs_the_link_fails_and_no_death_is_counted(kind: JobKind, state: str) -> None:
    async with scene() as on:
        key = await bring(on, kind, state)
        await break_link(on.here.worker)
        if (kind, state) == (JobKind.DECODE, DECODE_STATES[-1]):  # all its pages are here
            assert not on.router.heard.endings[key]
            on.router.say(Abort(key))
            only(await one_ending(on, key), Outcome.ABORTED)
            return
        error = (await one_ending(on, key)).error
        assert isinstance(error, Unavailable)
        assert not isinstance(error, WorkerLost)


async def test_what_runs_is_finished_and_nothing_more_is_taken() -> None:
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        running = router.submit(job("running"))
        await gate.reached()
        await break_link(here.worker)
        await break_link(here.worker)
        assert not here.worker.ready
        await router.until(lambda heard: heard.draining and heard.load is not None and heard.load.credits == 0)
        late = router.submit(job("late", salt=1))
        assert "link" in str((await router.ended(late)).error)
        gate.open()
        only(await router.ended(running), Outcome.LENGTH)
        await here.quiet()


async def test_an_engine_may_die_as_well() -> None:
    gate = Gate()
    broken = False

    def before_step() -> None:
        gate()
        if broken:
            raise RuntimeError("the device is gone")

    engine = fake_engine(before_step=before_step)
    async with served(engine) as here, attached(here.worker) as router:
        gate.shut()
        running = router.submit(job("running"))
        await gate.reached()
        await break_link(here.worker)
        broken = True
        gate.open()
        assert isinstance((await router.ended(running)).error, WorkerLost)
        await asyncio.to_thread(here.worker.link_broke, BROKEN)
        late = router.submit(job("late", salt=1))
        assert isinstance((await router.ended(late)).error, WorkerLost)
        engine.remove(running)  # the thread is gone; what it held goes with the process


class BrittleLinks:
    """One link over loopback that raises in `progress` once `cut`; no second one can be opened."""

    def __init__(self) -> None:
        self.cut = threading.Event()
        self._switchboard = Switchboard()
        self._opened = 0

    def open(self) -> Link:
        self._opened += 1
        if self._opened > 1:
            raise StartupError("There is no other wire.")
        link = LoopbackLink(self._switchboard)
        progress = link.progress

        def brittle(timeout_s: float, wake_fd: int) -> None:
            progress(timeout_s, wake_fd)
            if self.cut.is_set():
                raise BROKEN

        link.progress = brittle  # type: ignore[method-assign]
        return link


async def test_a_link_that_breaks_ends_its_worker() -> None:
    links, metrics, workers = BrittleLinks(), WorkerMetrics(), list[Worker]()

    def on_broken(error: Exception) -> None:
        workers[0].link_broke(error)

    def carrier(pages: PagePort, report: Callable[[TransferReport], None]) -> TransferThread:
        return TransferThread(
            LinkFactory("loopback", links.open),
            pages,
            report,
            metrics.transfer,
            QUICK,
            on_broken=on_broken,
        )

    async with (
        served(fake_engine(), link="loopback", make_carrier=carrier, metrics=metrics) as here,
        attached(here.worker) as router,
    ):
        workers.append(here.worker)
        granted = router.submit(job("d", JobKind.DECODE, peer=PEER))
        await router.grant(granted)
        links.cut.set()
        router.submit(job("e", JobKind.DECODE, salt=1, peer=PEER))  # wakes the carrier
        assert isinstance((await router.ended(granted)).error, Unavailable)
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.shield(here.worker.failed)
        await router.until(lambda heard: heard.draining)
        await here.quiet()


async def test_pages_that_cannot_leave_any_more_are_refused_as_by_a_worker_without_room() -> None:
    """Routers take what runs here elsewhere, with its pages where they can: nothing of that has begun, and they need
    not ask whether the other worker has them all."""
    gate = Gate()
    async with served(fake_engine(before_step=gate)) as here, attached(here.worker) as router:
        gate.shut()
        running = router.submit(job("running"))
        await gate.reached()
        await break_link(here.worker)
        leaving = router.submit(replace(job("running", JobKind.EXPORT), key=JobKey("running", 2)))
        await router.until(lambda heard: leaving in heard.busy)
        gate.open()
        only(await router.ended(running), Outcome.LENGTH)
        await here.quiet()
