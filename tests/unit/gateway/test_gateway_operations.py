"""Models, tokens, health, metrics, fleet; unknown addresses."""

import pytest
from gateway_harness import running
from scripted_inference import MODEL

from headrace.core.errors import Unavailable
from headrace.core.fleet import FleetStatus, Load, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.layout import KvLayout

WORKER = WorkerState(
    WorkerInfo(
        ref=WorkerRef("prefill-0", "abc"),
        role=Role.PREFILL,
        address="127.0.0.1:1",
        model=MODEL,
        model_digest=b"\x01\xff",
        layout=KvLayout(2, 1, 8, 16, "float32"),
        max_model_len=64,
        num_blocks=4,
        max_jobs=2,
        link="tcp",
        data_address="127.0.0.1:2",
        protocol=1,
        pid=7,
    ),
    Load(running=1),
    attached=True,
)


async def test_health_and_readiness() -> None:
    """1. Ready. 2. Not ready: the reason. 3. The router is away: that is the reason. Alive all along."""
    async with running() as gateway:
        assert (await gateway.http.get("/ready")).status_code == 200
        gateway.fleet.answer = FleetStatus(False, "No decode worker is attached.", (), 0, 0)
        response = await gateway.http.get("/ready")
        assert response.status_code == 503
        assert response.json() == {"ready": False, "reason": "No decode worker is attached."}
        gateway.fleet.answer = Unavailable("The router does not answer.")
        response = await gateway.http.get("/ready")
        assert response.status_code == 503
        assert response.json()["reason"] == "The router does not answer."
        assert (await gateway.http.get("/health")).json() == {"status": "ok"}


async def test_metrics() -> None:
    async with running() as gateway:
        response = await gateway.http.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "headrace_workers 2" in response.text


async def test_models() -> None:
    async with running() as gateway:
        listed = (await gateway.http.get("/v1/models")).json()
        other = await gateway.http.get("/v1/models/org/other")
    assert listed["object"] == "list"
    assert [(model["id"], model["max_model_len"]) for model in listed["data"]] == [(MODEL, 8192), ("org/other", 4096)]
    assert other.json()["id"] == "org/other"


async def test_tokenize_and_back() -> None:
    async with running() as gateway:
        text = await gateway.http.post("/tokenize", json={"model": MODEL, "prompt": "ab", "add_special_tokens": True})
        turns = [{"role": "user", "content": "a"}]
        turn = await gateway.http.post("/tokenize", json={"model": MODEL, "messages": turns})
        back = await gateway.http.post("/detokenize", json={"model": MODEL, "tokens": [97, 98]})
    assert text.json() == {"count": 2, "max_model_len": 8192, "tokens": [97, 98], "token_strs": None}
    assert bytes(turn.json()["tokens"]).decode() == "user:a;"
    assert back.json() == {"prompt": "ab"}


async def test_fleet_as_json() -> None:
    async with running() as gateway:
        gateway.fleet.answer = FleetStatus(True, "", (WORKER,), 1, 0)
        status = (await gateway.http.get("/v1/fleet")).json()
    assert status["ready"] is True
    worker = status["workers"][0]
    assert worker["info"]["ref"] == {"worker": "prefill-0", "incarnation": "abc"}
    assert worker["info"]["role"] == "prefill"
    assert worker["info"]["model_digest"] == "01ff"
    assert worker["load"]["running"] == 1


async def test_explanations() -> None:
    async with running() as gateway:
        missing = await gateway.http.get("/v1/requests/nothing/explain")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "not_found"
        body = {"model": MODEL, "prompt": "x"}
        await gateway.http.post("/v1/completions", json=body, headers={"x-request-id": "seen"})
        explained = (await gateway.http.get("/v1/requests/seen/explain")).json()
    assert explained["transitions"] == [{"before": "received", "after": "routed", "at": 1.5}]
    assert explained["actual_ttft_ms"] is None


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "unknown_url"),
        ("POST", "/v1/embeddings", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/x", 405, "method_not_allowed"),
        ("GET", "/v1/fleet/", 404, "unknown_url"),
    ],
)
async def test_unknown_addresses_answer_in_the_same_shape(method: str, path: str, status: int, code: str) -> None:
    async with running() as gateway:
        response = await gateway.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert ("allow" in response.headers) == (status == 405)


async def test_a_worker_is_drained() -> None:
    """1. As it is then. 2. With a grace. 3. One that is not there. 4. Browsers cannot be made to ask for it."""
    async with running() as gateway:
        gateway.fleet.answer = FleetStatus(True, "", (WORKER,), 0, 0)
        answer = await gateway.http.post("/v1/fleet/prefill-0/drain", json={})
        assert answer.json()["info"]["ref"] == {"worker": "prefill-0", "incarnation": "abc"}
        await gateway.http.post("/v1/fleet/prefill-0/drain", json={"grace_s": 2.5})
        assert gateway.fleet.drained == [("prefill-0", 0.0), ("prefill-0", 2.5)]
        assert (await gateway.http.post("/v1/fleet/prefill-1/drain", json={})).status_code == 404
        gateway.fleet.drained.clear()
        for body, headers in ((b"{}", {"content-type": "text/plain"}), (b"", {})):
            refused = await gateway.http.post("/v1/fleet/prefill-0/drain", content=body, headers=headers)
            assert refused.status_code == 400
        for grace in (-1, "soon", 1e9):
            refused = await gateway.http.post("/v1/fleet/prefill-0/drain", json={"grace_s": grace})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "grace_s"
        assert gateway.fleet.drained == []
