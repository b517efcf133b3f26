"""Requests that go well: the steps of a disaggregated and of a local one."""

import asyncio

import pytest
from scripted_worker import MODEL, expected
from toy_cluster import ask, cluster, collect, ids, options, sampling, text

from headrace.core.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, NotFound
from headrace.core.fleet import Role
from headrace.core.generation import FinishReason, TextPrompt
from headrace.core.jobs import Activate, JobKind
from headrace.core.resume import ResumePoint, prompt_digest
from headrace.router.policy import Disaggregation


async def test_disaggregated_life() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        p, d = toy.worker("p1"), toy.worker("d1")
        p.cached = 16
        granting, handing = d.gate("grant"), p.gate("handover")
        stream = toy.router.generate(ask(max_tokens=4))
        # 1. The decode side is asked first, and prefill hears nothing before the grant.
        first = anext(stream)
        reading = asyncio.ensure_future(first)
        await d.passed("grant")
        assert [job.kind for job in d.submits] == [JobKind.DECODE]
        assert d.submits[0].peer == p.info.ref
        assert p.submits == []
        # 2. With the grant, prefill gets the ticket and the same key.
        granting.set()
        await p.passed("handover")
        (job,) = p.submits
        assert (job.kind, job.key, job.ticket is not None) == (JobKind.PREFILL, d.submits[0].key, True)
        # 3. The caller has the first token while pages still move, and decode is told it.
        chunk = await reading
        assert chunk.token_ids == (expected(3, 1)[0],)
        await d.passed("activate")
        assert [c.first_token for c in d.commands if isinstance(c, Activate)] == expected(3, 1)
        # 4. The rest comes from the decode worker, and the last chunk says how it ended.
        handing.set()
        rest = [chunk async for chunk in stream]
        chunks = [chunk, *rest]
        assert ids(chunks) == expected(3, 4)
        assert text(chunks) == bytes(expected(3, 4)).decode()
        last = chunks[-1]
        assert last.finish_reason is FinishReason.LENGTH
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (40, 4, 16)
        # 5. Nothing is left anywhere, and the explanation tells the way it went.
        await toy.quiet()
        told = await toy.router.explain("r1")
        assert [move.after.value for move in told.transitions] == [
            "routed", "granted", "prefilling", "transferring", "decoding", "done",
        ]  # fmt: skip
        assert (told.outcome, told.actual_cached_tokens, told.prompt_tokens) == ("length", 16, 40)
        assert told.actual_ttft_ms > 0


async def test_local_life() -> None:
    async with cluster(local=1) as toy:
        chunks = await collect(toy, ask())
        assert ids(chunks) == expected(3, 6)
        assert [job.kind for job in toy.worker("l1").submits] == [JobKind.LOCAL]
        told = await toy.router.explain("r1")
        assert [move.after.value for move in told.transitions] == ["routed", "prefilling", "decoding", "done"]
        await toy.quiet()


@pytest.mark.parametrize(
    ("mode", "prompt", "kinds"),
    [
        (Disaggregation.ALWAYS, 2, {"p1": [JobKind.PREFILL], "d1": [JobKind.DECODE]}),
        (Disaggregation.AUTO, 2, {"p1": [], "d1": [JobKind.LOCAL]}),
        (Disaggregation.AUTO, 200, {"p1": [JobKind.PREFILL], "d1": [JobKind.DECODE]}),
        (Disaggregation.NEVER, 200, {"p1": [], "d1": [JobKind.LOCAL]}),
    ],
)
async def test_modes(mode: Disaggregation, prompt: int, kinds: dict[str, list[JobKind]]) -> None:
    async with cluster(prefill=1, decode=1, with_options=options(mode)) as toy:
        assert ids(await collect(toy, ask(prompt=prompt))) == expected(3, 6)
        assert {name: [job.kind for job in toy.worker(name).submits] for name in kinds} == kinds


async def test_always_without_any_prefill_worker_is_local() -> None:
    async with cluster(decode=1) as toy:
        await collect(toy, ask())
        assert [job.kind for job in toy.worker("d1").submits] == [JobKind.LOCAL]


async def test_one_token_ends_at_prefill() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        d = toy.worker("d1")
        chunks = await collect(toy, ask(max_tokens=1))
        assert ids(chunks) == expected(3, 1)
        assert chunks[-1].finish_reason is FinishReason.LENGTH
        await d.until(lambda: bool(d.aborts))
        assert not any(isinstance(command, Activate) for command in d.commands)
        await toy.quiet()


async def test_first_token_that_stops_ends_at_prefill_without_text() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        toy.worker("p1").stop_token = (0, 0)
        chunks = await collect(toy, ask())
        assert (ids(chunks), text(chunks), chunks[-1].finish_reason) == ([0], "", FinishReason.STOP)
        await toy.quiet()


async def test_stop_token_of_the_caller_yields_no_text() -> None:
    async with cluster(local=1) as toy:
        want = expected(3, 6)
        chunks = await collect(toy, ask(sampling=sampling(stop_token_ids=(want[3],))))
        stop = want.index(want[3])
        assert ids(chunks) == want[: stop + 1]
        assert text(chunks) == bytes(want[:stop]).decode()
        assert chunks[-1].finish_reason is FinishReason.STOP
        await toy.quiet()


async def test_stop_string_across_tokens_aborts_the_worker() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        d = toy.worker("d1")
        want = bytes(expected(3, 60)).decode()
        chunks = await collect(toy, ask(max_tokens=60, sampling=sampling(max_tokens=60, stop=(want[5:8],))))
        cut = want.index(want[5:8])
        assert text(chunks) == want[:cut]
        assert chunks[-1].finish_reason is FinishReason.STOP
        assert len(ids(chunks)) == cut + 3
        await d.until(lambda: bool(d.aborts))
        await toy.quiet()


async def test_every_request_travels_with_a_seed_and_a_limit() -> None:
    async with cluster(local=1) as toy:
        stream = toy.router.generate(ask(sampling=sampling(seed=None, max_tokens=None)))
        chunk = await anext(stream)
        (job,) = toy.worker("l1").submits
        assert job.sampling.max_tokens == 512 - 40
        assert job.sampling.seed is not None
        assert 0 <= job.sampling.seed < 2**63
        assert chunk.resume.seed == job.sampling.seed
        await stream.aclose()
        await toy.quiet()


@pytest.mark.parametrize(("prompt", "max_tokens"), [(512, None), (500, 13)])
async def test_overflow_is_refused_with_the_numbers(prompt: int, max_tokens: int | None) -> None:
    async with cluster(local=1) as toy:
        request = ask(prompt=1, sampling=sampling(max_tokens=max_tokens))
        request = ask(prompt=prompt, sampling=request.sampling)
        with pytest.raises(ContextLengthExceeded, match=rf"{prompt}.*512|512.*{prompt}"):
            await collect(toy, request)
        assert (await toy.router.explain("r1")).outcome == "context_length_exceeded"


async def test_unknown_names() -> None:
    async with cluster(local=1) as toy:
        with pytest.raises(ModelNotFound, match="toy"):
            await collect(toy, ask(model="other"))
        with pytest.raises(NotFound):
            await toy.router.explain("never")


@pytest.mark.parametrize("after", range(1, 6))
async def test_resume_returns_only_what_is_new(after: int) -> None:
    async with cluster(prefill=1, decode=1) as toy:
        whole = await collect(toy, ask())
        rest = await collect(toy, ask("r2", resume=whole[after - 1].resume.encode()))
        assert rest[0].position == after
        assert ids(whole[:after]) + ids(rest) == expected(3, 6)
        assert text(whole[:after]) + text(rest) == text(whole)
        assert rest[-1].usage is not None
        assert rest[-1].usage.completion_tokens == 6
        assert toy.worker("p1").submits[-1].generated == after
        await toy.quiet()


async def test_resume_behind_the_end_ends_at_once() -> None:
    async with cluster(local=1) as toy:
        whole = await collect(toy, ask())
        (last,) = await collect(toy, ask("r2", resume=whole[-1].resume.encode()))
        assert (last.text, last.token_ids, last.finish_reason) == ("", (), FinishReason.LENGTH)
        assert len(toy.worker("l1").submits) == 1


async def test_resume_keeps_held_back_text() -> None:
    """A stop string that began before the break and ends after it is found."""
    async with cluster(local=1) as toy:
        want = bytes(expected(3, 30)).decode()
        stop = sampling(max_tokens=30, stop=(want[4:8],))
        tokens = expected(3, 6)
        point = ResumePoint(3, prompt_digest(range(1, 41)), tokens, len(tokens))
        rest = await collect(toy, ask("r2", sampling=stop, resume=point.encode()))
        assert (text(rest), rest[-1].finish_reason) == ("", FinishReason.STOP)


async def test_resume_of_another_prompt_or_seed_is_refused() -> None:
    async with cluster(local=1) as toy:
        point = (await collect(toy, ask()))[1].resume.encode()
        with pytest.raises(InvalidRequest, match="prompt"):
            await collect(toy, ask("r2", prompt=41, resume=point))
        with pytest.raises(InvalidRequest, match="seed"):
            await collect(toy, ask("r3", sampling=sampling(seed=4), resume=point))
        unseeded = await collect(toy, ask("r4", sampling=sampling(seed=None), resume=point))
        assert ids(unseeded) == expected(3, 6)[2:]


async def test_explanation_names_every_holder_and_the_chosen() -> None:
    async with cluster(prefill=3, decode=2) as toy:
        toy.hits = {toy.worker("p2").info.ref: 2, toy.worker("p3").info.ref: 1, toy.worker("d2").info.ref: 1}
        await collect(toy, ask())
        (route,) = (await toy.router.explain("r1")).routes
        assert route.prefill is not None
        assert (route.prefill.worker, route.decode.worker, route.cached_tokens) == ("p2", "d2", 32)
        held = {candidate.worker.worker: candidate.cached_tokens for candidate in route.candidates}
        assert held == {"p1": 0, "p2": 32, "p3": 16, "d1": 0, "d2": 16}
        assert {candidate.worker.worker for candidate in route.candidates if candidate.chosen} == {"p2", "d2"}
        assert all(candidate.why for candidate in route.candidates)


async def test_tokenize_detokenize_models_and_status() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        tokenized = await toy.router.tokenize(MODEL, TextPrompt("hé"))
        assert (bytes(tokenized.token_ids).decode(), tokenized.max_model_len) == ("hé", 512)
        assert await toy.router.detokenize(MODEL, tokenized.token_ids) == "hé"
        (card,) = await toy.router.list_models()
        assert (card.id, card.max_model_len) == (MODEL, 512)
        status = await toy.router.status()
        assert (status.ready, status.reason) == (True, "")
        assert {worker.info.role for worker in status.workers} == {Role.PREFILL, Role.DECODE}


async def test_metrics_are_merged_with_labels() -> None:
    async with cluster(prefill=1, decode=1) as toy:
        await collect(toy, ask())
        page = await toy.router.metrics()
        assert page.count("# TYPE toy_jobs gauge") == 1
        assert 'toy_jobs{incarnation="1",role="prefill",worker="p1"} 3.0' in page
        assert 'toy_jobs{incarnation="1",role="decode",worker="d1"} 3.0' in page
        assert 'headrace_requests_total{outcome="length"} 1.0' in page
        assert "vllm:time_to_first_token_seconds_count 1.0" in page
