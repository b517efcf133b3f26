"""Who may ask, how much, how often, and under which id."""

import asyncio

import pytest
from gateway_harness import CHAT, chat, running
from hypothesis import given
from hypothesis import strategies as st
from scripted_inference import DEADLINE_S, ScriptedInference
from structlog.testing import capture_logs

from headrace.gateway.auth import tenant_salt
from headrace.gateway.context import RequestIds

KEYS = ("first-key", "second-key")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first-key"}])
@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/nowhere"])
async def test_without_a_key_nothing_is_answered(headers: dict[str, str], path: str) -> None:
    async with running(api_keys=KEYS) as gateway:
        response = await gateway.http.post(path, json=chat(), headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.json()["error"]["type"] == "authentication_error"
    assert gateway.inference.lives == []


async def test_probes_need_no_key() -> None:
    async with running(api_keys=KEYS) as gateway:
        for path in ("/health", "/ready", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 200
        assert (await gateway.http.get("/v1/models")).status_code == 401


async def test_every_key_has_its_own_prefix_cache() -> None:
    async with running(api_keys=KEYS) as gateway:
        for key in KEYS:
            headers = {"authorization": f"Bearer {key}"}
            assert (await gateway.http.post(CHAT, json=chat(), headers=headers)).status_code == 200
        response = await gateway.http.post(CHAT, json=chat(cache_salt="shared"), headers=headers)
        assert response.status_code == 200
    salts = [life.request.cache_salt for life in gateway.inference.lives]
    assert salts == [tenant_salt("first-key"), tenant_salt("second-key"), "shared"]
    assert len(set(salts)) == 3
    assert not any(key in salt for key in KEYS for salt in salts)


async def test_without_keys_there_is_no_salt() -> None:
    async with running() as gateway:
        await gateway.http.post(CHAT, json=chat(), headers={"authorization": "Bearer anything"})
    assert gateway.inference.lives[0].request.cache_salt == ""


async def test_a_body_that_declares_too_much_is_refused() -> None:
    async with running(max_body_bytes=1000) as gateway:
        response = await gateway.http.post(CHAT, json=chat(user="x" * 2_000_000))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert "x-request-id" in response.headers


async def test_a_body_that_grows_too_large_is_refused() -> None:
    async def pieces():
        for _ in range(50):
            yield b" " * 100

    async with running(max_body_bytes=1000) as gateway:
        response = await gateway.http.post(CHAT, content=pieces(), headers={"content-type": "application/json"})
    assert response.status_code == 413


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    async with running(max_body_bytes=1000) as gateway:
        content = b'{"messages": [{"role": "user", "content": "hi"}], "model": "m"}'.ljust(1000)
        response = await gateway.http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_slots_are_counted_and_given_back(stream: bool) -> None:
    """1. Two answers take both slots. 2. A third is refused. 3. When one ends, the next is answered."""
    go = asyncio.Event()
    scripts = iter([["a", "b", go, "c"], ["a", go, "b"], ["c"]])
    inference = ScriptedInference(lambda request: next(scripts))
    async with running(inference, max_generations=2) as gateway:
        first = asyncio.create_task(gateway.http.post(CHAT, json=chat(stream=stream, n=2)))
        await inference.nth(2)
        refused = await gateway.http.post(CHAT, json=chat(stream=stream))
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        go.set()
        assert (await first).status_code == 200
        assert (await gateway.http.post(CHAT, json=chat(stream=stream))).status_code == 200


async def test_a_client_that_leaves_gives_its_slot_back() -> None:
    inference = ScriptedInference(lambda request: ["a", asyncio.Event(), "b"] if len(inference.lives) == 0 else ["c"])
    async with running(inference, max_generations=1) as gateway:
        async with gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response:
            await anext(response.aiter_lines())
        async with asyncio.timeout(DEADLINE_S):
            await inference.lives[0].aborted.wait()
        assert (await gateway.http.post(CHAT, json=chat())).status_code == 200


async def test_a_wellformed_id_is_the_generations_id() -> None:
    async with running() as gateway:
        response = await gateway.http.post(CHAT, json=chat(), headers={"x-request-id": "trace-1.a_B"})
        explained = await gateway.http.get("/v1/requests/trace-1.a_B/explain")
    assert response.headers["x-request-id"] == "trace-1.a_B"
    assert response.json()["id"] == "chatcmpl-trace-1.a_B"
    assert gateway.inference.lives[0].request.id == "trace-1.a_B"
    assert explained.json()["request"] == "trace-1.a_B"


@pytest.mark.parametrize("wish", ["", "a b", "x" * 129, "semi;colon", "new/line"])
async def test_a_malformed_id_is_replaced(wish: str) -> None:
    async with running() as gateway:
        response = await gateway.http.post(CHAT, json=chat(), headers={"x-request-id": wish})
    assert response.headers["x-request-id"] == gateway.inference.lives[0].request.id != wish


async def test_a_used_id_is_varied_and_the_header_says_how() -> None:
    async with running() as gateway:
        headers = {"x-request-id": "again"}
        answers = [await gateway.http.post(CHAT, json=chat(stream=True), headers=headers) for _ in range(3)]
        ids = [answer.headers["x-request-id"] for answer in answers]
        for id in ids:
            assert (await gateway.http.get(f"/v1/requests/{id}/explain")).status_code == 200
    assert ids == [life.request.id for life in gateway.inference.lives]
    assert len(set(ids)) == 3
    assert ids[0] == "again"
    assert all(id.startswith("again-") for id in ids[1:])


@pytest.mark.parametrize("path", ["/health", "/nowhere", "/v1/models/nothing"])
async def test_every_answer_has_an_id(path: str) -> None:
    async with running() as gateway:
        assert (await gateway.http.get(path, headers={"x-request-id": "mine"})).headers["x-request-id"] == "mine"
        assert len((await gateway.http.get(path)).headers["x-request-id"]) == 32


@given(st.lists(st.text("ab-.", min_size=1, max_size=140), max_size=40))
def test_claimed_ids_are_unique_and_short(wishes: list[str]) -> None:
    ids = RequestIds()
    claimed = [ids.claim(wish) for wish in wishes]
    assert len(set(claimed)) == len(claimed)
    assert all(len(id) <= 128 for id in claimed)


def test_ids_are_forgotten_in_order() -> None:
    ids = RequestIds(capacity=2)
    assert [ids.claim(wish) for wish in ("a", "b", "c")] == ["a", "b", "c"]
    assert ids.claim("a") == "a"
    assert ids.claim("c") != "c"


async def test_the_access_log_has_one_line_and_no_content() -> None:
    async with running(ScriptedInference(["secret answer"]), api_keys=KEYS) as gateway:
        headers = {"authorization": "Bearer first-key", "x-request-id": "logged"}
        with capture_logs() as logs:
            body = chat(messages=[{"role": "user", "content": "secret prompt"}])
            await gateway.http.post(CHAT, json=body, headers=headers)
    lines = [entry for entry in logs if entry["event"] == "request.answered"]
    assert len(lines) == 1
    assert {key: lines[0][key] for key in ("method", "path", "status", "request_id", "outcome")} == {
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "request_id": "logged",
        "outcome": "answered",
    }
    assert lines[0]["ms"] >= 0
    assert "secret" not in repr(logs)
    assert "first-key" not in repr(logs)


async def test_the_access_log_tells_who_left() -> None:
    inference = ScriptedInference(["a", asyncio.Event(), "b"])
    with capture_logs() as logs:
        async with running(inference) as gateway:
            async with gateway.http.stream("POST", CHAT, json=chat(stream=True)) as response:
                await anext(response.aiter_lines())
            async with asyncio.timeout(DEADLINE_S):
                await inference.lives[0].aborted.wait()
    assert [entry["outcome"] for entry in logs if entry["event"] == "request.broken"] == ["client_gone"]
