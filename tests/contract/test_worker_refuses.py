"""A worker that no router can use says so wherever it is asked, until one can."""

import pytest
from test_worker_watchdog import watched
from worker_harness import DEADLINE_S, Router, attached, fake_engine

from headrace.core.errors import InvalidRequest, Unavailable
from headrace.core.jobs import Hello
from headrace.rpc.contracts import OLDEST_PROTOCOL, PROTOCOL_VERSION
from headrace.rpc.health import check

MINE, OTHERS = b"w" * 16, b"o" * 16
CLAUSE = "it and strange serve other models as tiny, their weights are 777777777777 and 6f6f6f6f6f6f"


def hello(weights: bytes) -> Hello:
    return Hello("strange", "", PROTOCOL_VERSION, OLDEST_PROTOCOL, weights)


async def test_a_router_of_other_weights_is_refused_and_is_the_reason_for_not_being_ready() -> None:
    async with watched(fake_engine(weights=MINE)) as watch:
        worker = watch.here.worker
        assert worker.ready
        # 1. The only router that comes serves another model under the same name.
        with pytest.raises(InvalidRequest, match=CLAUSE):
            await Router(worker, first=hello(OTHERS)).listen()
        await watch.until(lambda told: told == [False])
        assert not worker.ready
        assert worker.obstacle == CLAUSE
        with pytest.raises(Unavailable, match=CLAUSE):
            await check(watch.address, DEADLINE_S)
        # 2. One that fits comes, and finds it ready.
        async with attached(worker) as router:
            await watch.until(lambda told: told == [False, True])
            await check(watch.address, DEADLINE_S)
            assert router.heard.welcome is not None
            assert router.heard.welcome.load.unready == ""
            assert router.heard.welcome.load.credits > 0
            # 3. While it is there, the other is only turned away.
            with pytest.raises(InvalidRequest, match=CLAUSE):
                await Router(worker, first=hello(OTHERS)).listen()
            assert worker.ready
        await watch.here.quiet()


async def test_what_a_worker_says_of_its_pages_is_its_engines() -> None:
    async with watched(fake_engine(weights=MINE, page=48)) as watch, attached(watch.here.worker) as router:
        assert router.heard.welcome is not None
        info = router.heard.welcome.info
        assert (info.weights, info.recipe, info.tensor_parallel) == (MINE, "fake", 1)
        assert (info.kv.layout.block_tokens, info.kv.digest) == (48, info.model_digest)
        assert (info.protocol, info.oldest_protocol) == (PROTOCOL_VERSION, OLDEST_PROTOCOL)
