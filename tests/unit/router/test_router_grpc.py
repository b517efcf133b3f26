"""All parameters over a real wire: a gRPC client, the router behind a port, workers as scripted."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted_worker import expected
from test_router_reports import PROMPT_REPORT, prompt_report, reports, whole
from toy_cluster import ToyCluster, ask, cluster, ids, text

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, GenerateRequest, PromptEcho
from headrace.core.sampling import SamplingParams
from headrace.rpc.clients import InferenceClient
from headrace.rpc.server import serve

EVERYTHING = SamplingParams(
    temperature=0.5,
    top_p=0.75,
    top_k=9,
    min_p=0.125,
    presence_penalty=0.25,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias=((7, -1.5), (200, 100.0)),
    allowed_token_ids=tuple(range(256)),
    bad_words=("No",),
    min_tokens=2,
    seed=3,
    max_tokens=6,
    stop=("\n\n",),
    stop_token_ids=(1, 2),
    ignore_eos=True,
    include_stop_str_in_output=True,
    logprobs=2,
    prompt_logprobs=1,
)


@asynccontextmanager
async def reached(toy: ToyCluster) -> AsyncIterator[InferenceClient]:
    server = await serve("127.0.0.1:0", inference=toy.router)
    try:
        async with InferenceClient(f"127.0.0.1:{server.port}") as client:
            yield client
    finally:
        await server.stop(0.0)


async def answer(client: InferenceClient, request: GenerateRequest) -> list[Chunk]:
    return [chunk async for chunk in client.generate(request)]


def test_everything_is_everything() -> None:
    """No parameter is at its default, so that none can be lost unseen. Ids of bad words are the router's to find."""
    defaults = SamplingParams()
    same = [
        field.name
        for field in dataclasses.fields(SamplingParams)
        if getattr(EVERYTHING, field.name) == getattr(defaults, field.name)
    ]
    assert same == ["bad_word_ids"]


@pytest.mark.parametrize("prefill", [0, 1])
async def test_every_parameter_reaches_the_workers_and_every_report_the_caller(prefill: int) -> None:
    async with cluster(local=1 - prefill, prefill=prefill, decode=prefill) as toy, reached(toy) as client:
        chunks = await answer(client, ask(prompt=5, sampling=EVERYTHING, priority=-4, echo=True))
        assert ids(chunks) == expected(3, 6)
        assert text(chunks) == bytes(expected(3, 6)).decode()
        assert reports(chunks) == whole()
        assert prompt_report(chunks) == PROMPT_REPORT
        assert chunks[0].prompt == PromptEcho("\1\2\3\4\5", (1, 2, 3, 4, 5), tuple(map(bytes, zip(range(1, 6)))))
        told = dataclasses.replace(EVERYTHING, bad_word_ids=((78, 111), (32, 78, 111)))
        job = toy.worker("p1" if prefill else "l1").submits[0]
        assert (job.sampling, job.priority) == (told, -4)
        if prefill:
            decode = toy.worker("d1").submits[0]
            assert (decode.sampling, decode.priority) == (dataclasses.replace(told, prompt_logprobs=None), -4)
        await toy.quiet()


@pytest.mark.parametrize("param", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
async def test_refusals_name_their_field_over_the_wire(param: str) -> None:
    value: object = ((256, 1.0),) if param == "logit_bias" else (256,)
    async with cluster(local=1) as toy, reached(toy) as client:
        request = ask(sampling=dataclasses.replace(EVERYTHING, **{param: value}))
        with pytest.raises(InvalidRequest, match="names token 256") as refused:
            await answer(client, request)
        assert refused.value.param == param


async def test_a_stream_that_broke_goes_on_over_the_wire() -> None:
    """1. The caller leaves after three tokens. 2. With its last resume point it gets the other three."""
    async with cluster(prefill=1, decode=1) as toy, reached(toy) as client:
        first: list[Chunk] = []
        async for chunk in client.generate(ask("first", prompt=5, sampling=EVERYTHING, echo=True)):
            first.append(chunk)
            if len(first) == 3:
                break
        again = ask("again", prompt=5, sampling=EVERYTHING, echo=True, resume=first[-1].resume.encode())
        rest = await answer(client, again)
        assert ids([*first, *rest]) == expected(3, 6)
        assert reports([*first, *rest]) == whole()
        assert [chunk.prompt for chunk in rest] == [None] * len(rest)
        await toy.quiet()
