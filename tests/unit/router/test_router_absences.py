"""A cut stream is not a death: a death is an incarnation that does not come back. Nor is one that stands still dead."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from scripted_worker import ScriptedWorker, expected, worker_info
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options

from headrace.core.errors import DeadlineExceeded, WorkerLost
from headrace.core.fleet import Role, WorkerRef
from headrace.core.jobs import Command, Events
from headrace.router.absence import Absence
from headrace.router.attachments import Patience
from headrace.router.contact import Contact
from headrace.router.options import RouterOptions
from headrace.router.retries import AttemptFailed, Fault, Loss, Retries
from headrace.router.retry_budget import RetryBudget
from headrace.router.stall import Stall


def patient(*, unready_s: float = 60.0, **changes: object) -> RouterOptions:
    """No verdict on who is away by time alone while a test runs."""
    return options(patience=Patience(2.0, 0.01, 0.05, back_s=60.0, unready_s=unready_s), **changes)


def once(deed: Callable[[], None]) -> Callable[[], None]:
    """Does it the first time only."""
    left = [deed]

    def trap() -> None:
        if left:
            left.pop()()

    return trap


def leave(worker: ScriptedWorker) -> Callable[[], None]:
    """Its stream breaks, and it takes no other until `dead` is false again."""
    return once(worker.die)


def retried(toy: ToyCluster, cause: str) -> float:
    value = toy.metrics.registry.get_sample_value("headrace_attempt_retries_total", {"cause": cause})
    assert value is not None
    return value


def always() -> float:
    """Somebody else is attached all the time."""
    return float("inf")


async def settled() -> None:
    """Everything that can go on by itself has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cuts", [1, 2, 4])
async def test_a_worker_that_comes_back_serves_the_request_on(cuts: int) -> None:
    """Where there is no other worker too, however often, and the prompt stays welcome."""
    async with cluster(local=1, with_options=patient()) as toy:
        worker = toy.worker("l1")
        for position in range(1, cuts + 1):
            worker.at[f"token {position}"] = once(worker.cut)
        assert ids(await collect(toy, ask())) == expected(3, 6)
        routes = (await toy.router.explain("r1")).routes
        assert [route.decode for route in routes] == [worker.info.ref] * (cuts + 1)
        assert (retried(toy, "cut"), retried(toy, "lost")) == (cuts, 0)
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
        await toy.quiet()


async def test_a_router_that_lost_all_its_streams_goes_on_with_the_same_workers() -> None:
    async with cluster(prefill=1, decode=1, with_options=patient()) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.gate("handover")

        def cut() -> None:
            p.cut()
            d.cut()

        d.at["token 2"] = once(cut)
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert len((await toy.router.explain("r1")).routes) == 2
        assert retried(toy, "lost") == 0
        await toy.quiet()


async def test_a_stream_that_is_cut_again_and_again_ends_the_request() -> None:
    async with cluster(local=1, with_options=patient()) as toy:
        worker = toy.worker("l1")
        worker.at["token 2"] = worker.cut
        with pytest.raises(WorkerLost, match="l1"):
            await collect(toy, ask())
        worker.at.clear()
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
        await toy.quiet()


async def test_who_lost_two_workers_meets_no_third_before_it_is_known_whether_they_died() -> None:
    async with cluster(local=3, with_options=patient()) as toy:
        first, second, third = (toy.worker(f"l{number}") for number in (1, 2, 3))
        for worker in (first, second):
            worker.at["token 2"] = leave(worker)
        # 1. The first loss costs no wait, the second does.
        asking = asyncio.create_task(collect(toy, ask()))
        await toy.attached(1)
        await settled()
        assert (asking.done(), third.submits) == (False, [])
        # 2. One of the two is back: at most one has died.
        first.dead = False
        assert ids(await asking) == expected(3, 6)
        assert len((await toy.router.explain("r1")).routes) == 3
        await toy.quiet()


async def test_two_that_do_not_come_back_in_time_are_two_deaths() -> None:
    async with cluster(local=3) as toy:
        for name in ("l1", "l2"):
            toy.worker(name).at["token 2"] = toy.worker(name).die
        with pytest.raises(WorkerLost, match="2 workers"):
            await collect(toy, ask())
        assert (retried(toy, "lost"), retried(toy, "cut")) == (2, 0)
        assert toy.worker("l3").submits == []
        with pytest.raises(WorkerLost, match="refused"):
            await collect(toy, ask("r2"))
        await toy.quiet()


async def test_a_router_that_hears_nobody_takes_nobody_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be cut off itself. However long that lasts, the request goes on, and its prompt stays welcome."""
    looks, enough = itertools.count(1), asyncio.Event()
    overdue = Absence._overdue

    def looked(absence: Absence, seconds: float, contact: Callable[[], float]) -> None:
        overdue(absence, seconds, contact)
        if next(looks) == 8:
            enough.set()

    monkeypatch.setattr(Absence, "_overdue", looked)
    impatient = Patience(2.0, 0.01, 0.05, back_s=0.03, unready_s=60.0)
    async with cluster(prefill=1, decode=1, with_options=options(patience=impatient, comeback_s=30.0)) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.gate("handover")

        def vanish() -> None:
            p.die()
            d.die()

        d.at["token 2"] = once(vanish)
        asking = asyncio.create_task(collect(toy, ask()))
        async with asyncio.timeout(10):
            await enough.wait()
        p.dead = d.dead = False
        assert ids(await asking) == expected(3, 6)
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
        assert retried(toy, "lost") == 0
        await toy.quiet()


async def test_a_verdict_waits_until_others_were_heard_for_as_long() -> None:
    """Who comes back last after a cut has as much time for it as any other."""
    absence, heard = Absence(WorkerRef("w", "1")), [0.0, 0.0, 0.004, 0.01]
    verdict = asyncio.Event()
    absence.then(verdict.set)
    absence.expect(0.01, lambda: heard.pop(0))
    async with asyncio.timeout(5):
        await verdict.wait()
    assert (heard, absence.dead) == ([], True)


async def test_contact_lasts_while_somebody_is_attached() -> None:
    now, one, other = [10.0], WorkerRef("a", "1"), WorkerRef("b", "1")
    contact = Contact(lambda: now[0])
    assert contact.seconds() == 0.0
    contact.begin(one)
    now[0] = 13.0
    contact.begin(other)
    contact.end(one)
    contact.end(one)
    now[0] = 15.0
    assert contact.seconds() == 5.0
    contact.end(other)
    assert contact.seconds() == 0.0
    contact.begin(one)
    now[0] = 16.0
    assert contact.seconds() == 1.0


@pytest.mark.parametrize("news", ["its lease ends", "another has its address"])
async def test_a_death_may_be_known_at_once(news: str) -> None:
    async with cluster(local=3, with_options=patient()) as toy:
        second = toy.worker("l2").info.ref
        for name in ("l1", "l2"):
            toy.worker(name).at["token 2"] = toy.worker(name).die
        asking = asyncio.create_task(collect(toy, ask()))
        await toy.attached(1)
        await toy.join(ScriptedWorker(worker_info("l1", Role.LOCAL, "2")))
        if news == "its lease ends":
            await toy.roster.leave(second)
        else:
            toy.workers[second] = ScriptedWorker(worker_info("l2", Role.LOCAL, "2"))
        with pytest.raises(WorkerLost, match="2 workers"):
            await asking
        assert toy.ledger_jobs == 0


async def test_the_wait_for_a_verdict_ends_with_the_deadline() -> None:
    async with cluster(local=3, with_options=patient()) as toy:
        for name in ("l1", "l2"):
            toy.worker(name).at["token 2"] = toy.worker(name).die
        with pytest.raises(DeadlineExceeded):
            await collect(toy, ask(timeout_s=0.3))
        assert toy.ledger_jobs == 0


class Deaf(ScriptedWorker):
    """Takes no command but the hello."""

    async def _read(self, commands: AsyncIterator[Command]) -> None:
        await asyncio.Event().wait()


async def test_what_never_left_for_a_worker_is_no_death_of_it() -> None:
    """However many go away before they take the job, the prompt has met none of them."""
    async with cluster(with_options=patient(grace_s=5.0)) as toy:
        deaf = [Deaf(worker_info(f"l{number}", Role.LOCAL)) for number in range(1, 8)]
        for worker in deaf:
            await toy.join(worker)
        await toy.attached(len(deaf))
        last = ScriptedWorker(worker_info("l9", Role.LOCAL))
        await toy.join(last)
        await toy.attached(len(deaf) + 1)
        asking = asyncio.create_task(collect(toy, ask()))
        for worker in deaf:
            await toy.until(lambda worker=worker: toy.inflight(worker).jobs == 1)
            worker.die()
        assert ids(await asking) == expected(3, 6)
        assert [retried(toy, cause) for cause in ("away", "cut", "lost")] == [len(deaf), 0, 0]
        assert toy.router._standing.retries.left == toy.router._standing.retries.most
        await toy.quiet()


async def test_workers_that_do_not_say_whether_they_take_the_job_have_not_died() -> None:
    async with cluster(prefill=1, decode=4, with_options=patient(grant_s=0.2)) as toy:
        for name in ("d1", "d2", "d3"):
            toy.worker(name).silent.add("grant")
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert [route.decode.worker for route in (await toy.router.explain("r1")).routes] == ["d1", "d2", "d3", "d4"]
        assert (retried(toy, "failed"), retried(toy, "lost")) == (3, 0)
        await toy.quiet()


async def test_a_prompt_that_was_not_granted_where_workers_died_is_not_refused() -> None:
    async with cluster(prefill=1, decode=3) as toy:
        for name in ("d1", "d2"):
            toy.worker(name).at["grant"] = toy.worker(name).die
        with pytest.raises(WorkerLost, match="2 workers"):
            await collect(toy, ask())
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
        await toy.quiet()


STALLED = "its engine has been in one step for more than 60 s"


def stand_still(worker: ScriptedWorker) -> None:
    worker.send(Events((), (), replace(worker.load, unready=STALLED)))


async def test_a_worker_that_stands_still_keeps_no_request() -> None:
    """1. `l1` stops amid an answer and says so. 2. The answer goes on elsewhere, and `l1` is told to let go of it."""
    async with cluster(local=2, with_options=patient(unready_s=0.02)) as toy:
        first, second = toy.worker("l1"), toy.worker("l2")
        going_on = first.gate("token 3")
        first.at["token 3"] = once(lambda: stand_still(first))
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert [route.decode for route in (await toy.router.explain("r1")).routes] == [first.info.ref, second.info.ref]
        assert (retried(toy, "cut"), retried(toy, "lost")) == (1, 0)
        await first.until(lambda: first.aborts == [first.submits[0].key])
        going_on.set()
        await toy.quiet()
        # Ready again, it is as good as any.
        first.report_load()
        await toy.status_when(lambda status: not any(worker.load.unready for worker in status.workers))
        second.die()
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)


async def test_a_worker_that_is_soon_ready_again_keeps_its_requests() -> None:
    async with cluster(local=2, with_options=patient(unready_s=60.0)) as toy:
        first = toy.worker("l1")
        first.at["token 3"] = once(lambda: stand_still(first))
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert len((await toy.router.explain("r1")).routes) == 1
        await toy.quiet()


async def test_a_prefill_side_that_stands_still_is_left_with_its_decode_side() -> None:
    async with cluster(prefill=2, decode=1, with_options=patient(unready_s=0.02)) as toy:
        first = toy.worker("p1")
        first.gate("token 0")
        first.at["token 0"] = once(lambda: stand_still(first))
        assert ids(await collect(toy, ask())) == expected(3, 6)
        prefills = [route.prefill for route in (await toy.router.explain("r1")).routes]
        assert prefills == [first.info.ref, toy.worker("p2").info.ref]
        await toy.quiet()


async def test_a_stall_is_told_once_and_only_while_it_lasts() -> None:
    told, heard = list[str](), asyncio.Event()

    def tell(reason: str) -> None:
        told.append(reason)
        heard.set()

    brief, lasting = Stall(60.0, told.append), Stall(0.0, tell)
    brief.see("it is slow")
    brief.see("")
    lasting.see("it is slow")
    lasting.see("it is slower")
    async with asyncio.timeout(5):
        await heard.wait()
    lasting.see("it is slower")
    await settled()
    assert told == ["it is slow"]


async def test_who_comes_back_late_is_not_dead_any_more() -> None:
    absence, verdict = Absence(WorkerRef("w", "1")), asyncio.Event()
    absence.then(verdict.set)
    absence.expect(0.0, always)
    async with asyncio.timeout(5):
        await verdict.wait()
    assert (absence.settled, absence.dead) == (True, True)
    absence.back()
    assert (absence.settled, absence.dead) == (True, False)


async def test_a_verdict_is_told_once_to_each_who_waits() -> None:
    absence, told = Absence(WorkerRef("w", "1")), list[str]()
    absence.expect(60.0, always)
    absence.then(lambda: told.append("early"))
    absence.back()
    absence.gone()
    absence.then(lambda: told.append("late"))
    assert told == ["early", "late"]


async def test_a_request_goes_on_as_soon_as_one_verdict_of_two_is_good() -> None:
    retries, absences = Retries(RetryBudget()), [Absence(WorkerRef(name, "1")) for name in ("a", "b")]
    for absence in absences:
        loss = Loss(absence, held=True)
        retries.weigh(AttemptFailed(WorkerLost("gone"), absence.worker, Fault.CUT, losses=(loss,)))
    waiting = asyncio.create_task(retries.cleared())
    await settled()
    assert not waiting.done()
    absences[1].back()
    await settled()
    assert waiting.done()
    assert (retries.excluded, retries.deadly) == (frozenset(), False)
