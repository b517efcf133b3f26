"""Staging slabs bound what a worker takes: routers hear how many are in doubt, and of no more jobs than there are."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_worker_pair import QUICK
from test_worker_transfer_states import PEER
from worker_harness import attached, fake_engine, job, only, served

from headrace.core.jobs import Abort, JobKind, Outcome
from headrace.core.pages import PagePort
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import CarrierHealth, TransferReport, TransferStatus
from headrace.transfer.factory import make_link
from headrace.transfer.loopback import Switchboard
from headrace.transfer.thread import TransferThread


async def test_a_transfer_claims_a_slab_until_it_has_closed() -> None:
    async with served(fake_engine(max_jobs=8), slabs=3) as here, attached(here.worker) as router:
        assert here.carrier is not None
        assert router.heard.load is not None
        assert router.heard.load.credits == 3
        keys = [router.submit(job(f"d{i}", JobKind.DECODE, salt=i, peer=PEER)) for i in range(3)]
        tickets = [await router.grant(key) for key in keys]
        await router.until(lambda heard: heard.load is not None and heard.load.credits == 0)
        # Over is not closed: a peer may still be sending.
        router.say(Abort(keys[0]))
        only(await router.ended(keys[0]), Outcome.ABORTED)
        other = router.submit(job("local", salt=9))
        only(await router.ended(other), Outcome.LENGTH)
        assert router.heard.load.credits == 0
        here.carrier.close_transfer(tickets[0].transfer, TransferStatus.CANCELLED)
        await router.until(lambda heard: heard.load is not None and heard.load.credits == 1)
        # One whose pages are all here needs no slab any more.
        here.carrier.close_transfer(tickets[1].transfer, TransferStatus.COMPLETE, 3)
        await router.until(lambda heard: heard.load is not None and heard.load.credits == 2)
        here.carrier.answers_cancel = True
        for key in keys[1:]:
            router.say(Abort(key))
        await here.quiet()


async def test_slabs_in_doubt_are_told_and_take_credits_with_them() -> None:
    async with served(fake_engine(max_jobs=8), slabs=3) as here, attached(here.worker) as router:
        assert here.carrier is not None
        for doubtful, credits in ((2, 1), (3, 0), (4, 0), (0, 3)):
            here.carrier.health = replace(here.carrier.health, quarantined_slabs=doubtful)
            key = router.submit(job(f"after {doubtful}"))
            only(await router.ended(key), Outcome.LENGTH)
            await router.until(lambda heard: heard.load is not None and heard.load.quarantined_slabs == doubtful)  # noqa: B023
            await router.until(lambda heard: heard.load is not None and heard.load.credits == credits)  # noqa: B023


@pytest.mark.parametrize(("send", "receive"), [(3, 5), (5, 3)])
async def test_the_side_that_has_fewer_counts(send: int, receive: int) -> None:
    link, metrics, made = make_link("loopback", switchboard=Switchboard()), WorkerMetrics(), list[TransferThread]()

    def carrier(pages: PagePort, report: Callable[[TransferReport], None]) -> TransferThread:
        options = replace(QUICK, send_slabs=send, receive_slabs=receive)
        made.append(TransferThread(link, pages, report, metrics.transfer, options))
        return made[0]

    async with (
        served(fake_engine(max_jobs=8), link=link.name, make_carrier=carrier, metrics=metrics) as here,
        attached(here.worker) as router,
    ):
        assert made[0].health == CarrierHealth(free_slabs=3, quarantined_slabs=0, rebuilds=0)
        assert router.heard.load is not None
        assert router.heard.load.credits == 3
