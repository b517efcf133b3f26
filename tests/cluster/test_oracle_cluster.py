"""The reference tokens through two worker processes with pages over UCX: disaggregated equals transformers."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fixtures.cluster import Cluster
from fixtures.references import Reference, assert_agree, load_references
from fixtures.reflected import ReflectedInference, reflected

REFERENCES = load_references()
BATCH = 8
CACHED_TOKENS = 16

pytestmark = pytest.mark.timeout(240)


def answer(inference: ReflectedInference, reference: Reference) -> list[int]:
    """The tokens that the cluster gives for a reference's prompt ids."""
    chunks = inference.generate(
        timeout_s=200,
        id=uuid.uuid4().hex,
        model="smollm2-135m",
        prompt={"tokens": {"token_ids": reference.prompt}},
        sampling={"temperature": 0.0, "max_tokens": len(reference.tokens), "ignore_eos": True},
    )
    return [token for chunk in chunks for token in chunk.token_ids]


def test_disaggregated_over_ucx_equals_the_reference(exact_cluster: Cluster) -> None:
    """Eight requests at a time, so that both workers batch them; every prompt's pages must move."""
    layout = exact_cluster.fleet()["workers"][0]["info"]["layout"]
    assert {worker["info"]["link"] for worker in exact_cluster.fleet()["workers"]} == {"ucx"}
    before = exact_cluster.metric("headrace_kv_transfer_bytes_total", direction="received")
    with reflected(exact_cluster.grpc) as inference, ThreadPoolExecutor(BATCH) as pool:
        results = list(pool.map(lambda reference: answer(inference, reference), REFERENCES))
    assert_agree(REFERENCES, results)
    moved = exact_cluster.metric("headrace_kv_transfer_bytes_total", direction="received") - before
    page_bytes = layout["kv_heads"] * 2 * layout["block_tokens"] * layout["head_dim"] * 4
    assert moved >= len(REFERENCES) * layout["layers"] * page_bytes


def test_prefix_cached_at_both_workers_equals_the_reference(exact_cluster: Cluster) -> None:
    """Some of the prompts again, alone: found in both caches but for the tail."""
    some = [replace(one, tokens=one.tokens[:CACHED_TOKENS]) for one in REFERENCES[::7]]
    with reflected(exact_cluster.grpc) as inference:
        warm = [answer(inference, reference) for reference in some]
        hits = exact_cluster.metric("vllm:prefix_cache_hits_total", role="prefill")
        again = [answer(inference, reference) for reference in some]
    assert_agree(some, again)
    assert again == warm
    found = exact_cluster.metric("vllm:prefix_cache_hits_total", role="prefill") - hits
    assert found == sum((len(reference.prompt) - 1) // 16 * 16 for reference in some)
