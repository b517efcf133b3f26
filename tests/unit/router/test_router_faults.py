"""Requests that meet trouble: dead, busy, silent and lying workers, callers that leave."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from scripted_worker import MODEL, ScriptedWorker, expected, worker_info
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options, sampling, text

from headrace.core.errors import (
    Cancelled,
    DeadlineExceeded,
    HeadraceError,
    InternalError,
    InvalidRequest,
    Overloaded,
    TransferFailed,
    Unavailable,
    WorkerLost,
)
from headrace.core.fleet import Role, WorkerInfo
from headrace.core.generation import FinishReason
from headrace.core.jobs import Events, JobKey, TokenEvent
from headrace.router.policy import Disaggregation

DEATHS = [
    ("p", "submit"),
    ("p", "token 0"),
    ("p", "handover"),
    ("d", "submit"),
    ("d", "grant"),
    ("d", "activate"),
    ("d", "token 1"),
    ("d", "token 4"),
]


def _decode_only_after(worker: ScriptedWorker, dead: list[ScriptedWorker]) -> None:
    """The pages of a prefill worker that dies before handover never arrive: only the next attempt decodes."""
    pages = worker.gate("commit")

    def submitted() -> None:
        if dead:
            pages.set()

    worker.at["submit"] = submitted


@pytest.mark.parametrize(("victim", "point"), DEATHS)
async def test_a_death_is_not_seen_by_the_caller(victim: str, point: str) -> None:
    """Whoever dies, wherever: the answer is the same, without a gap or a repeat."""
    async with cluster(prefill=2, decode=2) as toy:
        dead: list[ScriptedWorker] = []
        pair = [toy.worker(f"{victim}{number}") for number in (1, 2)]
        for worker in pair:

            def once(worker: ScriptedWorker = worker) -> None:
                if not dead:
                    dead.append(worker)
                    worker.die()

            worker.at[point] = once
        if point == "handover":
            for name in ("d1", "d2"):
                _decode_only_after(toy.worker(name), dead)
        chunks = await collect(toy, ask(max_tokens=8))
        assert ids(chunks) == expected(3, 8)
        assert text(chunks) == bytes(expected(3, 8)).decode()
        assert len(dead) == 1
        told = await toy.router.explain("r1")
        assert len(told.routes) == 2
        assert dead[0].info.ref not in {told.routes[1].prefill, told.routes[1].decode}
        await toy.quiet()


async def test_prefill_may_die_once_decoding_goes_on() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.gate("handover")
        d.at["token 3"] = p.die
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert len((await toy.router.explain("r1")).routes) == 1
        await toy.quiet()


async def test_the_second_death_ends_the_request_and_its_like_are_refused_for_a_while() -> None:
    async with cluster(local=4) as toy:
        workers = [toy.worker(f"l{number}") for number in range(1, 5)]
        for worker in workers:
            worker.at["token 2"] = worker.die
        with pytest.raises(WorkerLost, match="2 workers"):
            await collect(toy, ask(prompt=8))
        told = await toy.router.explain("r1")
        assert (told.outcome, len(told.routes)) == ("worker_lost", 2)
        assert sum(worker.dead for worker in workers) == 2
        # The same prompt again would only kill more; any other is served.
        with pytest.raises(WorkerLost, match="refused") as refused:
            await collect(toy, ask("r2", prompt=8))
        assert refused.value.retry_after_s is not None
        assert (await toy.router.explain("r2")).routes == ()
        assert ids(await collect(toy, ask("r3", prompt=9, max_tokens=2))) == expected(3, 2)
        await toy.quiet()


async def test_an_engine_that_dies_counts_as_a_death() -> None:
    async with cluster(local=4) as toy:
        for number in range(1, 5):
            worker = toy.worker(f"l{number}")
            worker.fail_local_with = WorkerLost("The worker's engine died.")
        with pytest.raises(WorkerLost, match="2 workers"):
            await collect(toy, ask())
        assert len((await toy.router.explain("r1")).routes) == 2
        await toy.quiet()


async def test_no_other_worker_is_one_clear_error() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        d = toy.worker("d1")
        d.at["token 2"] = d.die
        with pytest.raises(WorkerLost, match="d1"):
            await collect(toy, ask())
        await toy.quiet()


async def test_a_restarted_worker_serves_the_retry() -> None:
    async with cluster(prefill=1, decode=1, with_options=options(comeback_s=5.0)) as toy:
        d = toy.worker("d1")
        d.at["token 2"] = d.die
        stream = toy.router.generate(ask())
        chunks = [await anext(stream), await anext(stream)]
        await toy.join(ScriptedWorker(worker_info("d1", Role.DECODE, "2")))
        chunks += [chunk async for chunk in stream]
        assert ids(chunks) == expected(3, 6)
        assert (await toy.router.explain("r1")).routes[-1].decode.incarnation == "2"


async def test_a_chat_without_a_limit_waits_for_a_worker_of_any_context() -> None:
    """While no worker is there its context is unknown: what the model allows at most must not become a demand."""
    async with cluster(with_options=options(grace_s=5.0)) as toy:
        asking = asyncio.create_task(collect(toy, ask(sampling=sampling(max_tokens=None))))
        await toy.status_when(lambda status: status.requests_waiting == 1)
        small = ScriptedWorker(worker_info("l1", Role.LOCAL, max_model_len=64))
        small.stop_token = (4, 0)
        await toy.join(small)
        assert ids(await asking) == [*expected(3, 4), 0]
        await toy.quiet()


async def test_nobody_waits_behind_one_whom_a_smaller_worker_cannot_serve() -> None:
    async with cluster(with_options=options(grace_s=0.5)) as toy:
        long = asyncio.create_task(collect(toy, ask("long", sampling=sampling(max_tokens=300))))
        await toy.status_when(lambda status: status.requests_waiting == 1)
        await toy.join(ScriptedWorker(worker_info("l1", Role.LOCAL, max_model_len=64)))
        await toy.attached(1)
        assert ids(await collect(toy, ask("short"))) == expected(3, 6)
        with pytest.raises(Unavailable, match="holds 64 tokens of 340"):
            await long
        await toy.quiet()


async def test_a_roster_that_fails_in_any_way_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyCluster(options(), [])
    watch, failures = toy.roster.watch, [ValueError("A defect."), Unavailable("Away.")]

    def failing() -> AsyncIterator[tuple[WorkerInfo, ...]]:
        if failures:
            raise failures.pop()
        return watch()

    monkeypatch.setattr(toy.roster, "watch", failing)
    await toy.join(ScriptedWorker(worker_info("l1", Role.LOCAL)))
    await toy.router.start()
    try:
        await toy.attached(1)
        assert ids(await collect(toy, ask())) == expected(3, 6)
    finally:
        await toy.router.stop(0.0)


async def test_a_prefill_worker_that_handed_over_is_free_for_others() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        going_on = d.gate("token 3")
        asking = asyncio.create_task(collect(toy, ask()))
        await d.passed("token 3")
        await toy.until(lambda: toy.inflight(p).jobs == 0)
        assert toy.inflight(d).jobs == 1
        going_on.set()
        assert ids(await asking) == expected(3, 6)
        await toy.quiet()


async def test_metrics_leave_out_a_worker_that_cannot_be_read() -> None:
    async with cluster(local=2) as toy:
        toy.worker("l1").exposition = "toy_jobs{ what is this"
        page = await toy.router.metrics()
        assert 'worker="l2"' in page
        assert 'worker="l1"' not in page


async def test_a_cut_stream_is_attached_again() -> None:
    async with cluster(local=1) as toy:
        worker = toy.worker("l1")
        worker.cut()
        await worker.until(lambda: worker.hellos == 2)
        await toy.attached(1)
        assert ids(await collect(toy, ask())) == expected(3, 6)


async def test_a_failed_transfer_is_tried_again_elsewhere() -> None:
    async with cluster(prefill=2, decode=2) as toy:
        for name in ("d1", "d2"):
            toy.worker(name).fail_first_with = [TransferFailed("A unit did not verify.")]
        assert ids(await collect(toy, ask())) == expected(3, 6)
        routes = (await toy.router.explain("r1")).routes
        assert len(routes) == 3
        assert routes[1].prefill != routes[0].prefill
        assert routes[1].decode != routes[0].decode
        await toy.quiet()


async def test_a_transfer_that_always_fails_ends_the_request() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        toy.worker("d1").fail_first_with = [TransferFailed("A unit did not verify.") for _ in range(20)]
        with pytest.raises(TransferFailed):
            await collect(toy, ask())
        await toy.quiet()


async def test_a_job_that_cannot_be_done_is_not_tried_again() -> None:
    async with cluster(prefill=2, decode=2) as toy:
        for name in ("p1", "p2"):
            toy.worker(name).fail_first_with = [InvalidRequest("The ticket is for another model.")]
        with pytest.raises(InvalidRequest):
            await collect(toy, ask())
        assert len((await toy.router.explain("r1")).routes) == 1
        await toy.quiet()


@pytest.mark.parametrize("name", ["p1", "d1"])
async def test_busy_waits_and_comes_back(name: str) -> None:
    async with cluster(prefill=1, decode=1) as toy:
        toy.worker(name).busy_times = 2
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert len((await toy.router.explain("r1")).routes) == 3
        await toy.quiet()


async def test_busy_goes_to_another_worker_at_once() -> None:
    async with cluster(prefill=1, decode=2) as toy:
        d = toy.worker("d1")
        d.busy_times, d.retry_after_s = 1, 60.0
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert [route.decode.worker for route in (await toy.router.explain("r1")).routes] == ["d1", "d2"]


async def test_a_decode_worker_that_says_nothing_is_left() -> None:
    async with cluster(prefill=1, decode=2, with_options=options(grant_s=0.1)) as toy:
        toy.worker("d1").silent.add("grant")
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert [route.decode.worker for route in (await toy.router.explain("r1")).routes] == ["d1", "d2"]
        await toy.quiet()


@pytest.mark.parametrize("point", ["submit", "token 3"])
async def test_the_deadline_ends_a_silent_request(point: str) -> None:
    async with cluster(local=1) as toy:
        toy.worker("l1").silent.add(point)
        with pytest.raises(DeadlineExceeded):
            await collect(toy, ask(timeout_s=0.2))
        assert (await toy.router.explain("r1")).outcome == "deadline_exceeded"
        assert toy.ledger_jobs == 0


@pytest.mark.parametrize("point", ["submit", "grant"])
async def test_the_deadline_ends_a_request_that_waits_for_a_grant(point: str) -> None:
    async with cluster(prefill=1, decode=1) as toy:
        toy.worker("d1").silent.add(point)
        with pytest.raises(DeadlineExceeded):
            await collect(toy, ask(timeout_s=0.2))
        assert (await toy.router.explain("r1")).outcome == "deadline_exceeded"
        assert toy.ledger_jobs == 0


async def test_no_worker_at_all_is_503_after_the_grace() -> None:
    async with cluster() as toy:
        with pytest.raises(Unavailable, match="No worker serves toy"):
            await collect(toy, ask())
        status = await toy.router.status()
        assert (status.ready, "toy" in status.reason) == (False, True)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_always_waits_for_the_missing_role(role: Role) -> None:
    """With a prefill worker in the roster that is not attached, nothing is quietly prefilled elsewhere."""
    async with cluster(prefill=1, decode=1) as toy:
        victim = toy.worker("p1" if role is Role.PREFILL else "d1")
        victim.die()
        await toy.attached(1)
        status = await toy.router.status()
        assert not status.ready
        assert victim.info.ref.worker in status.reason
        with pytest.raises(Unavailable, match=victim.info.ref.worker):
            await collect(toy, ask())


async def test_a_full_queue_is_429_and_order_is_kept() -> None:
    async with cluster(local=1, max_jobs=1, with_options=options(queue_limit=2)) as toy:
        worker = toy.worker("l1")
        gate = worker.gate("token 0")
        tasks = [asyncio.create_task(collect(toy, ask(f"r{number}"))) for number in range(3)]
        await toy.status_when(lambda status: status.requests_waiting == 2)
        with pytest.raises(Overloaded) as refused:
            await collect(toy, ask("r3"))
        assert refused.value.retry_after_s
        assert len(worker.submits) == 1
        gate.set()
        for chunks in await asyncio.gather(*tasks):
            assert ids(chunks) == expected(3, 6)
        assert [job.key.request for job in worker.submits] == ["r0", "r1", "r2"]
        await toy.quiet()


async def test_two_requests_never_spend_one_credit() -> None:
    async with cluster(local=2, max_jobs=1) as toy:
        gates = [toy.worker(name).gate("submit") for name in ("l1", "l2")]
        tasks = [asyncio.create_task(collect(toy, ask(f"r{number}"))) for number in range(3)]
        await toy.status_when(lambda status: status.requests_waiting == 1)
        await toy.worker("l1").passed("submit")
        await toy.worker("l2").passed("submit")
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks)
        await toy.quiet()


async def test_waiting_ends_with_the_deadline() -> None:
    async with cluster(local=1, max_jobs=1) as toy:
        toy.worker("l1").gate("token 0")
        first = asyncio.create_task(collect(toy, ask("r0")))
        await toy.worker("l1").passed("token 0")
        with pytest.raises(DeadlineExceeded, match="credit"):
            await collect(toy, ask("r1", timeout_s=0.1))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await toy.quiet()


CLOSES = ["submit@d1", "grant@d1", "submit@p1", "token 0@p1", "handover@p1", "activate@d1", "token 1@d1", "token 3@d1"]


@pytest.mark.parametrize("close", CLOSES)
async def test_a_caller_that_leaves_frees_everything(close: str) -> None:
    point, name = close.split("@")
    async with cluster(prefill=1, decode=1) as toy:
        gate = toy.worker(name).gate(point)
        if point == "activate":
            toy.worker("p1").gate("handover")
        task = asyncio.create_task(collect(toy, ask()))
        await toy.worker(name).passed(point)
        # What reached the caller before it leaves does not matter.
        task.cancel()
        closing = asyncio.gather(task, return_exceptions=True)
        for worker in toy.workers.values():
            if worker.submits and worker.live:
                await worker.until(lambda worker=worker: bool(worker.aborts) or not worker.live)
        gate.set()
        await closing
        await toy.quiet()
        assert (await toy.router.explain("r1")).outcome == "cancelled"


async def test_closing_between_chunks_aborts_both_legs_and_waits_for_them() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.gate("handover")
        d.gate("token 1")
        stream = toy.router.generate(ask())
        await anext(stream)
        await stream.aclose()
        assert (p.live, d.live, len(p.aborts), len(d.aborts)) == ({}, {}, 1, 1)
        told = await toy.router.explain("r1")
        assert [move.after.value for move in told.transitions][-2:] == ["draining", "cancelled"]
        assert toy.ledger_jobs == 0


async def test_a_waiting_caller_may_leave() -> None:
    async with cluster(local=1, max_jobs=1) as toy:
        gate = toy.worker("l1").gate("token 0")
        first = asyncio.create_task(collect(toy, ask("r0")))
        second = asyncio.create_task(collect(toy, ask("r1")))
        await toy.status_when(lambda status: status.requests_waiting == 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.set()
        assert ids(await first) == expected(3, 6)
        await toy.quiet()
        assert len(toy.worker("l1").submits) == 1


async def test_stale_and_repeated_events_are_dropped_and_a_gap_is_a_defect() -> None:
    async with cluster(local=1) as toy:
        worker = toy.worker("l1")

        def repeat() -> None:
            (job,) = worker.live.values()
            stale = JobKey(job.key.request, job.key.attempt + 7)
            worker.send(Events((TokenEvent(stale, 0, 2, (1,)),), (), worker.load))
            worker.send(Events((TokenEvent(job.key, 0, 0, tuple(expected(3, 2))),), (), worker.load))
            worker.send(Events((TokenEvent(job.key, 1, 2, (1,)),), (), worker.load))

        worker.at["token 2"] = repeat
        assert ids(await collect(toy, ask())) == expected(3, 6)
        worker.at["token 2"] = lambda: worker.send(
            Events((TokenEvent(next(iter(worker.live)), 0, 3, (1,)),), (), worker.load)
        )
        with pytest.raises(InternalError, match="missing"):
            await collect(toy, ask("r2"))
        await toy.quiet()


async def test_overrun_of_a_worker_is_discarded() -> None:
    async with cluster(local=1) as toy:
        worker = toy.worker("l1")
        worker.at["token 1"] = lambda: worker.send(
            Events((TokenEvent(next(iter(worker.live)), 0, 1, tuple(expected(3, 20)[1:])),), (), worker.load)
        )
        chunks = await collect(toy, ask())
        assert ids(chunks) == expected(3, 6)
        assert chunks[-1].finish_reason is FinishReason.LENGTH
        await toy.quiet()


async def test_a_draining_worker_gets_nothing_new() -> None:
    async with cluster(local=2) as toy:
        toy.worker("l1").report_load(draining=True)
        await toy.status_when(lambda status: any(worker.draining for worker in status.workers))
        await collect(toy, ask())
        assert toy.worker("l1").submits == []


async def test_an_id_can_run_once_at_a_time() -> None:
    async with cluster(local=1) as toy:
        stream = toy.router.generate(ask())
        await anext(stream)
        with pytest.raises(InvalidRequest, match="r1"):
            await collect(toy, ask())
        assert ids([chunk async for chunk in stream]) == expected(3, 6)[1:]


async def test_two_routers_name_the_jobs_of_one_request_apart() -> None:
    async with cluster(local=1) as one, cluster(local=1) as other:
        keys = []
        for toy in (one, other):
            worker = toy.worker("l1")
            worker.busy_times, worker.retry_after_s = 3, 0.001
            assert ids(await collect(toy, ask())) == expected(3, 6)
            keys += [job.key for job in worker.submits]
        assert len(set(keys)) == len(keys) == 8
        assert {key.request for key in keys} == {"r1"}


async def test_stop_lets_requests_finish_within_the_grace() -> None:
    async with cluster(local=1) as toy:
        gate = toy.worker("l1").gate("token 3")
        task = asyncio.create_task(collect(toy, ask()))
        await toy.worker("l1").passed("token 3")
        stopping = asyncio.create_task(toy.router.stop(5.0))
        await toy.status_when(lambda status: status.reason == "The router is stopping.")
        with pytest.raises(Unavailable, match="stopping"):
            await collect(toy, ask("late"))
        gate.set()
        assert ids(await task) == expected(3, 6)
        await stopping


async def test_stop_ends_what_outlasts_the_grace() -> None:
    async with cluster(local=1, max_jobs=1) as toy:
        toy.worker("l1").gate("token 3")
        tasks = [asyncio.create_task(collect(toy, ask(f"r{number}"))) for number in range(2)]
        await toy.status_when(lambda status: status.requests_waiting == 1)
        await toy.router.stop(0.0)
        for ending in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ending, Unavailable)
        assert toy.ledger_jobs == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"model": "other"}, "other"), ({"protocol": 99}, "99"), ({"layout": None}, "multiple of 16")],
)
async def test_a_member_that_does_not_fit_is_refused(
    changes: dict[str, object], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = worker_info("odd", Role.LOCAL)
    if "layout" in changes:
        changes = {"layout": type(info.layout)(2, 1, 4, 8, "float32")}
    async with cluster(local=1) as toy:
        await toy.join(ScriptedWorker(worker_info("odd", Role.LOCAL, **changes)))
        await toy.join(ScriptedWorker(worker_info("l2", Role.LOCAL)))
        status = await toy.status_when(lambda status: sum(worker.attached for worker in status.workers) == 2)
        assert {worker.info.ref.worker for worker in status.workers} == {"l1", "l2"}
        assert reason in capsys.readouterr().out


async def test_a_newer_incarnation_replaces_the_older_and_its_jobs_go_on() -> None:
    async with cluster(local=1) as toy:
        old = toy.worker("l1")
        old.gate("token 3")
        task = asyncio.create_task(collect(toy, ask()))
        await old.passed("token 3")
        await toy.join(ScriptedWorker(worker_info("l1", Role.LOCAL, "2")))
        assert ids(await task) == expected(3, 6)
        status = await toy.router.status()
        assert [worker.info.ref.incarnation for worker in status.workers] == ["2"]


async def test_a_newer_incarnation_takes_over_from_a_draining_one() -> None:
    """1. `l1` drains amid an answer, and its stream is not cut. 2. Its successor goes on with it, and takes what is
    new. 3. With its stream gone, so is the old one."""
    async with cluster(local=1) as toy:
        old = toy.worker("l1")
        going_on = old.gate("token 3")
        asking = asyncio.create_task(collect(toy, ask()))
        await old.passed("token 3")
        old.report_load(draining=True)
        await toy.status_when(lambda status: status.workers[0].draining)
        new = ScriptedWorker(worker_info("l1", Role.LOCAL, "2"))
        await toy.join(new)
        await toy.attached(2)
        assert ids(await asking) == expected(3, 6)
        assert [route.decode for route in (await toy.router.explain("r1")).routes] == [old.info.ref, new.info.ref]
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
        assert [job.key.request for job in new.submits] == ["r1", "r2"]
        going_on.set()
        await toy.quiet()
        old.die()
        status = await toy.status_when(lambda status: len(status.workers) == 1)
        assert status.workers[0].info.ref == new.info.ref
        assert old.hellos == 1


async def test_a_live_attachment_outranks_a_missing_lease() -> None:
    async with cluster(local=1) as toy:
        worker = toy.worker("l1")
        await toy.roster.leave(worker.info.ref)
        await toy.join(ScriptedWorker(worker_info("l2", Role.LOCAL)))
        await toy.attached(2)
        # With stream and lease gone, so is the worker.
        worker.die()
        status = await toy.status_when(lambda status: len(status.workers) == 1)
        assert status.workers[0].info.ref.worker == "l2"


async def _storm(toy: ToyCluster, request: str, rng: random.Random) -> str:
    """One caller; some leave after a random number of chunks, some while waiting."""
    leaves = rng.randrange(0, 8) if rng.random() < 0.4 else None
    stream = toy.router.generate(ask(request, prompt=rng.randrange(1, 60), max_tokens=rng.randrange(1, 12)))
    tokens: list[int] = []
    try:
        async for chunk in stream:
            tokens.extend(chunk.token_ids)
            if leaves is not None and len(tokens) >= leaves:
                await stream.aclose()
                return "left"
        assert tokens == expected(3, len(tokens))
        return "answered"
    except HeadraceError as error:
        assert not isinstance(error, InternalError | Cancelled)
        return error.kind.code


@pytest.mark.parametrize("mode", list(Disaggregation))
@pytest.mark.parametrize("seed", range(3))
async def test_storm_of_64_callers_with_deaths(mode: Disaggregation, seed: int) -> None:
    rng = random.Random(seed)
    async with cluster(prefill=2, decode=3, max_jobs=4, with_options=options(mode)) as toy:
        victim = toy.worker("d3")
        victim.at[f"token {rng.randrange(1, 6)}"] = victim.die
        toy.worker("d1").busy_times = 3
        async with asyncio.timeout(30):
            endings = await asyncio.gather(*(_storm(toy, f"s{number}", rng) for number in range(64)))
        assert set(endings) <= {"left", "answered"}
        assert endings.count("answered") >= 32
        await toy.quiet()
        assert MODEL in (await toy.router.explain("s63")).model
