"""What a worker does when a router says whom to meet, and that a job's peer is dead."""

import threading
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from worker_harness import attached, fake_engine, job, only, served

from headrace.core.fleet import Role, WorkerRef
from headrace.core.jobs import Abort, JobKind, Meet, Met, Outcome
from headrace.transfer.carrier import TransferStatus

PEER = WorkerRef("d", "1")


@pytest.mark.parametrize("reason", ["", "nobody is there"])
async def test_a_worker_calls_whom_it_shall_meet_and_says_what_came_of_it(reason: str) -> None:
    async with served(fake_engine(), role=Role.PREFILL) as here, attached(here.worker) as router:
        assert router.heard.welcome is not None
        link = router.heard.welcome.info.link
        router.say(Meet(PEER, link, "there:1"))
        router.submit(job("a", prompt=1, max_tokens=1))
        await router.until(lambda heard: heard.endings)
        told = here.carrier.met["there:1"]
        thread = threading.Thread(target=told, args=(reason, 0.25))  # reports come on the carrier's own thread
        thread.start()
        thread.join()
        await router.until(lambda heard: heard.met)
        assert router.heard.met == [Met(PEER, reason, 250.0)]


async def test_a_peer_on_another_link_is_not_called() -> None:
    async with served(fake_engine(), role=Role.PREFILL) as here, attached(here.worker) as router:
        router.say(Meet(PEER, "pigeon", "there:1"))
        await router.until(lambda heard: heard.met)
        assert "pigeon" in router.heard.met[0].reason
        assert here.carrier.met == {}


async def test_a_welcome_names_the_address_of_the_link_that_is_open_now() -> None:
    async with served(fake_engine()) as here:
        here.carrier.address = "waiting:2"
        async with attached(here.worker) as router:
            assert router.heard.welcome is not None
            assert router.heard.welcome.info.data_address == "waiting:2"


async def test_routers_hear_where_a_link_is_that_was_opened_again() -> None:
    async with served(fake_engine()) as here, attached(here.worker, "one") as one, attached(here.worker, "two") as two:
        here.carrier.address = "waiting:2"
        one.submit(job("a", prompt=1, max_tokens=1))  # a worker that does nothing looks once a second
        for router in (one, two):
            await router.until(lambda heard: heard.welcome and heard.welcome.info.data_address == "waiting:2")
            assert router.heard.welcome is not None
            assert router.heard.welcome.info.address == "127.0.0.1:1"


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
async def test_a_peer_that_is_dead_is_not_waited_for(at_once: bool) -> None:
    async with served(fake_engine()) as here, attached(here.worker) as router:
        key = router.submit(job("a", JobKind.DECODE, peer=PEER))
        ticket = await router.grant(key)
        if not at_once:
            router.say(Abort(key))
            only(await router.ended(key), Outcome.ABORTED)
            assert here.carrier.lost == []
        router.say(Abort(key, lost=True))
        only(await router.ended(key), Outcome.ABORTED)
        router.say(Meet(PEER, "pigeon", ""))  # commands are obeyed in order
        await router.until(lambda heard: heard.met)
        assert here.carrier.lost == [ticket.transfer]
        here.carrier.close_transfer(ticket.transfer, TransferStatus.CANCELLED)
        await here.quiet()


@pytest.mark.parametrize("how", ["aborted", "failed", "attached anew"])
async def test_that_a_peer_is_dead_is_heard_also_when_the_job_is_over(how: str) -> None:
    """The job ends at its fence, what is under way of its transfer later."""
    async with served(fake_engine()) as here, attached(here.worker, "other") as other:
        here.carrier.answers_cancel = True
        async with attached(here.worker) as router:
            key = router.submit(job("a", JobKind.DECODE, peer=PEER))
            ticket = await router.grant(key)
            if how == "aborted":
                router.say(Abort(key))
            elif how == "failed":
                here.carrier.close_transfer(ticket.transfer, TransferStatus.FAILED)
            if how != "attached anew":
                await router.ended(key)
                await here.quiet()
                router.say(Abort(key, lost=True))
                await eventually(lambda: here.carrier.lost == [ticket.transfer])
        await here.quiet()
        if how == "attached anew":
            async with attached(here.worker) as router:
                router.say(Abort(key, lost=True))
                await eventually(lambda: here.carrier.lost == [ticket.transfer])
        # To another router the job was never one, and so are others that never were here.
        other.say(Abort(key, lost=True))
        other.say(Abort(replace(key, attempt=2), lost=True))
        other.say(Meet(PEER, "pigeon", ""))
        await other.until(lambda heard: heard.met)
        assert here.carrier.lost == [ticket.transfer]
