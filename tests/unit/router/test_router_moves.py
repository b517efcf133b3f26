"""Running requests leave a worker that drains or is crowded: nothing is lost, repeated or paid for."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from scripted_worker import ScriptedWorker, expected, worker_info
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options, text

from headrace.core.errors import NotFound, TransferFailed, Unavailable
from headrace.core.fleet import Role
from headrace.core.generation import Chunk
from headrace.core.jobs import Drain, Ending, Events, JobKind, Outcome
from headrace.router.attempt import Attempt
from headrace.router.move import AT_ONCE

FAST_PREFILL = (1e9, 0.0)


async def begun(
    toy: ToyCluster, worker: ScriptedWorker, *requests: str, held_at: str = "token 3"
) -> list[asyncio.Task[list[Chunk]]]:
    """Requests whose answers stand before a token on `worker`."""
    worker.gate(held_at)
    asking = [asyncio.create_task(collect(toy, ask(request))) for request in requests]
    await worker.passed(held_at, len(requests))
    return asking


async def decoder(toy: ToyCluster, request: str = "r1") -> tuple[ScriptedWorker, ScriptedWorker]:
    """The decode worker that has the request, and the other one."""
    (route,) = (await toy.router.explain(request)).routes
    one, other = toy.worker("d1"), toy.worker("d2")
    return (one, other) if route.decode == one.info.ref else (other, one)


async def gated(
    toy: ToyCluster, max_tokens: int = 6
) -> tuple[asyncio.Task[list[Chunk]], ScriptedWorker, ScriptedWorker]:
    """One request that stands before token 3: its task, the worker that has it, the other one."""
    for name in ("d1", "d2"):
        toy.worker(name).gate("token 3")
    asking = asyncio.create_task(collect(toy, ask(max_tokens=max_tokens)))
    await toy.until(lambda: any(toy.worker(name)._passed["token 3"] for name in ("d1", "d2")))
    old, new = await decoder(toy)
    new.gate("token 3").set()
    return asking, old, new


def kinds(worker: ScriptedWorker) -> list[JobKind]:
    return [job.kind for job in worker.submits]


async def test_an_answer_leaves_a_draining_worker_with_its_pages() -> None:
    async with cluster(prefill=1, decode=2) as toy:
        asking, old, new = await gated(toy)
        old.report_load(draining=True)
        chunks = await asking
        assert ids(chunks) == expected(3, 6)
        assert text(chunks) == bytes(expected(3, 6)).decode()
        # Its pages come from where it was, and nothing is computed again.
        assert kinds(old) == [JobKind.DECODE, JobKind.EXPORT]
        assert kinds(new) == [JobKind.DECODE]
        assert kinds(toy.worker("p1")) == [JobKind.PREFILL]
        (taken,), (_, export) = new.submits, old.submits
        assert (taken.peer, export.ticket and export.ticket.target) == (old.info.ref, new.info.ref)
        assert taken.tokens == export.tokens == (*range(1, 41), *expected(3, 2))
        told = await toy.router.explain("r1")
        assert [(route.prefill, route.decode) for route in told.routes] == [
            (toy.worker("p1").info.ref, old.info.ref),
            (old.info.ref, new.info.ref),
        ]
        assert "its pages come from" in told.routes[1].reasons[0]
        assert toy.counted("headrace_relocations_total") == 1
        assert toy.counted("headrace_attempt_retries_total", cause="moved") == 0
        await toy.quiet()


async def test_an_answer_is_computed_again_where_that_is_cheaper() -> None:
    async with cluster(prefill=1, decode=2) as toy:
        asking, old, new = await gated(toy)
        toy.worker("p1").speeds = (1e9, 1e9)
        toy.worker("p1").report_load()
        await toy.status_when(lambda status: any(worker.load.prefill_tokens_s for worker in status.workers))
        old.speeds = (0.0, 1.0)
        before = toy.budget
        old.report_load(draining=True)
        assert ids(await asking) == expected(3, 6)
        assert kinds(old) == kinds(new) == [JobKind.DECODE]
        assert toy.worker("p1").submits[1].tokens == (*range(1, 41), *expected(3, 3))
        assert toy.counted("headrace_relocations_total") == 0
        assert toy.counted("headrace_attempt_retries_total", cause="moved") == 1
        assert toy.budget == before
        await toy.quiet()


async def test_what_an_answer_left_is_let_go_once_and_not_with_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: Counter[int] = Counter()
    close = Attempt.close

    def counted(attempt: Attempt) -> None:
        closed[id(attempt)] += 1
        close(attempt)

    monkeypatch.setattr(Attempt, "close", counted)
    async with cluster(prefill=1, decode=2) as toy:
        asking, old, new = await gated(toy, max_tokens=20)
        old.report_load(draining=True)
        assert len(ids(await asking)) == 20
        assert kinds(new) == [JobKind.DECODE]
        # Once when the answer went on, and with the attempt that took it over.
        assert max(closed.values()) <= 3
        await toy.quiet()


def _silent(point: str) -> Callable[[ScriptedWorker, ScriptedWorker], None]:
    def silence(old: ScriptedWorker, new: ScriptedWorker) -> None:
        (old if point in {"freeze", "export"} else new).silent.add(point)
        if point == "export":
            # No page comes, so the new one writes nothing for the first job it is given.
            new.silent.add("activate")

    return silence


def _lost_pages(old: ScriptedWorker, new: ScriptedWorker) -> None:
    old.lost_kv = 43


def _export_fails(old: ScriptedWorker, new: ScriptedWorker) -> None:
    old.fail_first_with = [TransferFailed("The pages are not here.")]
    new.gate("activate")


def _no_room(old: ScriptedWorker, new: ScriptedWorker) -> None:
    new.busy_times = 1


def _new_dies(old: ScriptedWorker, new: ScriptedWorker) -> None:
    new.at["grant"] = new.die


def _old_leaves(old: ScriptedWorker, new: ScriptedWorker) -> None:
    old.at["export"] = old.die
    new.gate("activate")


TROUBLES = {
    "no answer to freeze": _silent("freeze"),
    "no page comes": _silent("export"),
    "no grant": _silent("grant"),
    "pages were lost": _lost_pages,
    "the export fails": _export_fails,
    "no room": _no_room,
    "the new worker dies": _new_dies,
    "the old worker leaves": _old_leaves,
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_whatever_keeps_the_pages_from_coming_the_answer_goes_on_without_them(trouble: str) -> None:
    async with cluster(prefill=1, decode=2, with_options=options(move_s=0.3, comeback_s=5.0)) as toy:
        asking, old, new = await gated(toy)
        third = ScriptedWorker(worker_info("d3", Role.DECODE))
        TROUBLES[trouble](old, new)
        before = toy.budget
        old.report_load(draining=True)
        if trouble == "the new worker dies":
            await toy.until(lambda: new.dead)
        await toy.join(third)

        def heal() -> None:
            new.silent.clear()
            new.gate("activate").set()

        toy.worker("p1").at["submit"] = heal
        assert ids(await asking) == expected(3, 6)
        assert kinds(toy.worker("p1")) == [JobKind.PREFILL] * 2
        died = trouble == "the new worker dies"
        assert toy.budget == before - died
        for worker in (old, new):
            worker.silent.clear()
        assert toy.ledger_jobs == 0


async def test_few_answers_are_under_way_at_a_time() -> None:
    async with cluster(local=1, max_jobs=16) as toy:
        old = toy.worker("l1")
        asking = await begun(toy, old, *(f"r{number}" for number in range(10)))
        new = ScriptedWorker(worker_info("l2", Role.LOCAL, max_jobs=16))
        new.speeds = FAST_PREFILL
        start = new.gate("submit")
        await toy.join(new)
        await toy.attached(2)
        old.speeds = (0.0, 1.0)
        old.report_load(draining=True)
        await new.passed("submit", AT_ONCE)
        for _ in range(50):
            await asyncio.sleep(0)
        assert [job.key.request for job in new.submits] == [f"r{number}" for number in range(AT_ONCE)]
        start.set()
        for answer in asking:
            assert ids(await answer) == expected(3, 6)
        assert len(new.submits) == 10
        await toy.quiet()


async def test_answers_end_where_they_are_while_nobody_else_has_room() -> None:
    """1. No other worker. 2. One without room: who has no worker at all goes first. 3. It has room."""
    async with cluster(local=1, with_options=options(grace_s=5.0)) as toy:
        old = toy.worker("l1")
        first, second = await begun(toy, old, "r1", "r2")
        old.report_load(draining=True)
        new = ScriptedWorker(worker_info("l2", Role.LOCAL, max_jobs=1))
        filled = new.gate("token 0")
        other = asyncio.create_task(collect(toy, ask("other")))
        await toy.status_when(lambda status: status.requests_waiting == 1)
        await toy.join(new)
        await new.passed("token 0")
        assert [job.key.request for job in new.submits] == ["other"]
        assert old.aborts == []
        resting = new.gate("activate")
        filled.set()
        await other
        # Then one goes on there, and the other one is not stopped before there is room for it.
        await new.passed("activate")
        for _ in range(50):
            await asyncio.sleep(0)
        assert (len(new.submits), len(old.frozen)) == (2, 1)
        resting.set()
        for answer in (first, second):
            assert ids(await answer) == expected(3, 6)
        assert len(new.submits) == 3
        await toy.quiet()


async def test_what_fits_nowhere_else_keeps_nobody_from_leaving() -> None:
    """The oldest request needs a longer context than the other worker has."""
    async with cluster(prefill=1, decode=1) as toy:
        old = toy.worker("d1")
        old.gate("token 3")
        long = asyncio.create_task(collect(toy, ask("long", max_tokens=100)))
        short = asyncio.create_task(collect(toy, ask("short")))
        await old.passed("token 3", 2)
        small = ScriptedWorker(worker_info("d2", Role.DECODE, max_model_len=100))
        await toy.join(small)
        await toy.attached(3)
        old.report_load(draining=True)
        assert ids(await short) == expected(3, 6)
        old.gate("token 3").set()
        assert len(ids(await long)) == 100
        assert [job.key.request for job in small.submits] == ["short"]
        await toy.quiet()


async def test_pages_leave_though_no_prompt_could_be_read() -> None:
    async with cluster(prefill=1, decode=2) as toy:
        asking, old, new = await gated(toy)
        toy.worker("p1").report_load(draining=True)
        await toy.status_when(lambda status: any(worker.draining for worker in status.workers))
        old.report_load(draining=True)
        assert ids(await asking) == expected(3, 6)
        assert (kinds(old), kinds(new)) == ([JobKind.DECODE, JobKind.EXPORT], [JobKind.DECODE])


async def test_with_nobody_else_a_draining_worker_ends_what_it_has() -> None:
    async with cluster(local=1) as toy:
        worker = toy.worker("l1")
        (asking,) = await begun(toy, worker, "r1")
        worker.report_load(draining=True)
        await toy.status_when(lambda status: status.workers[0].draining)
        worker.gate("token 3").set()
        assert ids(await asking) == expected(3, 6)
        assert worker.aborts == []
        assert len((await toy.router.explain("r1")).routes) == 1


@pytest.mark.parametrize("how", ["it says so", "its stream ends"])
async def test_what_a_draining_worker_did_not_finish_costs_nothing(how: str) -> None:
    async with cluster(local=1, with_options=options(comeback_s=5.0)) as toy:
        old = toy.worker("l1")
        (asking,) = await begun(toy, old, "r1")
        before = toy.budget
        old.report_load(draining=True)
        await toy.status_when(lambda status: status.workers[0].draining)
        if how == "it says so":
            error = Unavailable("The worker stopped before the job was done.")
            old.send(Events((), (Ending(old.submits[0].key, Outcome.FAILED, error),), old.load, draining=True))
        else:
            old.die()
        await toy.join(ScriptedWorker(worker_info("l2", Role.LOCAL)))
        assert ids(await asking) == expected(3, 6)
        assert toy.budget == before
        assert toy.counted("headrace_attempt_retries_total", cause="moved") == 1
        assert toy.counted("headrace_attempt_retries_total", cause="lost") == 0


async def test_prompts_that_a_draining_worker_reads_are_handed_over() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        workers = [toy.worker(name) for name in ("p1", "p2")]
        gates = [worker.gate("token 0") for worker in workers]
        asking = asyncio.create_task(collect(toy, ask()))
        await toy.until(lambda: any(worker._passed["token 0"] for worker in workers))
        reader = next(worker for worker in workers if worker.submits)
        reader.report_load(draining=True)
        await toy.status_when(lambda status: any(worker.draining for worker in status.workers))
        for gate in gates:
            gate.set()
        assert ids(await asking) == expected(3, 6)
        assert [len(worker.submits) for worker in workers if worker is not reader] == [0]


async def test_a_caller_that_does_not_read_keeps_nobody_from_leaving() -> None:
    async with cluster(local=1, max_jobs=16, with_options=options(move_s=0.05)) as toy:
        old = toy.worker("l1")
        unread = [toy.router.generate(ask(f"slow{number}")) for number in range(AT_ONCE)]
        for stream in unread:
            await anext(stream)
        (asking,) = await begun(toy, old, "r1")
        await toy.join(ScriptedWorker(worker_info("l2", Role.LOCAL, max_jobs=16)))
        await toy.attached(2)
        old.report_load(draining=True)
        assert ids(await asking) == expected(3, 6)
        old.gate("token 3").set()
        for stream in unread:
            await stream.aclose()
        await toy.quiet()


async def test_a_crowded_worker_gives_up_what_it_names_one_after_the_other() -> None:
    async with cluster(local=1, max_jobs=16, with_options=options(relief_s=0.1)) as toy:
        old = toy.worker("l1")
        old.speeds = (0.0, 1.0)
        asking = await begun(toy, old, "r1", "r2", "r3")
        new = ScriptedWorker(worker_info("l2", Role.LOCAL, max_jobs=16))
        new.gate("submit")
        await toy.join(new)
        await toy.attached(2)
        old.crowded = ("r2", "r3")
        loop = asyncio.get_running_loop()
        times: list[float] = []
        new.at["submit"] = lambda: times.append(loop.time())
        old.report_load()
        await new.passed("submit", 2)
        assert {job.key.request for job in new.submits} == {"r2", "r3"}
        assert times[1] - times[0] > 0.05
        # It stays there, although it says the same of its new place, and although the first one has room again.
        new.crowded = ("r2", "r3")
        new.report_load()
        old.crowded = ()
        old.report_load()
        await toy.status_when(lambda status: any(worker.load.crowded for worker in status.workers))
        new.gate("submit").set()
        old.gate("token 3").set()
        for answer in asking:
            assert ids(await answer) == expected(3, 6)
        assert len(old.submits) == 3
        assert len(new.submits) == 2
        await toy.quiet()


async def test_nobody_leaves_a_crowded_worker_for_one_that_is_almost_full() -> None:
    async with cluster(local=1, max_jobs=16) as toy:
        old = toy.worker("l1")
        (asking,) = await begun(toy, old, "r1")
        await toy.join(ScriptedWorker(worker_info("l2", Role.LOCAL, max_jobs=1)))
        await toy.attached(2)
        old.crowded = ("r1",)
        old.report_load()
        await toy.status_when(lambda status: bool(status.workers[0].load.crowded))
        old.gate("token 3").set()
        assert ids(await asking) == expected(3, 6)
        assert len((await toy.router.explain("r1")).routes) == 1


async def test_the_router_passes_a_wish_to_drain_on() -> None:
    async with cluster(local=2) as toy:
        state = await toy.router.drain("l2", 3.0)
        assert state.info.ref == toy.worker("l2").info.ref
        await toy.status_when(lambda status: [worker.draining for worker in status.workers] == [False, True])
        assert Drain(3.0) in toy.worker("l2").commands
        assert (await toy.router.drain("l1@1")).info.ref == toy.worker("l1").info.ref
        for name in ("l3", "l1@2", "l"):
            with pytest.raises(NotFound, match=f"No worker {name} is attached"):
                await toy.router.drain(name)


async def test_of_two_incarnations_the_one_that_stays_is_meant() -> None:
    async with cluster(local=1) as toy:
        old = toy.worker("l1")
        old.report_load(draining=True)
        await toy.status_when(lambda status: status.workers[0].draining)
        new = ScriptedWorker(replace(worker_info("l1", Role.LOCAL, "2")))
        await toy.join(new)
        await toy.attached(2)
        assert (await toy.router.drain("l1")).info.ref == new.info.ref
