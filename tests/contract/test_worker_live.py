"""Which jobs are live: those that hold something, whatever was said of them."""

from worker_harness import Serving, attached, fake_engine, job, served

from headrace.core.jobs import Abort, JobKind
from headrace.transfer.carrier import TransferStatus


def live(here: Serving) -> float | None:
    return here.metrics.registry.get_sample_value("headrace_jobs_live")


async def test_live_jobs_are_counted_until_they_hold_nothing() -> None:
    """A job that is over and whose pages a peer may still touch is live."""
    async with served(fake_engine()) as here, attached(here.worker) as router:
        assert live(here) == 0
        key = router.submit(job("a", JobKind.DECODE, peer=here.worker.announce("127.0.0.1:1").ref))
        ticket = await router.grant(key)
        assert live(here) == 1
        router.say(Abort(key))
        await router.ended(key)
        assert live(here) == 1
        assert here.carrier is not None
        here.carrier.close_transfer(ticket.transfer, TransferStatus.CANCELLED)
        await here.quiet()
        assert live(here) == 0
