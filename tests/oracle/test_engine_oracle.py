"""The engine against transformers: 20 prompts x 64 greedy tokens in float32, along every way a token can be made."""

import pytest
import torch
from fixtures.engine_driver import copy_pages, generate, make_job
from fixtures.references import NEAR_TIE, Reference, assert_agree, load_references
from make_reference import load_transformers

from headrace.core.generation import ChatPrompt, Message, TextPrompt
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.engine import Engine, Progress
from headrace.engine.options import EngineOptions
from headrace.modelfiles.files import ModelFiles
from headrace.text.model import TextModel

BATCH = 8

REFERENCES = load_references()

# A deadline of five times what a quiet machine takes.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def engine(files: ModelFiles) -> Engine:
    """Cold at first; the tests of this module warm it in the order they stand."""
    return _engine(files)


def _engine(files: ModelFiles, **where: object) -> Engine:
    torch.set_num_threads(2)
    vocabulary = Vocabulary(files.config.vocab_size, frozenset(files.stop_ids))
    return build_engine(files, vocabulary, EngineOptions(dtype="float32", max_num_batched_tokens=256, **where))  # type: ignore[arg-type]


def _job(reference: Reference, kind: JobKind = JobKind.LOCAL) -> Job:
    count = len(reference.tokens)
    return make_job(reference.source, reference.prompt, kind, max_tokens=count, ignore_eos=True)


def test_prompts_are_twenty_and_tokenised_as_we_do(files: ModelFiles) -> None:
    assert len(REFERENCES) == 20
    text = TextModel.load(files)
    for one in REFERENCES:
        prompt = ChatPrompt((Message("user", one.text),)) if one.kind == "chat" else TextPrompt(one.text)
        assert text.encode(prompt) == one.prompt


def test_cold_and_batched(engine: Engine) -> None:
    """Eight at a time, each prompt computed from nothing."""
    batches = [REFERENCES[start : start + BATCH] for start in range(0, len(REFERENCES), BATCH)]
    assert_agree(REFERENCES, [tokens for batch in batches for tokens in generate(engine, *map(_job, batch))])


def test_prefix_cached(engine: Engine) -> None:
    """Every prompt is found in the cache but for its tail."""
    for reference in REFERENCES:
        resident = engine.add(_job(reference)).resident_tokens
        assert resident == (len(reference.prompt) - 1) // 16 * 16
        engine.remove(JobKey(reference.source, 1))
    assert_agree(REFERENCES, generate(engine, *map(_job, REFERENCES)))


def test_cold_and_alone(files: ModelFiles) -> None:
    """One stream at a time: every seventh prompt, for these are the slowest tokens there are."""
    fresh = _engine(files)
    some = REFERENCES[::7]
    assert_agree(some, [generate(fresh, _job(reference))[0] for reference in some])
    fresh.check()


def test_disaggregated(engine: Engine, files: ModelFiles) -> None:
    """One engine reads the prompts, another that never saw them writes the answers from copied pages."""
    decode = _engine(files)
    first = {reference.source: _move(engine, decode, reference) for reference in REFERENCES}
    rest: dict[str, list[int]] = {source: [token] for source, token in first.items()}
    while not (step := decode.step()).idle:
        for one in step.sampled:
            rest[one.key.request].append(one.token)
    assert_agree(REFERENCES, rest.values())
    for one in (engine, decode):
        one.check()


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["captured", "eager"])
def test_on_a_gpu(files: ModelFiles, enforce_eager: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("There is no CUDA device here.")
    device = _engine(files, device="cuda", enforce_eager=enforce_eager)
    batches = [REFERENCES[start : start + BATCH] for start in range(0, len(REFERENCES), BATCH)]
    assert_agree(REFERENCES, [tokens for batch in batches for tokens in generate(device, *map(_job, batch))])
    device.check()


def test_transformers_still_says_so(files: ModelFiles) -> None:
    """Three of the references made anew, each token from all that stand before it."""
    model = load_transformers(files)
    for reference in REFERENCES[::7]:
        with torch.inference_mode():
            logits = model(torch.tensor([reference.prompt + reference.tokens[:-1]])).logits[0]
        best = logits[len(reference.prompt) - 1 :].topk(2)
        assert tuple(best.indices[:, 0].tolist()) == reference.tokens
        gaps = best.values[:, 0] - best.values[:, 1]
        assert gaps.tolist() == pytest.approx(reference.gaps, abs=NEAR_TIE)


def _move(prefill: Engine, decode: Engine, reference: Reference) -> int:
    sent, granted = _job(reference, JobKind.PREFILL), _job(reference, JobKind.DECODE)
    blocks = decode.add(granted).blocks
    prefill.add(sent)
    progress: list[Progress] = []
    while not (step := prefill.step()).sampled:
        progress += step.progress
    progress += step.progress
    copy_pages(prefill, progress[-1].blocks, decode, blocks)
    prefill.remove(sent.key)
    decode.activate(granted.key, step.sampled[0].token)
    return step.sampled[0].token
