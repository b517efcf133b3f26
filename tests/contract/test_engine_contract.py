"""The Engine contract, over the fake engine and over torch with a tiny model: jobs, pages, prefix cache, endings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.engine_driver import ROOT, Trace, copy_pages, generate, hand_over, make_job, prompt
from fixtures.measured import TORCH_WAS_MEASURED
from fixtures.tiny_model import CONFIG, STOP_ID, VOCABULARY, tiny_files

from headrace.chaos.aim import Aim
from headrace.chaos.held_engine import HeldEngine
from headrace.core.blocks import blocks_for, chain, root_hash
from headrace.core.errors import (
    ContextLengthExceeded,
    HeadraceError,
    InternalError,
    InvalidRequest,
    Overloaded,
    StartupError,
)
from headrace.core.jobs import Job, JobKey, JobKind, Outcome
from headrace.core.layout import KvLayout
from headrace.core.logprobs import TokenLogprob
from headrace.engine.build import build_engine
from headrace.engine.engine import Admission, Engine
from headrace.engine.fake import build_fake_engine
from headrace.engine.options import EngineOptions
from headrace_kernels.native import instruction_set

BLOCK_BYTES = KvLayout(CONFIG.layers, CONFIG.kv_heads, CONFIG.head_dim, 16, "float32").block_bytes

Build = Callable[..., Engine]


@pytest.fixture(params=["fake", "held", "native", "torch"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    """Builds engines of one kind; blocks: size of the pool. held: the fake one, with nothing armed that holds it."""
    if request.param == "native" and instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    files = tiny_files(tmp_path)
    fake = request.param in {"fake", "held"}
    make = build_fake_engine if fake else build_engine
    kernels = "auto" if fake else request.param

    def build(*, blocks: int = 64, block_size: int = 16, **options: object) -> Engine:
        sizes: dict[str, object] = {
            "max_num_seqs": 16,
            "max_num_batched_tokens": 64,
            "block_size": block_size,
            "kernels": kernels,
            **options,
        }
        pool = blocks * BLOCK_BYTES * block_size // 16
        options = EngineOptions(dtype="float32", kv_cache_memory_bytes=pool, **sizes)  # type: ignore[arg-type]
        try:
            engine = make(files, VOCABULARY, options)
        except StartupError as error:
            if TORCH_WAS_MEASURED or request.param != "torch" or not options.batch_invariant:
                raise
            pytest.xfail(str(error))
        return HeldEngine(engine, Aim(lambda _: None)) if request.param == "held" else engine

    return build


def free(engine: Engine) -> int:
    return engine.step().load.free_blocks


class TestLocalJobs:
    def test_life(self, build: Build) -> None:
        engine = build()
        job, trace = make_job("a", prompt(1, 40)), Trace()
        # 1. Taken: nothing runs yet, nothing is cached.
        assert engine.add(job).resident_tokens == 0
        # 2. Every token comes once, in order; the hit of the first is 0.
        trace.run(engine)
        assert [one.position for one in trace.sampled(job)] == list(range(12))
        assert {one.cached_tokens for one in trace.sampled(job)} == {0}
        # 3. It ends once, by length, and its pages are free in that very step.
        (ending,) = trace.finished(job)
        assert (ending.outcome, ending.error) == (Outcome.LENGTH, None)
        last = next(step for step in trace.steps if step.finished)
        assert (last.load.free_blocks, last.load.running, last.load.credits) == (64, 0, 16)
        # 4. What was computed whole stays findable: 51 tokens have KV.
        assert len(trace.held) == 51 // 16
        engine.check()

    def test_same_job_same_tokens_on_another_engine(self, build: Build) -> None:
        assert generate(build(), make_job("a", prompt(1, 40))) == generate(build(), make_job("b", prompt(1, 40)))

    def test_resuming_equals_going_on(self, build: Build) -> None:
        (whole,) = generate(build(), make_job("a", prompt(1, 40), temperature=1.0, seed=9))
        head = prompt(1, 40) + tuple(whole[:5])
        resumed = make_job("b", head, prompt_len=40, temperature=1.0, seed=9)
        assert generate(build(), resumed) == [whole[5:]]

    def test_chunked_equals_whole(self, build: Build) -> None:
        whole = generate(build(max_num_batched_tokens=256), make_job("a", prompt(3, 150)))
        assert generate(build(max_num_batched_tokens=16), make_job("a", prompt(3, 150))) == whole

    def test_batched_equals_alone_greedy_and_seeded(self, build: Build) -> None:
        jobs = [
            make_job(f"j{index}", prompt(index, 5 + 11 * index), temperature=float(index % 2), seed=index, top_p=0.9)
            for index in range(8)
        ]
        alone = [generate(build(), job)[0] for job in jobs]
        assert generate(build(), *jobs) == alone

    def test_seed_and_choice_matter_only_when_sampling(self, build: Build) -> None:
        def tokens(**sampling: object) -> list[int]:
            return generate(build(), make_job("a", prompt(1, 20), **sampling))[0]  # type: ignore[arg-type]

        assert tokens(temperature=1.0, seed=1) == tokens(temperature=1.0, seed=1)
        assert tokens(temperature=1.0, seed=1) != tokens(temperature=1.0, seed=2)
        assert tokens(temperature=0.0, seed=1) == tokens(temperature=0.0, seed=2)

    def test_a_step_mixes_a_chunk_of_a_prompt_with_running_streams(self, build: Build) -> None:
        engine, trace = build(max_num_batched_tokens=16), Trace()
        first, second = make_job("a", prompt(1, 10), max_tokens=30), make_job("b", prompt(2, 100))
        engine.add(first)
        trace.see(engine.step())
        engine.add(second)
        while not trace.sampled(second):
            before = len(trace.sampled(first))
            trace.see(engine.step())
            assert len(trace.sampled(first)) == before + 1


class TestStepTime:
    """No step is as short as these are asked to be, so prompts go on in the smallest pieces."""

    def test_prompts_are_computed_in_pieces_that_fit(self, build: Build) -> None:
        engine, trace = build(max_step_ms=0.0001), Trace()
        job = make_job("a", prompt(1, 70), JobKind.PREFILL)
        engine.add(job)
        trace.run(engine)
        assert [one.computed_tokens for one in trace.progress(job)] == [16, 32, 48, 64, 70]

    def test_pieces_are_as_large_as_ever_where_there_is_time(self, build: Build) -> None:
        engine, trace = build(max_step_ms=600_000.0), Trace()
        job = make_job("a", prompt(1, 200), JobKind.PREFILL)
        engine.add(job)
        trace.run(engine)
        assert [one.computed_tokens for one in trace.progress(job)] == [16, 80, 144, 200]

    @pytest.mark.parametrize("batch_invariant", [False, True], ids=["default", "batch-invariant"])
    def test_the_tokens_are_the_same(self, build: Build, batch_invariant: bool) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30 + 41 * index), logprobs=1) for index in range(4)]
        whole = generate(build(batch_invariant=batch_invariant), *jobs)
        assert generate(build(batch_invariant=batch_invariant, max_step_ms=0.0001), *jobs) == whole


class TestEndings:
    def test_stop_token_is_reported_and_ends(self, build: Build) -> None:
        engine = build()
        (tokens,) = generate(engine, make_job("a", prompt(1, 20)))
        job, trace = make_job("b", prompt(1, 20), stop_token_ids=(tokens[4],)), Trace(held=set(engine_held(engine)))
        engine.add(job)
        trace.run(engine)
        assert trace.tokens(job) == tokens[: tokens.index(tokens[4]) + 1]
        assert [one.outcome for one in trace.finished(job)] == [Outcome.STOP]

    def test_context_ends_an_answer(self, build: Build) -> None:
        engine, trace = build(max_model_len=48), Trace()
        job = make_job("a", prompt(1, 40), max_tokens=1000, ignore_eos=True)
        engine.add(job)
        assert len(trace.run(engine).tokens(job)) == 8
        assert [one.outcome for one in trace.finished(job)] == [Outcome.LENGTH]

    def test_max_tokens_counts_what_was_generated_before(self, build: Build) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 40), prompt_len=33, max_tokens=10)
        engine.add(job)
        trace.run(engine)
        assert [one.position for one in trace.sampled(job)] == [7, 8, 9]

    @pytest.mark.parametrize(
        ("first_token", "sampling", "outcome"),
        [
            (STOP_ID, {}, Outcome.STOP),
            (99, {"stop_token_ids": (99,)}, Outcome.STOP),
            (99, {"max_tokens": 1}, Outcome.LENGTH),
        ],
    )
    def test_first_token_may_end_a_decode_job(
        self, build: Build, first_token: int, sampling: dict[str, object], outcome: Outcome
    ) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 40), JobKind.DECODE, **sampling)  # type: ignore[arg-type]
        engine.add(job)
        engine.activate(job.key, first_token)
        step = trace.see(engine.step())
        assert [one.outcome for one in step.finished] == [outcome]
        assert not step.sampled
        assert step.load.free_blocks == 64
        engine.check()

    def test_ignored_stop_id_goes_on(self, build: Build) -> None:
        prefill, decode = build(), build()
        job = make_job("a", prompt(1, 40), JobKind.DECODE, ignore_eos=True, max_tokens=3)
        sent = make_job("a", prompt(1, 40), JobKind.PREFILL, ignore_eos=True, max_tokens=3)
        blocks = decode.add(job).blocks
        prefill.add(sent)
        copy_pages(prefill, Trace().run(prefill).progress(sent)[-1].blocks, decode, blocks)
        decode.activate(job.key, STOP_ID)
        assert len(Trace().run(decode).tokens(job)) == 2

    def test_a_prefill_job_that_ends_its_request_holds_its_pages(self, build: Build) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 40), JobKind.PREFILL, max_tokens=1)
        engine.add(job)
        trace.run(engine)
        assert [one.outcome for one in trace.finished(job)] == [Outcome.LENGTH]
        assert trace.steps[-1].load.free_blocks == 61
        engine.remove(job.key)
        assert free(engine) == 64
        engine.check()


def engine_held(engine: Engine) -> list[bytes]:
    """Stand-ins for the names that an engine held before a trace began."""
    return [index.to_bytes(2, "little") for index in range(engine.step().load.cached_blocks)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("job", "error"),
        [
            (make_job("x", ()), InvalidRequest),
            (make_job("x", (1, 300)), InvalidRequest),
            (make_job("x", (1, -1)), InvalidRequest),
            (make_job("x", prompt(1, 20), prompt_len=8, max_tokens=12), InvalidRequest),
            (make_job("x", prompt(1, 512)), ContextLengthExceeded),
            (make_job("x", prompt(1, 600), JobKind.DECODE), ContextLengthExceeded),
            (make_job("a", prompt(1, 20)), InvalidRequest),  # its key is taken
            (make_job("x", prompt(1, 400), JobKind.DECODE), Overloaded),
        ],
    )
    def test_leaves_nothing_behind(self, build: Build, job: Job, error: type[HeadraceError]) -> None:
        engine = build(blocks=32)
        engine.add(make_job("a", prompt(5, 180), JobKind.DECODE))
        before = engine.step()
        with pytest.raises(error):
            engine.add(job)
        assert engine.step().load == before.load
        engine.check()

    def test_no_slot(self, build: Build) -> None:
        engine = build(max_num_seqs=2)
        for name in "ab":
            engine.add(make_job(name, prompt(1, 20)))
        with pytest.raises(Overloaded) as refusal:
            engine.add(make_job("c", prompt(1, 20)))
        assert refusal.value.retry_after_s
        Trace().run(engine)
        engine.add(make_job("c", prompt(1, 20)))

    def test_unknown_keys_are_ignored(self, build: Build) -> None:
        engine = build()
        engine.remove(JobKey("nobody", 1))
        engine.activate(JobKey("nobody", 1), 5)
        assert engine.step().idle


class TestPrefixCache:
    @pytest.mark.parametrize(("length", "pages"), [(50, 48), (49, 48), (48, 32), (16, 0), (17, 16), (1, 0)])
    def test_a_whole_hit_leaves_one_token_to_compute(self, build: Build, length: int, pages: int) -> None:
        engine, trace = build(), Trace()
        first, second = make_job("a", prompt(1, length)), make_job("b", prompt(1, length))
        engine.add(first)
        trace.run(engine)
        assert engine.add(second).resident_tokens == pages
        trace.run(engine)
        assert [one.cached_tokens for one in trace.sampled(second)] == [length - 1] + [0] * 11
        assert trace.tokens(second) == trace.tokens(first)

    def test_generated_blocks_are_found_by_the_next_turn(self, build: Build) -> None:
        engine = build()
        (answer,) = generate(engine, make_job("a", prompt(1, 30), max_tokens=40, ignore_eos=True))
        turn = prompt(1, 30) + tuple(answer) + prompt(2, 5)
        assert engine.add(make_job("b", turn)).resident_tokens == 64

    def test_sharing_prompts_share_pages(self, build: Build) -> None:
        engine = build()
        generate(engine, make_job("a", prompt(1, 64), max_tokens=1))
        jobs = [make_job(f"j{index}", prompt(1, 64) + prompt(index, 8)) for index in range(10)]
        alone = [generate(build(), job)[0] for job in jobs]
        for job in jobs:
            engine.add(job)
        while (load := engine.step().load).waiting:
            pass
        # The four shared blocks count once, and each job has one or two of its own.
        assert 64 - 4 - 2 * len(jobs) <= load.free_blocks <= 64 - 4 - len(jobs)
        for job in jobs:
            engine.remove(job.key)
        assert generate(engine, *jobs) == alone

    def test_another_root_is_another_world(self, build: Build) -> None:
        engine = build()
        generate(engine, make_job("a", prompt(1, 50)))
        assert engine.add(make_job("b", prompt(1, 50), root=root_hash(b"other tenant"))).resident_tokens == 0

    def test_a_hash_collision_is_a_miss(self, build: Build) -> None:
        engine = build()
        generate(engine, make_job("a", prompt(1, 50)))
        honest = make_job("b", prompt(2, 50))
        lying = Job(
            honest.key,
            honest.kind,
            honest.tokens,
            honest.prompt_len,
            honest.sampling,
            ROOT,
            make_job("a", prompt(1, 50)).hashes,
            60.0,
        )
        assert engine.add(lying).resident_tokens == 0
        engine.remove(honest.key)
        assert generate(engine, lying) == generate(build(), honest)

    def test_can_be_switched_off(self, build: Build) -> None:
        engine, trace = build(enable_prefix_caching=False), Trace()
        engine.add(make_job("a", prompt(1, 50)))
        trace.run(engine)
        assert not trace.held
        assert engine.add(make_job("b", prompt(1, 50))).resident_tokens == 0

    def test_news_and_cache_agree_while_blocks_are_evicted(self, build: Build) -> None:
        engine, trace = build(blocks=12), Trace()
        for index in range(12):
            engine.add(make_job(f"j{index}", prompt(index % 7, 40 + index)))
            trace.run(engine)
            engine.check()
        assert any(step.evicted for step in trace.steps)


class TestHandOver:
    @pytest.mark.parametrize("length", [1, 15, 16, 17, 150])
    def test_equals_local(self, build: Build, length: int) -> None:
        prefill, decode = build(), build()
        (local,) = generate(build(), make_job("a", prompt(1, length), temperature=0.7, seed=3))
        assert hand_over(prefill, decode, "a", prompt(1, length), temperature=0.7, seed=3) == local
        for engine in (prefill, decode):
            assert free(engine) == 64
            engine.check()

    def test_takes_only_what_is_missing_and_publishes_it(self, build: Build) -> None:
        prefill, decode = build(), build()
        hand_over(prefill, decode, "a", prompt(1, 40))
        (local,) = generate(build(), make_job("b", prompt(1, 40) + prompt(9, 30)))
        assert decode.add(make_job("x", prompt(1, 40) + prompt(9, 30), JobKind.DECODE)).resident_tokens == 32
        decode.remove(JobKey("x", 1))
        assert hand_over(prefill, decode, "b", prompt(1, 40) + prompt(9, 30)) == local

    def test_progress_names_pages_that_stay(self, build: Build) -> None:
        engine, trace = build(max_num_batched_tokens=20), Trace()
        job = make_job("a", prompt(1, 100), JobKind.PREFILL)
        engine.add(job)
        trace.run(engine)
        progress = trace.progress(job)
        assert [one.computed_tokens for one in progress] == [20, 40, 60, 80, 100]
        assert [len(one.blocks) for one in progress] == [blocks_for(one.computed_tokens) for one in progress]
        assert all(progress[-1].blocks[: len(one.blocks)] == one.blocks for one in progress)
        assert len(trace.tokens(job)) == 1

    def test_what_the_cache_has_is_told_before_anything_is_computed(self, build: Build) -> None:
        engine, decode, trace = build(max_num_batched_tokens=16), build(), Trace()
        engine.add(make_job("before", prompt(1, 64), max_tokens=1))
        trace.run(engine)
        engine.add(make_job("stream", prompt(8, 8), max_tokens=40, ignore_eos=True))
        other = make_job("other", prompt(2, 300), JobKind.PREFILL)
        engine.add(other)
        for _ in range(4):
            trace.see(engine.step())
        # 1. With a stream and a long prompt in front of it, the step that begins it computes nothing and tells of it.
        tokens = prompt(1, 64) + prompt(3, 40)
        sent, granted = (make_job("a", tokens, kind) for kind in (JobKind.PREFILL, JobKind.DECODE))
        engine.add(sent)
        step = trace.see(engine.step())
        (told,) = step.progress
        assert (told.key, told.computed_tokens, len(told.blocks)) == (sent.key, 64, 4)
        assert (step.sampled, step.idle, step.stuck) == ((), False, 0)
        engine.check()
        # 2. Its pages can be sent at once.
        blocks = decode.add(granted).blocks
        copy_pages(engine, told.blocks, decode, blocks[:4])
        # 3. Nobody is told twice, and everybody goes on.
        assert trace.see(engine.step()).sampled
        trace.run(engine)
        first, *later = trace.progress(sent)
        assert first == told
        assert [one.computed_tokens for one in later] == sorted({one.computed_tokens for one in later} - {64})
        assert all(later[-1].blocks[: len(one.blocks)] == one.blocks for one in (first, *later))
        copy_pages(engine, later[-1].blocks[4:], decode, blocks[4:])
        # 4. What arrived is what was computed.
        decode.activate(granted.key, trace.tokens(sent)[0])
        (local,) = generate(build(), make_job("a", tokens))
        assert trace.tokens(sent) + Trace().run(decode).tokens(granted) == local
        for job in (sent, other):
            engine.remove(job.key)
        assert free(engine) == 64
        engine.check()

    @pytest.mark.parametrize("length", [64, 49])
    def test_a_prompt_that_is_here_whole_is_told_of_too(self, build: Build, length: int) -> None:
        engine, trace = build(), Trace()
        engine.add(make_job("before", prompt(1, length), max_tokens=1))
        trace.run(engine)
        job = make_job("a", prompt(1, length), JobKind.PREFILL)
        engine.add(job)
        trace.run(engine)
        assert [one.computed_tokens for one in trace.progress(job)] == [length - 1, length]
        assert [one.cached_tokens for one in trace.sampled(job)] == [length - 1]

    @pytest.mark.parametrize(
        ("kind", "found", "sampling"),
        [(JobKind.LOCAL, 32, {}), (JobKind.PREFILL, 15, {}), (JobKind.PREFILL, 32, {"prompt_logprobs": 0})],
        ids=["not-sent", "no-whole-page", "scored"],
    )
    def test_where_no_page_can_leave_no_step_is_spent_on_it(
        self, build: Build, kind: JobKind, found: int, sampling: dict[str, object]
    ) -> None:
        engine, trace = build(), Trace()
        engine.add(make_job("before", prompt(1, found), max_tokens=1))
        trace.run(engine)
        job = make_job("a", prompt(1, found) + prompt(3, 8), kind, **sampling)  # type: ignore[arg-type]
        engine.add(job)
        step = engine.step()
        assert [one.key for one in step.sampled] == [job.key]
        assert [one.computed_tokens for one in step.progress] == ([found + 8] if kind is JobKind.PREFILL else [])

    def test_a_job_that_leaves_after_it_was_told_of_gives_everything_back(self, build: Build) -> None:
        engine, trace = build(), Trace()
        engine.add(make_job("before", prompt(1, 64), max_tokens=1))
        trace.run(engine)
        job = make_job("a", prompt(1, 64) + prompt(3, 40), JobKind.PREFILL)
        engine.add(job)
        assert trace.see(engine.step()).progress
        engine.remove(job.key)
        engine.check()
        last = trace.see(engine.step())
        assert (last.idle, last.sampled, last.progress, last.load.free_blocks) == (True, (), (), 64)

    def test_a_grant_holds_its_pages_until_it_is_removed(self, build: Build) -> None:
        engine = build()
        job = make_job("a", prompt(1, 100), JobKind.DECODE)
        admission = engine.add(job)
        assert (admission.resident_tokens, len(set(admission.blocks))) == (0, 7)
        assert free(engine) == 57
        assert engine.step().idle

    def test_verified_pages_of_a_broken_transfer_are_kept(self, build: Build) -> None:
        prefill, decode = build(), build()
        sent, granted = (make_job("a", prompt(1, 100), kind) for kind in (JobKind.PREFILL, JobKind.DECODE))
        blocks = decode.add(granted).blocks
        prefill.add(sent)
        source = Trace().run(prefill).progress(sent)[-1].blocks
        copy_pages(prefill, source[:3], decode, blocks[:3])
        decode.remove(granted.key, verified_tokens=3 * 16 + 5)
        assert decode.step().load.cached_blocks == 3
        assert decode.add(make_job("b", prompt(1, 100), JobKind.DECODE)).resident_tokens == 48
        decode.remove(JobKey("b", 1))
        assert generate(decode, make_job("c", prompt(1, 100))) == generate(build(), make_job("c", prompt(1, 100)))

    def test_a_page_of_nonsense_fails_its_job_alone(self, build: Build) -> None:
        engine, trace = build(blocks=16), Trace()
        broken, good = make_job("a", prompt(1, 60), JobKind.DECODE), make_job("b", prompt(2, 60))
        blocks = engine.add(broken).blocks
        engine.pages.write(blocks, memoryview(b"\xff" * (len(blocks) * BLOCK_BYTES)))  # as floats: not a number
        engine.add(good)
        engine.activate(broken.key, 7)
        trace.run(engine)
        (ending,) = trace.finished(broken)
        assert ending.outcome is Outcome.FAILED
        assert isinstance(ending.error, InternalError)
        assert not trace.sampled(broken)
        assert trace.tokens(good) == generate(build(), good)[0]
        # Nothing of it is found or felt later, by whoever gets its pages.
        again = [make_job("a", prompt(1, 60)), make_job("d", prompt(3, 100))]
        assert engine.add(again[0]).resident_tokens == 0
        engine.remove(again[0].key)
        assert generate(engine, *again) == generate(build(), *again)
        engine.check()

    @pytest.mark.parametrize("batch_invariant", [False, True], ids=["default", "batch-invariant"])
    def test_nonsense_in_pages_that_were_given_up_is_felt_by_nobody(self, build: Build, batch_invariant: bool) -> None:
        """Nobody has drawn from it, so nobody has noticed: the pages go to others as they are."""
        engine, trace = build(blocks=16, batch_invariant=batch_invariant), Trace()
        broken = make_job("a", prompt(1, 60), JobKind.DECODE)
        blocks = engine.add(broken).blocks
        engine.pages.write(blocks, memoryview(b"\xff" * (len(blocks) * BLOCK_BYTES)))
        engine.remove(broken.key, verified_tokens=60)
        others = [make_job(f"{index}", prompt(10 + index, 50), max_tokens=4) for index in range(4)]
        for job in others:
            engine.add(job)
        trace.run(engine)
        fresh = build(batch_invariant=batch_invariant)
        assert [trace.tokens(job) for job in others] == generate(fresh, *others)
        engine.check()


def read(engine: Engine, blocks: tuple[int, ...]) -> bytes:
    data = bytearray(len(blocks) * engine.pages.layout.block_bytes)
    engine.pages.read(blocks, memoryview(data))
    return bytes(data)


def write_on(engine: Engine, job: Job, trace: Trace, tokens: int) -> None:
    """Step until `job` has written `tokens` tokens here."""
    while len(trace.tokens(job)) < tokens:
        assert not trace.see(engine.step()).idle


class TestHold:
    @pytest.mark.parametrize("written", [1, 8, 9, 20])  # 39 + 9 tokens fill three pages
    def test_a_held_stream_stays_where_it_is(self, build: Build, written: int) -> None:
        engine, trace = build(), Trace()
        job, other = (make_job(name, prompt(n, 40), max_tokens=30, ignore_eos=True) for n, name in enumerate("ab"))
        for one in (job, other):
            engine.add(one)
        write_on(engine, job, trace, written)
        # 1. All its tokens but the last one have KV.
        held = engine.hold(job.key)
        assert held is not None
        assert (held.key, held.computed_tokens, len(held.blocks)) == (job.key, 39 + written, blocks_for(39 + written))
        before = read(engine, held.blocks)
        # 2. It goes no further, and the other one does.
        trace.run(engine)
        assert len(trace.tokens(job)) == written
        assert not trace.finished(job)
        assert trace.tokens(other) == generate(build(), other)[0]
        # 3. Its pages stay, and told again it says the same.
        assert engine.hold(job.key) == held
        assert read(engine, held.blocks) == before
        engine.check()
        assert trace.steps[-1].load.free_blocks <= 64 - len(held.blocks)
        # 4. They are free when it is removed, and found again.
        engine.remove(job.key)
        assert free(engine) == 64
        engine.check()
        assert engine.add(make_job("c", prompt(0, 40) + prompt(5, 9))).resident_tokens == 32

    def test_a_held_decode_job_stays_where_it_is(self, build: Build) -> None:
        prefill, decode, trace = build(), build(), Trace()
        sent, granted = (
            make_job("a", prompt(1, 40), kind, max_tokens=30, ignore_eos=True)
            for kind in (JobKind.PREFILL, JobKind.DECODE)
        )
        blocks = decode.add(granted).blocks
        prefill.add(sent)
        run = Trace().run(prefill)
        copy_pages(prefill, run.progress(sent)[-1].blocks, decode, blocks)
        decode.activate(granted.key, run.tokens(sent)[0])
        write_on(decode, granted, trace, 5)
        held = decode.hold(granted.key)
        assert held is not None
        assert (held.computed_tokens, held.blocks[:2]) == (45, blocks[:2])
        assert len(trace.run(decode).tokens(granted)) == 5

    def test_a_prompt_that_is_being_read_is_held_with_what_it_has(self, build: Build) -> None:
        engine, trace = build(max_num_batched_tokens=16), Trace()
        job = make_job("a", prompt(1, 100))
        engine.add(job)
        for _ in range(3):
            trace.see(engine.step())
        held = engine.hold(job.key)
        assert held is not None
        assert (held.computed_tokens, len(held.blocks)) == (48, 3)
        assert not trace.run(engine).sampled(job)
        engine.remove(job.key)
        assert free(engine) == 64

    def test_one_that_waits_for_pages_has_none(self, build: Build) -> None:
        engine, trace = build(blocks=8), Trace()
        first, late = make_job("a", prompt(1, 60), max_tokens=40), make_job("b", prompt(2, 100), max_tokens=4)
        engine.add(first)
        engine.add(late)
        trace.see(engine.step())
        held = engine.hold(late.key)
        assert held is not None
        assert (held.computed_tokens, held.blocks) == (0, ())
        trace.run(engine)
        assert not trace.sampled(late)
        assert len(trace.finished(first)) == 1
        engine.remove(late.key)
        engine.check()

    def test_who_waits_for_its_tokens_goes_on_without_it(self, build: Build) -> None:
        engine, trace = build(max_num_batched_tokens=16), Trace()
        first, twin = (make_job(name, prompt(1, 100), max_tokens=4) for name in "ab")
        engine.add(first)
        engine.add(twin)
        for _ in range(3):
            trace.see(engine.step())
        assert engine.hold(first.key) is not None
        trace.run(engine)
        assert trace.tokens(twin) == generate(build(), twin)[0]
        assert not trace.sampled(first)
        engine.remove(first.key)
        engine.check()

    def test_nothing_is_held_of_what_is_over(self, build: Build) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 20))
        engine.add(job)
        trace.run(engine)
        assert engine.hold(job.key) is None
        assert engine.hold(JobKey("nobody", 1)) is None
        ended = make_job("b", prompt(2, 20), JobKind.DECODE)
        engine.add(ended)
        engine.activate(ended.key, STOP_ID)
        assert engine.hold(ended.key) is None
        assert [one.outcome for one in engine.step().finished] == [Outcome.STOP]

    @pytest.mark.parametrize("kind", [JobKind.PREFILL, JobKind.DECODE, JobKind.EXPORT])
    @pytest.mark.parametrize("steps", [0, 1, 9])
    def test_only_who_writes_an_answer_can_be_held(self, build: Build, kind: JobKind, steps: int) -> None:
        engine = build(max_num_batched_tokens=16)
        job = make_job("a", prompt(1, 60), kind)
        engine.add(job)
        for _ in range(steps):
            engine.step()
        with pytest.raises(InvalidRequest, match="cannot be held"):
            engine.hold(job.key)
        engine.remove(job.key)
        assert free(engine) == 64
        engine.check()


class TestExport:
    @pytest.mark.parametrize("written", [1, 8, 9, 20])
    @pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "seeded"])
    def test_an_answer_goes_on_elsewhere_with_its_pages(
        self, build: Build, written: int, sampling: dict[str, object]
    ) -> None:
        job = make_job("a", prompt(1, 40), max_tokens=30, ignore_eos=True, **sampling)  # type: ignore[arg-type]
        (expected,) = generate(build(), job)
        source, target, trace = build(enable_prefix_caching=False), build(), Trace()
        source.add(job)
        write_on(source, job, trace, written)
        held = source.hold(job.key)
        assert held is not None
        # 1. The rest of it is granted where it moves to.
        answer = trace.tokens(job)
        tokens = job.tokens + tuple(answer[:-1])
        moved = replace(job, kind=JobKind.DECODE, tokens=tokens, hashes=chain(ROOT, tokens))
        granted = target.add(moved)
        # 2. Here its pages are held twice, and outlive the job whose they were.
        export = replace(moved, kind=JobKind.EXPORT, key=JobKey("a", 2))
        assert source.add(export) == Admission(len(tokens), held.blocks)
        source.remove(job.key)
        source.check()
        assert source.step().idle
        # 3. There it goes on.
        copy_pages(source, held.blocks, target, granted.blocks)
        target.activate(moved.key, answer[-1])
        assert answer + Trace().run(target).tokens(moved) == expected
        # 4. All is given back.
        source.remove(export.key)
        for engine in (source, target):
            assert free(engine) == 64
            engine.check()

    @pytest.mark.parametrize(("length", "found"), [(100, 96), (96, 96), (95, 80), (16, 16)])
    def test_whole_pages_are_exported_from_the_cache(self, build: Build, length: int, found: int) -> None:
        engine, other = build(blocks=16), build()
        generate(engine, make_job("before", prompt(1, 100), max_tokens=1))
        export = make_job("a", prompt(1, length), JobKind.EXPORT)
        admission = engine.add(export)
        assert (admission.resident_tokens, len(admission.blocks)) == (found, found // 16)
        before = read(engine, admission.blocks)
        # 1. Whatever else needs pages, these stay as they are.
        engine.check()
        for index in range(4):
            generate(engine, make_job(f"j{index}", prompt(2 + index, 90), max_tokens=4))
        assert read(engine, admission.blocks) == before
        engine.check()
        # 2. Another engine gets them, as of a transfer that broke off behind them, and computes the rest.
        received = make_job("b", prompt(1, 100), JobKind.DECODE)
        copy_pages(engine, admission.blocks, other, other.add(received).blocks[: len(admission.blocks)])
        other.remove(received.key, verified_tokens=admission.resident_tokens)
        asked = make_job("c", prompt(1, 100))
        assert other.add(asked).resident_tokens == found
        tokens = [one.token for step in (other.step() for _ in range(40)) for one in step.sampled]
        assert tokens == generate(build(), asked)[0]
        # 3. They are free afterwards.
        engine.remove(export.key)
        assert free(engine) == 16
        engine.check()

    def test_there_is_nothing_to_export_of_what_is_not_here(self, build: Build) -> None:
        engine = build()
        generate(engine, make_job("before", prompt(1, 50)))
        strangers = [
            make_job("a", prompt(2, 50), JobKind.EXPORT),
            make_job("b", prompt(1, 50), JobKind.EXPORT, root=root_hash(b"other tenant")),
            replace(make_job("c", prompt(3, 50), JobKind.EXPORT), hashes=chain(ROOT, prompt(1, 50))),
            make_job("d", prompt(1, 15), JobKind.EXPORT),
        ]
        assert [engine.add(export) for export in strangers] == [Admission(0, ())] * 4
        assert engine.step().idle
        engine.check()

    def test_pages_that_are_still_written_are_not_exported(self, build: Build) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 40), max_tokens=30, ignore_eos=True)
        engine.add(job)
        write_on(engine, job, trace, 5)
        export = make_job("x", prompt(1, 40) + tuple(trace.tokens(job)[:4]), JobKind.EXPORT)
        assert engine.add(export).resident_tokens == 32
        assert len(trace.run(engine).tokens(job)) == 30
        engine.check()

    def test_exports_have_slots_of_their_own(self, build: Build) -> None:
        engine, trace = build(max_num_seqs=1), Trace()
        job = make_job("a", prompt(1, 40), max_tokens=30, ignore_eos=True)
        engine.add(job)
        write_on(engine, job, trace, 5)
        engine.hold(job.key)
        exports = [make_job(name, prompt(1, 40), JobKind.EXPORT) for name in "xy"]
        assert engine.add(exports[0]).resident_tokens == 40
        with pytest.raises(Overloaded):
            engine.add(exports[1])
        load = engine.step().load
        assert (load.running, load.waiting, load.credits) == (1, 0, 0)
        engine.remove(job.key)
        load = engine.step().load
        assert (load.running, load.waiting, load.credits) == (0, 0, 1)
        generate(engine, make_job("b", prompt(2, 20)))
        engine.remove(exports[0].key)
        engine.add(exports[1])
        engine.check()

    def test_the_last_free_page_is_left_to_those_who_write(self, build: Build) -> None:
        engine, trace = build(blocks=8), Trace()
        engine.add(make_job("before", prompt(1, 64), max_tokens=1))
        trace.run(engine)
        stream = make_job("stream", prompt(2, 60), max_tokens=30, ignore_eos=True)
        engine.add(stream)
        write_on(engine, stream, trace, 1)
        with pytest.raises(Overloaded) as refusal:  # four pages are free, those that are asked for
            engine.add(make_job("x", prompt(1, 64), JobKind.EXPORT))
        assert refusal.value.retry_after_s
        assert engine.add(make_job("y", prompt(1, 48), JobKind.EXPORT)).resident_tokens == 48
        engine.check()

    def test_pages_that_turn_out_to_be_nonsense_are_not_kept_for_an_export(self, build: Build) -> None:
        engine, trace = build(blocks=16), Trace()
        broken = make_job("a", prompt(1, 60), JobKind.DECODE)
        blocks = engine.add(broken).blocks
        engine.pages.write(blocks, memoryview(b"\xff" * (len(blocks) * BLOCK_BYTES)))
        engine.activate(broken.key, 7)
        export = make_job("x", prompt(1, 60), JobKind.EXPORT)
        assert engine.add(export).resident_tokens == 48
        trace.run(engine)
        assert [one.outcome for one in trace.finished(broken)] == [Outcome.FAILED]
        engine.check()
        another = make_job("y", prompt(1, 48), JobKind.EXPORT)
        assert engine.add(another).resident_tokens == 0  # not from the one that still holds them either
        for job in (export, another):
            engine.remove(job.key)
            engine.check()
        again = [make_job("a", prompt(1, 60)), make_job("d", prompt(3, 100))]
        assert engine.add(again[0]).resident_tokens == 0
        engine.remove(again[0].key)
        assert generate(engine, *again) == generate(build(), *again)


def near(one: TokenLogprob | None, other: TokenLogprob | None) -> bool:
    """Equal but for the arithmetic of another batch."""
    if one is None or other is None:
        return one is other
    pairs = zip(
        (one.logprob, *(value for _, value in one.top)),
        (other.logprob, *(value for _, value in other.top)),
        strict=True,
    )
    return one.token == other.token and all(a == pytest.approx(b, abs=1e-4) for a, b in pairs)


class TestSharing:
    def test_choices_of_one_prompt_share_its_pages(self, build: Build) -> None:
        jobs = [
            replace(make_job(f"r{choice}", prompt(1, 100), temperature=1.0, seed=5), choice=choice)
            for choice in range(4)
        ]
        alone = [generate(build(), job)[0] for job in jobs]
        engine, trace = build(), Trace()
        for job in jobs:
            engine.add(job)
        while any(not trace.sampled(job) for job in jobs):
            trace.see(engine.step())
        assert trace.steps[-1].load.free_blocks == 64 - 6 - 4
        trace.run(engine)
        assert [one.cached_tokens for job in jobs for one in trace.sampled(job)[:1]] == [0, 99, 99, 99]
        assert [trace.tokens(job) for job in jobs] == alone
        engine.check()

    @pytest.mark.parametrize("common", [1, 15, 16, 17, 40, 63])
    def test_a_page_that_goes_on_differently_is_used_up_to_there(self, build: Build, common: int) -> None:
        engine, trace = build(), Trace()
        first = make_job("a", prompt(1, 64), max_tokens=20)
        second = make_job("b", prompt(1, common) + prompt(5, 64 - common), max_tokens=20)
        engine.add(first)
        trace.see(engine.step())
        engine.add(second)  # while the first one writes on
        trace.run(engine)
        assert trace.sampled(second)[0].cached_tokens == common
        assert trace.tokens(first) == generate(build(), first)[0]
        assert trace.tokens(second) == generate(build(), second)[0]
        engine.check()

    @pytest.mark.parametrize("block_size", [32, 64, 48])
    def test_larger_pages_change_nothing(self, build: Build, block_size: int) -> None:
        jobs = [make_job(f"j{index}", prompt(1, 70) + prompt(index, 9 * index), max_tokens=30) for index in range(5)]
        alone = [generate(build(), job)[0] for job in jobs]
        engine = build(block_size=block_size, blocks=12, max_model_len=256)
        assert generate(engine, *jobs) == alone
        assert generate(engine, *jobs) == alone
        engine.check()
        prefill, decode = (build(block_size=block_size) for _ in range(2))
        for name in "xy":  # the second time, whole pages of it are resident
            assert hand_over(prefill, decode, name, jobs[4].tokens, max_tokens=30) == alone[4]
        for engine in (prefill, decode):
            assert free(engine) == 64
            engine.check()

    def test_larger_pages_are_named_block_by_block(self, build: Build) -> None:
        engine, trace = build(block_size=32), Trace()
        job = make_job("a", prompt(1, 100), max_tokens=1)
        engine.add(job)
        trace.run(engine)
        assert trace.held == set(job.hashes[:6])
        assert engine.add(make_job("d", prompt(1, 97), JobKind.DECODE)).resident_tokens == 96
        assert engine.add(make_job("e", prompt(1, 90), JobKind.DECODE)).resident_tokens == 64


class TestLoad:
    def test_what_lost_its_pages_is_named_until_it_has_some_again(self, build: Build) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30), max_tokens=50) for index in range(4)]
        engine, trace = build(blocks=10, max_model_len=128), Trace()
        for job in jobs:
            engine.add(job)
        for step in trace.run(engine).steps:
            assert not set(step.displaced) & {one.key for one in step.sampled}
            assert len(step.displaced) >= step.preempted
        assert any(step.displaced for step in trace.steps)
        assert trace.steps[-1].displaced == ()

    def test_what_waits_for_its_first_pages_is_not_displaced(self, build: Build) -> None:
        engine, trace = build(blocks=10, max_model_len=128), Trace()
        for index in range(4):
            engine.add(make_job(f"j{index}", prompt(index, 100), max_tokens=2))
        assert all(step.displaced == () for step in trace.run(engine).steps)

    def test_prompts_are_counted_where_they_are_computed(self, build: Build) -> None:
        """A page that is cached is not; a stream's token is no prompt's."""
        engine, trace = build(), Trace()
        engine.add(make_job("a", prompt(1, 50), max_tokens=5))
        trace.run(engine)
        assert sum(step.prompt_tokens for step in trace.steps) == 50
        before = len(trace.steps)
        engine.add(make_job("b", prompt(1, 70), max_tokens=5))
        trace.run(engine)
        assert 0 < sum(step.prompt_tokens for step in trace.steps[before:]) <= 70 - 48


class TestLogprobs:
    def test_every_token_brings_its_own_once_preempted_or_not(self, build: Build) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30), max_tokens=50, logprobs=3) for index in range(4)]
        alone = []
        for job in jobs:
            engine, trace = build(), Trace()
            engine.add(job)
            alone.append([one.logprob for one in trace.run(engine).sampled(job)])
        engine, trace = build(blocks=10, max_model_len=128), Trace()
        for job in jobs:
            engine.add(job)
        trace.run(engine)
        assert sum(step.preempted for step in trace.steps) > 0
        for job, expected in zip(jobs, alone, strict=True):
            told = trace.sampled(job)
            assert len(told) == len(expected)
            assert all(one.logprob is not None and one.logprob.token == one.token for one in told)
            assert all(len(one.logprob.top) == 3 for one in told if one.logprob)
            assert all(near(one.logprob, other) for one, other in zip(told, expected, strict=True))

    def test_none_unless_asked_for(self, build: Build) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 30))
        engine.add(job)
        assert all(one.logprob is None and not one.prompt_logprobs for one in trace.run(engine).sampled(job))

    @pytest.mark.parametrize("kind", [JobKind.LOCAL, JobKind.PREFILL])
    @pytest.mark.parametrize("budget", [16, 23, 256])
    def test_a_prompt_is_scored_whole_whatever_its_chunks_and_the_cache(
        self, build: Build, kind: JobKind, budget: int
    ) -> None:
        def scores(engine: Engine) -> tuple[TokenLogprob, ...]:
            job, trace = make_job("a", prompt(1, 70), kind, prompt_logprobs=2), Trace(held=set(engine_held(engine)))
            engine.add(job)
            first, *rest = trace.run(engine).sampled(job)
            engine.remove(job.key)
            assert first.cached_tokens == 0
            assert all(not one.prompt_logprobs for one in rest)
            return first.prompt_logprobs

        expected = scores(build(max_num_batched_tokens=512))
        assert [one.token for one in expected] == list(prompt(1, 70)[1:])
        assert all(len(one.top) == 2 for one in expected)
        engine = build(max_num_batched_tokens=budget)
        for _ in range(2):  # cold, and with all of it in the cache
            got = scores(engine)
            assert len(got) == 69
            assert all(near(one, other) for one, other in zip(got, expected, strict=True))
        assert engine.add(make_job("b", prompt(1, 70))).resident_tokens == 64

    def test_a_decode_job_scores_no_prompt(self, build: Build) -> None:
        engine, trace = build(), Trace()
        job = make_job("a", prompt(1, 40), JobKind.DECODE, prompt_logprobs=1, logprobs=1, max_tokens=4)
        sent, source = make_job("a", prompt(1, 40), JobKind.PREFILL), build()
        source.add(sent)
        copy_pages(source, Trace().run(source).progress(sent)[-1].blocks, engine, engine.add(job).blocks)
        engine.activate(job.key, 5)
        trace.run(engine)
        assert [one.prompt_logprobs for one in trace.sampled(job)] == [()] * 3
        assert all(one.logprob is not None for one in trace.sampled(job))

    def test_no_stop_id_before_min_tokens(self, build: Build) -> None:
        engine = build()
        (tokens,) = generate(engine, make_job("a", prompt(1, 20)))
        job = make_job("b", prompt(1, 20), stop_token_ids=(tokens[2], tokens[4]), min_tokens=8, ignore_eos=True)
        (later,) = generate(engine, job)
        assert not {tokens[2], tokens[4]} & set(later[:8])
        assert len(later) >= 8


class TestPressure:
    def test_all_finish_with_the_same_tokens(self, build: Build) -> None:
        jobs = [
            make_job(f"j{index}", prompt(index, 30), max_tokens=60, temperature=1.0, ignore_eos=True)
            for index in range(5)
        ]
        alone = [generate(build(), job)[0] for job in jobs]
        engine, trace = build(blocks=14), Trace()
        for job in jobs:
            engine.add(job)
        trace.run(engine)
        assert any(step.load.waiting for step in trace.steps)
        assert [trace.tokens(job) for job in jobs] == alone
        assert [[one.position for one in trace.sampled(job)] for job in jobs] == [list(range(60))] * 5
        engine.check()

    def test_the_oldest_is_never_delayed(self, build: Build) -> None:
        jobs = [make_job(f"j{index}", prompt(index, 30), max_tokens=60, ignore_eos=True) for index in range(5)]
        engine, trace = build(blocks=14), Trace()
        for job in jobs:
            engine.add(job)
        trace.run(engine)
        (done,) = [index for index, step in enumerate(trace.steps) for one in step.finished if one.key == jobs[0].key]
        assert done == 59

    def test_an_activated_decode_job_survives_preemption(self, build: Build) -> None:
        jobs = [(f"j{index}", prompt(index, 30)) for index in range(4)]
        alone = [generate(build(), make_job(name, tokens, max_tokens=60, ignore_eos=True))[0] for name, tokens in jobs]
        prefill, decode, trace = build(), build(blocks=12), Trace()
        firsts = []
        for name, tokens in jobs:
            sent = make_job(name, tokens, JobKind.PREFILL, max_tokens=60, ignore_eos=True)
            prefill.add(sent)
            run = Trace()
            while not run.sampled(sent):
                run.steps.append(prefill.step())
            granted = make_job(name, tokens, JobKind.DECODE, max_tokens=60, ignore_eos=True)
            copy_pages(prefill, run.progress(sent)[-1].blocks, decode, decode.add(granted).blocks)
            decode.activate(granted.key, run.tokens(sent)[0])
            firsts.append((granted, run.tokens(sent)))
        trace.run(decode)
        assert any(step.load.waiting for step in trace.steps)
        assert [first + trace.tokens(job) for job, first in firsts] == alone
        decode.check()

    def test_pinned_pages_are_never_taken(self, build: Build) -> None:
        engine, trace = build(blocks=8), Trace()
        held = make_job("held", prompt(1, 60), JobKind.PREFILL)
        engine.add(held)
        trace.run(engine)
        blocks = trace.progress(held)[-1].blocks
        before = bytearray(len(blocks) * BLOCK_BYTES)
        engine.pages.read(blocks, memoryview(before))
        # 1. A stream that grows into the held pages stands still and keeps what it has.
        growing = make_job("growing", prompt(2, 50), max_tokens=40, ignore_eos=True)
        engine.add(growing)
        trace.run(engine)
        assert 0 < len(trace.tokens(growing)) < 40
        after = bytearray(len(before))
        engine.pages.read(blocks, memoryview(after))
        assert after == before
        # 2. While it stands still, no grant takes the pages it waits for.
        engine.remove(held.key)
        with pytest.raises(Overloaded):
            engine.add(make_job("late", prompt(3, 20), JobKind.DECODE))
        # 3. With the pages back it ends.
        trace.run(engine)
        assert len(trace.tokens(growing)) == 40
        engine.check()


class TestRemoval:
    @pytest.mark.parametrize("kind", list(JobKind))
    @pytest.mark.parametrize("steps", range(8))
    def test_at_any_time_gives_everything_back(self, build: Build, kind: JobKind, steps: int) -> None:
        engine = build(max_num_batched_tokens=16)
        job = make_job("a", prompt(1, 60), kind, max_tokens=30)
        other = make_job("b", prompt(2, 20), max_tokens=4)
        engine.add(job)
        engine.add(other)
        if kind is JobKind.DECODE and steps > 1:
            engine.remove(job.key)
            blocks = engine.add(job).blocks
            source = build()
            sent = make_job("a", prompt(1, 60), JobKind.PREFILL)
            source.add(sent)
            copy_pages(source, Trace().run(source).progress(sent)[-1].blocks, engine, blocks)
            engine.activate(job.key, 5)
        for _ in range(steps):
            engine.step()
        engine.remove(job.key)
        engine.check()
        trace = Trace()
        trace.steps = [engine.step() for _ in range(30)]
        assert not trace.sampled(job)
        assert not trace.finished(job)
        assert trace.steps[-1].load.free_blocks == 64
        engine.check()

    def test_check_finds_a_leak(self, build: Build) -> None:
        engine = build()
        engine.check()
        getattr(engine, "_engine", engine)._allocator.pool.take()
        with pytest.raises(InternalError):
            engine.check()
