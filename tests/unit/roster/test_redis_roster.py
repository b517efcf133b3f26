"""What only a shared Redis can do to a roster: leases that another program wrote."""

import redis.asyncio as aioredis
from structlog.testing import capture_logs

from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.layout import KvLayout
from headrace.roster.redis_roster import RedisRoster
from headrace.store.connection import Store
from headrace.store.keys import key

INFO = WorkerInfo(
    WorkerRef("w", "1"), Role.LOCAL, "h:1", "m", b"\x01", KvLayout(1, 1, 8, 16, "float32"), 64, 4, 1, "tcp", "", 1, 9
)


async def test_a_lease_that_cannot_be_read_is_skipped_and_logged_once(redis_url: str, fleet: str) -> None:
    store, client = Store(redis_url), aioredis.Redis.from_url(redis_url)
    try:
        roster = RedisRoster(store, fleet=fleet)
        await roster.join(INFO, 60.0)
        await client.sadd(key(fleet, "workers"), "x")
        await client.hset(key(fleet, "lease", "x"), mapping={"incarnation": "1", "order": "1", "info": '{"version":7}'})
        with capture_logs() as lines:
            assert await roster.members() == (INFO,)
            assert await roster.members() == (INFO,)
        assert [line["event"] for line in lines] == ["roster.member_skipped"]
    finally:
        await client.aclose()
        await store.close()
