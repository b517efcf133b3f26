"""Choices of one prompt share its pages on both workers: whole pages travel once, and are held once."""

from pathlib import Path

from matrix_cluster import MODEL, byte_files, cluster, engines

PROMPT = "The quick brown fox jumps over the lazy dog, and over again. " * 3
CHOICES = 4
PAGE_TOKENS = 16


async def test_whole_pages_of_a_prompt_travel_once(tmp_path: Path) -> None:
    prefill, decode = engines(byte_files(tmp_path), budget=256, preempted=False)
    async with cluster(byte_files(tmp_path), prefill, decode) as pair:
        body = {"model": MODEL, "prompt": PROMPT, "n": CHOICES, "max_tokens": 12, "temperature": 1.0, "seed": 5}
        answer = (await pair.http.post("/v1/completions", json={**body, "ignore_eos": True})).json()
        prompt_tokens = answer["usage"]["prompt_tokens"]
        received = pair.workers[1].metrics.transfer.bytes.labels("received")._value.get()
        await pair.quiet()
    assert len({choice["text"] for choice in answer["choices"]}) == CHOICES
    pages = -(-prompt_tokens // PAGE_TOKENS)
    assert pages > 4
    # All pages for the first choice; for each other one the last.
    block = decode.info.layout.block_bytes
    assert received == (pages + CHOICES - 1) * block
