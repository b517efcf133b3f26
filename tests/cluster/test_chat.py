"""Chats through a disaggregated cluster over every link: the real model in float32, and what it should say."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from fixtures.cluster import Cluster, eventually
from fixtures.references import Reference, assert_agree, load_references
from fixtures.reflected import ReflectedInference, reflected

QUESTION = "What is the capital of France? Answer in one sentence."
MODEL = "smollm2-135m"
REFERENCES = load_references()
SOME = REFERENCES[::7]
BATCH = 8
SHARED = 256
CACHED_TOKENS = 8


@pytest.fixture
def client(exact_cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{exact_cluster.url}/v1", api_key="none", timeout=60, max_retries=0) as client:
        yield client


@pytest.fixture
def moved(exact_cluster: Cluster) -> Iterator[None]:
    """The test claims disaggregation: KV bytes must have reached the decode worker while it ran."""
    before = exact_cluster.metric("headrace_kv_transfer_bytes_total", direction="received")
    yield
    assert exact_cluster.metric("headrace_kv_transfer_bytes_total", direction="received") > before


def asked(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


@pytest.mark.usefixtures("moved")
def test_an_openai_client_hears_paris_streaming_and_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=asked(QUESTION), temperature=0)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        model=MODEL,
        messages=asked(QUESTION),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "stop"
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.usefixtures("moved")
def test_a_client_made_from_the_reflected_schema_gets_the_same_tokens(
    client: openai.OpenAI, exact_cluster: Cluster
) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=asked(QUESTION), temperature=0)
    with reflected(exact_cluster.grpc) as inference:
        chunks = list(
            inference.generate(
                id=uuid.uuid4().hex,
                model=MODEL,
                prompt={"chat": {"messages": asked(QUESTION)}},
                sampling={"temperature": 0.0},
            )
        )
    assert "".join(chunk.text for chunk in chunks) == whole.choices[0].message.content
    token_ids = [token for chunk in chunks for token in chunk.token_ids]
    assert whole.usage is not None
    assert len(token_ids) == whole.usage.completion_tokens == chunks[-1].usage.completion_tokens
    body = {"model": MODEL, "tokens": token_ids}
    text = httpx.post(f"{exact_cluster.url}/detokenize", json=body, timeout=30).raise_for_status().json()["prompt"]
    assert text.startswith(whole.choices[0].message.content or "?")


def test_any_chunks_resume_point_continues_the_answer_exactly(exact_cluster: Cluster) -> None:
    request = {
        "model": MODEL,
        "prompt": {"text": "The three primary colours are"},
        "sampling": {"temperature": 1.0, "max_tokens": 10, "ignore_eos": True},
    }
    with reflected(exact_cluster.grpc) as inference:
        chunks = list(inference.generate(id=uuid.uuid4().hex, **request))
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        for cut in (0, len(chunks) // 2, len(chunks) - 1):
            heard = [token for chunk in chunks[: cut + 1] for token in chunk.token_ids]
            rest = inference.generate(id=uuid.uuid4().hex, resume=chunks[cut].resume, **request)
            assert heard + [token for chunk in rest for token in chunk.token_ids] == tokens


def test_payload_bytes_are_blocks_times_layers_times_page_bytes(client: openai.OpenAI, exact_cluster: Cluster) -> None:
    layout = exact_cluster.fleet()["workers"][0]["info"]["layout"]
    page_bytes = layout["kv_heads"] * 2 * layout["block_tokens"] * layout["head_dim"] * 4
    assert layout["dtype"] == "float32"
    before = [_bytes(exact_cluster, direction) for direction in ("sent", "received")]

    answer = client.completions.create(model=MODEL, prompt=f"{uuid.uuid4()} {'river ' * 100}", max_tokens=2)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    blocks = -(-answer.usage.prompt_tokens // layout["block_tokens"])
    expected = blocks * layout["layers"] * page_bytes
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer.usage.prompt_tokens_details.cached_tokens < layout["block_tokens"]
    eventually(
        lambda: [_bytes(exact_cluster, direction) for direction in ("sent", "received")],
        lambda now: now == [was + expected for was in before],
    )


@pytest.mark.usefixtures("moved")
def test_a_second_request_with_the_same_prefix_computes_only_the_rest(
    client: openai.OpenAI, exact_cluster: Cluster
) -> None:
    tokens = httpx.post(
        f"{exact_cluster.url}/tokenize", json={"model": MODEL, "prompt": f"{uuid.uuid4()} {'mill ' * 350}"}, timeout=30
    ).json()["tokens"]
    shared = tokens[:SHARED]
    first = client.completions.create(model=MODEL, prompt=[*shared, *range(2000, 2020)], max_tokens=2, temperature=0)
    assert first.usage is not None
    eventually(lambda: _holders(exact_cluster, shared), lambda found: found >= {"prefill-0", "decode-0"})
    asked_before = exact_cluster.metric("vllm:prompt_tokens_total", role="prefill")
    found_before = exact_cluster.metric("vllm:prefix_cache_hits_total", role="prefill")

    second = client.completions.with_raw_response.create(
        model=MODEL, prompt=[*shared, *range(3000, 3020)], max_tokens=2, temperature=0
    )

    usage = second.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert usage.prompt_tokens_details.cached_tokens >= SHARED - 16
    asked_now = exact_cluster.metric("vllm:prompt_tokens_total", role="prefill") - asked_before
    found_now = exact_cluster.metric("vllm:prefix_cache_hits_total", role="prefill") - found_before
    assert (asked_now, asked_now - found_now) == (SHARED + 20, 20)

    told = exact_cluster.get(f"/v1/requests/{second.headers['x-request-id']}/explain")
    (route,) = told["routes"]
    cached = {candidate["worker"]["worker"]: candidate["cached_tokens"] for candidate in route["candidates"]}
    chosen = {candidate["worker"]["worker"] for candidate in route["candidates"] if candidate["chosen"]}
    assert cached["prefill-0"] >= SHARED - 16
    assert cached["decode-0"] >= SHARED - 16
    assert chosen == {"prefill-0", "decode-0"}
    assert route["prefill"]["worker"] == "prefill-0"
    assert route["decode"]["worker"] == "decode-0"
    assert told["actual_cached_tokens"] >= SHARED - 16


def _bytes(cluster: Cluster, direction: str) -> float:
    return cluster.metric("headrace_kv_transfer_bytes_total", direction=direction)


def _holders(cluster: Cluster, tokens: list[int]) -> set[str]:
    """Who the router believes to hold a prompt: what it says of a request that it routes now."""
    body = {"model": MODEL, "prompt": [*tokens, 1, 2, 3], "max_tokens": 1}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).raise_for_status()
    told = cluster.get(f"/v1/requests/{answer.headers['x-request-id']}/explain")
    return {
        candidate["worker"]["worker"]
        for route in told["routes"]
        for candidate in route["candidates"]
        if candidate["cached_tokens"] >= SHARED - 16
    }


def answer(inference: ReflectedInference, reference: Reference) -> list[int]:
    """The tokens that the cluster gives for a reference's prompt ids."""
    chunks = inference.generate(
        timeout_s=200,
        id=uuid.uuid4().hex,
        model=MODEL,
        prompt={"tokens": {"token_ids": reference.prompt}},
        sampling={"temperature": 0.0, "max_tokens": len(reference.tokens), "ignore_eos": True},
    )
    return [token for chunk in chunks for token in chunk.token_ids]


@pytest.mark.timeout(240)
def test_disaggregated_equals_the_reference(exact_cluster: Cluster, link: str) -> None:
    """Eight requests at a time, so that both workers batch them; every prompt's pages must move."""
    references = REFERENCES if link == "ucx" else SOME
    layout = exact_cluster.fleet()["workers"][0]["info"]["layout"]
    assert {worker["info"]["link"] for worker in exact_cluster.fleet()["workers"]} == {link}
    before = exact_cluster.metric("headrace_kv_transfer_bytes_total", direction="received")
    with reflected(exact_cluster.grpc) as inference, ThreadPoolExecutor(BATCH) as pool:
        results = list(pool.map(lambda reference: answer(inference, reference), references))
    assert_agree(references, results)
    moved = exact_cluster.metric("headrace_kv_transfer_bytes_total", direction="received") - before
    page_bytes = layout["kv_heads"] * 2 * layout["block_tokens"] * layout["head_dim"] * 4
    assert moved >= len(references) * layout["layers"] * page_bytes


def test_prefix_cached_at_both_workers_equals_the_reference(exact_cluster: Cluster) -> None:
    """Some of the prompts again, alone: found in both caches but for the last token."""
    some = [replace(one, tokens=one.tokens[:CACHED_TOKENS]) for one in SOME]
    with reflected(exact_cluster.grpc) as inference:
        warm = [answer(inference, reference) for reference in some]
        hits = exact_cluster.metric("vllm:prefix_cache_hits_total", role="prefill")
        again = [answer(inference, reference) for reference in some]
    assert_agree(some, again)
    assert again == warm
    found = exact_cluster.metric("vllm:prefix_cache_hits_total", role="prefill") - hits
    assert found == sum(len(reference.prompt) - 1 for reference in some)
