"""A request that another router serves by now ends at this one, whatever it was about: nobody is asked again."""

import pytest
from test_router_moves import gated, kinds
from toy_cluster import ask, cluster, collect

from headrace.core.errors import TakenUp
from headrace.core.jobs import JobKind

TAKEN = TakenUp("Another router has taken up the request 'r1'.")


async def test_a_move_whose_pages_another_routers_job_has_is_not_made_otherwise() -> None:
    async with cluster(prefill=1, decode=2) as toy:
        asking, old, new = await gated(toy)
        old.fail_first_with = [TAKEN]
        new.gate("activate")
        old.report_load(draining=True)
        with pytest.raises(TakenUp, match="Another router"):
            await asking
        new.gate("activate").set()
        assert kinds(toy.worker("p1")) == [JobKind.PREFILL]
        assert kinds(old) == [JobKind.DECODE, JobKind.EXPORT]
        assert kinds(new) == [JobKind.DECODE]
        await toy.quiet()


async def test_a_prompt_that_another_router_reads_is_read_nowhere_else() -> None:
    async with cluster(prefill=2, decode=1) as toy:
        for name in ("p1", "p2"):
            toy.worker(name).fail_first_with = [TAKEN]
        with pytest.raises(TakenUp):
            await collect(toy, ask())
        assert sorted(len(toy.worker(name).submits) for name in ("p1", "p2")) == [0, 1]
        await toy.quiet()
