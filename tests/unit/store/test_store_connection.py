"""Store: what it says of a Redis that is wrong, absent or back again."""

import pytest
from fixtures.redis_server import RedisServer
from structlog.testing import capture_logs

from headrace.core.errors import StartupError, Unavailable
from headrace.core.fleet import WorkerRef
from headrace.store.connection import STREAM_START, Store
from headrace.store.keys import holder, key, ref_of


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StartupError, match="redis://"):
        Store(url)


async def test_health_is_logged_when_it_changes(redis_server: RedisServer) -> None:
    store = Store(redis_server.url, deadline_s=1.0)
    try:
        with capture_logs() as lines:
            # 1. Nothing was tried yet.
            assert not store.healthy
            # 2. It is there.
            await store.ping()
            await store.ping()
            assert store.healthy
            # 3. It is away: the error says so, and what to do.
            redis_server.kill()
            for _ in range(2):
                with pytest.raises(Unavailable, match="Check that it runs") as caught:
                    await store.ping()
                assert caught.value.retry_after_s is not None
            assert not store.healthy
            # 4. It is back; old connections do no harm.
            redis_server.start()
            await store.ping()
            assert store.healthy
        assert [line["event"] for line in lines] == ["store.connected", "store.lost", "store.connected"]
    finally:
        await store.close()


async def test_secrets_of_the_address_stay_out_of_messages() -> None:
    store = Store("redis://user:hunter2@127.0.0.1:1/0", deadline_s=0.5)
    try:
        with capture_logs() as lines, pytest.raises(Unavailable) as caught:
            await store.ping()
        assert "127.0.0.1:1" in str(caught.value)
        assert "hunter2" not in f"{caught.value} {lines}"
    finally:
        await store.close()


async def test_a_redis_that_refuses_is_unavailable(redis_url: str, fleet: str) -> None:
    store = Store(redis_url)
    try:
        with pytest.raises(Unavailable):
            await store.run("prefix_renew", (key(fleet, "x"),), ("not a number",))
        # The connection is still good.
        await store.ping()
    finally:
        await store.close()


async def test_an_empty_stream_is_followed_from_its_start(redis_url: str, fleet: str) -> None:
    store = Store(redis_url)
    try:
        assert await store.last_id(key(fleet, "nothing")) == STREAM_START
        assert await store.follow(key(fleet, "nothing"), STREAM_START, 0.0) == ()
    finally:
        await store.close()


def test_a_holder_is_a_ref() -> None:
    ref = WorkerRef("host:9100", "a1")
    assert ref_of(holder(ref)) == ref
    assert key("blue", "prefix", holder(ref)) == "headrace:blue:prefix:host:9100:a1"
