"""Whatever is sent, the answer is an answer or an OpenAI-shaped refusal, never a crash."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_harness import CHAT, COMPLETIONS, chat, completion, running
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway.openai_schema import ChatBody, ChatMessage, CompletionBody, DetokenizeBody, TokenizeBody

BASES: dict[str, tuple[type, dict[str, Any]]] = {
    CHAT: (ChatBody, chat()),
    COMPLETIONS: (CompletionBody, completion()),
    "/tokenize": (TokenizeBody, completion()),
    "/detokenize": (DetokenizeBody, {"model": "m", "tokens": [1]}),
}
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 1.0, "text", "none", "", {"type": "text", "text": "a"}]),
)
names = st.one_of(
    st.text(max_size=8),
    st.sampled_from([*ChatBody.model_fields, *CompletionBody.model_fields, *ChatMessage.model_fields, "type", "text"]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """One gateway on a thread of its own, for all examples."""
    ready: list[Any] = []
    up = threading.Event()

    async def serve() -> None:
        done = asyncio.Event()
        async with running() as gateway:
            ready.extend([gateway.url, asyncio.get_running_loop(), done])
            up.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(10)
    url, loop, done = ready
    try:
        with httpx.Client(base_url=url, timeout=20.0) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert set(response.json()) == {"error"}
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@settings(max_examples=100)
@given(path=st.sampled_from([*BASES]), data=st.data())
def test_known_fields_with_any_values(http: httpx.Client, path: str, data: st.DataObject) -> None:
    model, base = BASES[path]
    changes = data.draw(st.dictionaries(st.sampled_from([*model.model_fields]), values, min_size=1, max_size=3))
    content = json.dumps({**base, **changes})
    check(http.post(path, content=content, headers={"content-type": "application/json"}))


@settings(max_examples=50)
@given(path=st.sampled_from([*BASES]), body=values)
def test_any_json(http: httpx.Client, path: str, body: Any) -> None:
    check(http.post(path, content=json.dumps(body), headers={"content-type": "application/json"}))


@settings(max_examples=50)
@given(path=st.sampled_from([*BASES]), content=st.binary(max_size=64))
def test_any_bytes(http: httpx.Client, path: str, content: bytes) -> None:
    check(http.post(path, content=content, headers={"content-type": "application/json"}))
