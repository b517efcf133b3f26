"""What operators may ask through HTTP and others may not."""

import pytest
from gateway_harness import CHAT, chat, running

# There is no such worker and no such request, which only who may ask is told.
DRAIN = "/v1/fleet/prefill-0/drain"
LOOKS = {"/v1/fleet": 200, "/v1/requests/r/explain": 404}


def showing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def test_without_keys_anybody_may_drain() -> None:
    async with running() as gateway:
        assert (await gateway.http.post(DRAIN, json={})).status_code == 404
        assert (await gateway.http.get("/v1/fleet")).status_code == 200
        assert gateway.fleet.drained == [("prefill-0", 0.0)]


async def test_no_api_key_may_drain() -> None:
    async with running(api_keys=("user",)) as gateway:
        answer = await gateway.http.post(DRAIN, json={}, headers=showing("user"))
        assert answer.status_code == 403
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "forbidden")
        assert "none is set here. Start the service with --admin-api-key." in error["message"]
        assert (await gateway.http.get("/v1/fleet", headers=showing("user"))).status_code == 200
        assert gateway.fleet.drained == []


@pytest.mark.parametrize("api_keys", [(), ("user",)])
async def test_where_there_is_an_admin_key_operators_show_it(api_keys: tuple[str, ...]) -> None:
    async with running(api_keys=api_keys, admin_api_key="root") as gateway:
        wrong = {"": 401, "user": 403, "other": 401 if api_keys else 403}
        for key, status in wrong.items():
            assert (await gateway.http.post(DRAIN, json={}, headers=showing(key))).status_code == status, key
            for path in LOOKS:
                assert (await gateway.http.get(path, headers=showing(key))).status_code == status, (path, key)
        assert gateway.fleet.drained == []
        assert (await gateway.http.post(DRAIN, json={}, headers=showing("root"))).status_code == 404
        for path, status in LOOKS.items():
            assert (await gateway.http.get(path, headers=showing("root"))).status_code == status
        assert gateway.fleet.drained == [("prefill-0", 0.0)]


async def test_an_admin_key_is_good_for_all_else_and_probes_need_none() -> None:
    async with running(api_keys=("user",), admin_api_key="root") as gateway:
        for key in ("user", "root"):
            assert (await gateway.http.post(CHAT, json=chat(), headers=showing(key))).status_code == 200
        for path in ("/health", "/ready", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 200


async def test_an_admin_key_alone_does_not_close_the_api() -> None:
    async with running(admin_api_key="root") as gateway:
        assert (await gateway.http.post(CHAT, json=chat())).status_code == 200
    assert [life.request.cache_salt for life in gateway.inference.lives] == [""]
