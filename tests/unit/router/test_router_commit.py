"""Between the first token and the last page: whose loss matters depends on who has committed."""

import asyncio

import pytest
from held_handover import held_handover
from scripted_worker import expected
from toy_cluster import ToyCluster, ask, cluster, collect, ids

from headrace.core.errors import DeadlineExceeded, TransferFailed, WorkerLost
from headrace.core.lifecycle import Phase
from headrace.router.retries import Fault


def retries(toy: ToyCluster) -> float:
    """Attempts begun again, for any reason."""
    return sum(toy.counted("headrace_attempt_retries_total", cause=fault.value) for fault in Fault)


async def routes(toy: ToyCluster) -> int:
    return len((await toy.router.explain("r1")).routes)


@pytest.mark.parametrize("how", ["dies", "fails", "engine"])
async def test_a_prefill_worker_may_go_once_the_decode_worker_has_committed(how: str) -> None:
    """Its own word that it handed over is not there, and no token of the decode worker either."""
    async with cluster(prefill=2, decode=1) as toy:
        held = await held_handover(toy, "token 1")
        if how == "dies":
            held.p.die()
            await toy.attached(2)
        else:
            held.p.fail(TransferFailed("It broke.") if how == "fails" else WorkerLost("Its engine died."))
        await held.answered()
        assert (await routes(toy), retries(toy)) == (1, 0)
        await toy.quiet()


async def test_a_commit_may_be_heard_after_the_loss() -> None:
    """Two streams have no order: what the decode worker had said may come last."""
    async with cluster(prefill=2, decode=1) as toy:
        held = await held_handover(toy)
        held.p.die()
        await toy.attached(2)
        await held.answered()
        assert (await routes(toy), retries(toy)) == (1, 0)
        await toy.quiet()


async def test_what_happens_after_the_doubt_is_no_fault_of_prefill() -> None:
    async with cluster(prefill=1, decode=2) as toy:
        held = await held_handover(toy)
        p, d = held.p, held.d
        p.cut()
        await toy.until(lambda: p.hellos == 2)
        d.at["token 2"] = lambda: d.fail(TransferFailed("It broke later."))
        await held.answered()
        told = await toy.router.explain("r1")
        assert [route.decode.worker for route in told.routes] == ["d1", "d2"]
        cut = toy.metrics.registry.get_sample_value("headrace_attempt_retries_total", {"cause": "cut"})
        failed = toy.metrics.registry.get_sample_value("headrace_attempt_retries_total", {"cause": "failed"})
        assert (cut, failed) == (0, 1)
        await toy.quiet()


async def test_a_token_says_as_much_as_a_commit() -> None:
    """A decode worker that does not know of commits."""
    async with cluster(prefill=2, decode=1) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.gate("handover")
        d.at["commit"] = p.die
        d.says_commit = False
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert (await routes(toy), retries(toy)) == (1, 0)
        await toy.quiet()


@pytest.mark.parametrize("decode", ["fails", "is silent"])
async def test_a_prefill_worker_that_goes_before_the_commit_costs_one_attempt(decode: str) -> None:
    """The decode worker says that it lost its sender, or cannot know. The loss is prefill's and counted once."""
    async with cluster(prefill=2, decode=1) as toy:
        held = await held_handover(toy)
        p, d = held.p, held.d
        p.die()
        await toy.attached(2)
        if decode == "fails":
            d.fail(TransferFailed("The prefill worker was lost."))
            await d.until(lambda: len(d.submits) == 2)
        else:
            await d.until(lambda: bool(d.aborts))
        await held.answered()
        told = await toy.router.explain("r1")
        assert [route.prefill.worker for route in told.routes if route.prefill] == ["p1", "p2"]
        await toy.until(lambda: retries(toy) == 1)
        assert toy.metrics.registry.get_sample_value("headrace_attempt_retries_total", {"cause": "lost"}) == 1
        await toy.quiet()


async def test_without_the_first_token_a_loss_needs_no_second_word() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        p = toy.worker("p1")
        p.at["token 0"] = p.die
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert await routes(toy) == 2
        await toy.quiet()


async def test_a_caller_that_leaves_in_doubt_leaves_nothing() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.gate("handover")
        d.gate("commit")
        stream = toy.router.generate(ask())
        await anext(stream)
        reading = asyncio.ensure_future(anext(stream))
        await d.passed("commit")
        p.die()
        await toy.attached(1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
        await toy.quiet()


@pytest.mark.parametrize("point", ["activate", "commit"])
async def test_a_decode_worker_that_lives_and_never_commits_is_waited_for_until_the_deadline(point: str) -> None:
    """Its prefill worker has handed over. The workers' own clocks are shorter: this is for one whose clocks stand."""
    async with cluster(prefill=1, decode=2) as toy:
        p = toy.worker("p1")
        for name in ("d1", "d2"):
            toy.worker(name).silent.add(point)
        stream = toy.router.generate(ask(timeout_s=0.5))
        first = await anext(stream)
        assert first.token_ids == (expected(3, 1)[0],)
        with pytest.raises(DeadlineExceeded, match=r"^The answer was not complete after 0\.5 s\."):
            await anext(stream)
        await p.passed("handover")
        told = await toy.router.explain("r1")
        assert (told.outcome, len(told.routes)) == ("deadline_exceeded", 1)
        assert [move.after for move in told.transitions[-2:]] == [Phase.TRANSFERRING, Phase.FAILED]
        # The decode worker is told to let go, the prefill worker is done with it, and no retry was spent.
        d = toy.workers[told.routes[0].decode]
        await d.until(lambda: len(d.aborts) == 1)
        assert (p.aborts, retries(toy)) == ([], 0)
        await toy.quiet()
        # The next request finds them as they were.
        for name in ("d1", "d2"):
            toy.worker(name).silent.clear()
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)


async def test_both_ends_may_die_while_it_is_in_doubt() -> None:
    """Two deaths on one prompt: it meets no third worker."""
    async with cluster(prefill=2, decode=2) as toy:
        for name in ("p1", "p2"):
            toy.worker(name).gate("handover")
        for name in ("d1", "d2"):
            toy.worker(name).gate("activate")
        asking = asyncio.create_task(collect(toy, ask()))
        await toy.until(lambda: any(toy.worker(name)._passed["activate"] for name in ("d1", "d2")))
        (route,) = (await toy.router.explain("r1")).routes
        assert route.prefill is not None
        toy.workers[route.prefill].die()
        await toy.attached(3)
        toy.workers[route.decode].die()
        with pytest.raises(WorkerLost, match="2 workers"):
            await asking
        assert await routes(toy) == 1
        with pytest.raises(WorkerLost, match="refused"):
            await collect(toy, ask("r2"))


async def test_after_a_failed_transfer_neither_end_is_tried_first() -> None:
    """Whoever speaks first, the other one may be to blame."""
    async with cluster(prefill=2, decode=2) as toy:
        for name in ("p1", "p2"):
            toy.worker(name).fail_first_with = [TransferFailed("The decode worker did not take the pages.")]
        assert ids(await collect(toy, ask())) == expected(3, 6)
        told = await toy.router.explain("r1")
        one, two = told.routes[:2]
        assert {one.prefill, one.decode}.isdisjoint({two.prefill, two.decode})
