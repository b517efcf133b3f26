"""HeldEngine over the fake engine: it stands at every phase, for the one job, and changes no token."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.engine_driver import hand_over, make_job, prompt
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files

from headrace.chaos.aim import Aim
from headrace.chaos.held_engine import HeldEngine
from headrace.chaos.messages import Held, Hold, LetGo, News, Phase
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Job, JobKind
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.engine.engine import Engine, Sampled
from headrace.engine.fake import build_fake_engine
from headrace.engine.options import EngineOptions

BLOCK_BYTES = KvLayout(CONFIG.layers, CONFIG.kv_heads, CONFIG.head_dim, 16, "float32").block_bytes
TOKENS = prompt(1, 100)
MAX_TOKENS = 12
WAIT_S = 10.0


class Standing:
    """An engine whose holds this test watches: what is told, and calls that run beside it on the engine's thread."""

    def __init__(self, directory: Path) -> None:
        self.told: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.aim = Aim(self.told.put)
        options = EngineOptions(
            dtype="float32", kv_cache_memory_bytes=64 * BLOCK_BYTES, max_num_seqs=4, max_num_batched_tokens=32
        )
        self.plain = build_fake_engine(tiny_files(directory), VOCABULARY, options)
        self.engine: Engine = HeldEngine(self.plain, self.aim)

    def arm(self, phase: Phase, at: int = 0) -> None:
        self.aim.arm(Hold(phase, "mine", at))
        self.told.get(timeout=WAIT_S)

    def stands(self, phase: Phase) -> None:
        held = self.told.get(timeout=WAIT_S)
        assert isinstance(held, Held)
        assert (held.request, held.phase) == ("mine", phase)
        assert self.told.empty()

    def release(self) -> None:
        self.aim.release()
        self.told.get(timeout=WAIT_S)


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    made = Standing(tmp_path)
    yield made
    made.engine.check()


def tokens_of(engine: Engine, job: Job) -> list[int]:
    """What a plain engine makes of it, alone."""
    engine.add(replace(job, kind=JobKind.LOCAL))
    sampled = run(engine)
    engine.remove(job.key)
    return [one.token for one in sampled]


def run(engine: Engine) -> list[Sampled]:
    sampled: list[Sampled] = []
    while not (output := engine.step()).idle:
        sampled += output.sampled
    return sampled


class Beside(threading.Thread):
    """A call on a thread of its own, as the engine's is."""

    def __init__(self, *calls: object) -> None:
        super().__init__(daemon=True)
        self._calls = calls
        self.answers: list[object] = []

    def run(self) -> None:
        for call in self._calls:
            assert callable(call)
            self.answers.append(call())

    def ended(self) -> list[object]:
        self.join(WAIT_S)
        assert not self.is_alive()
        return self.answers


@pytest.mark.parametrize(
    ("phase", "kind"), [(Phase.BEFORE_GRANT, JobKind.DECODE), (Phase.AFTER_GRANT, JobKind.PREFILL)]
)
def test_it_stands_before_a_job_is_taken(standing: Standing, phase: Phase, kind: JobKind) -> None:
    standing.arm(phase)
    standing.engine.add(make_job("other", TOKENS, kind))
    mine = make_job("mine", TOKENS, kind)
    adding = Beside(lambda: standing.engine.add(mine))
    adding.start()
    standing.stands(phase)
    assert not adding.answers
    standing.release()
    assert len(adding.ended()) == 1
    for name in ("other", "mine"):
        standing.engine.remove(make_job(name, TOKENS).key)


def test_it_stands_within_a_prompt(standing: Standing) -> None:
    mine = make_job("mine", TOKENS, JobKind.PREFILL)
    standing.engine.add(mine)
    standing.arm(Phase.MID_CHUNK, at=40)
    # 32 tokens, which are too few, then 64; the third step is the one that does not begin.
    computed = [standing.engine.step().progress[0].computed_tokens for _ in range(2)]
    assert computed == [32, 64]
    assert standing.told.empty()
    stepping = Beside(standing.engine.step)
    stepping.start()
    standing.stands(Phase.MID_CHUNK)
    standing.release()
    (output,) = stepping.ended()
    assert output.progress[0].computed_tokens == 96  # type: ignore[attr-defined]
    run(standing.engine)
    standing.engine.remove(mine.key)


def test_a_prompt_of_one_step_has_no_middle(standing: Standing) -> None:
    mine = make_job("mine", TOKENS[:30], JobKind.PREFILL)
    standing.engine.add(mine)
    standing.arm(Phase.MID_CHUNK)
    assert len(run(standing.engine)) == 1
    assert standing.told.empty()
    standing.engine.remove(mine.key)


def test_a_job_that_left_is_not_waited_for(standing: Standing) -> None:
    mine = make_job("mine", TOKENS, JobKind.PREFILL)
    standing.engine.add(mine)
    standing.arm(Phase.MID_CHUNK)
    standing.engine.step()
    standing.engine.remove(mine.key)
    run(standing.engine)
    assert standing.told.empty()


def test_it_stands_within_an_answer(standing: Standing) -> None:
    mine, other = make_job("mine", TOKENS, max_tokens=MAX_TOKENS), make_job("other", prompt(2, 20), max_tokens=3)
    expected = tokens_of(standing.plain, mine)
    standing.engine.add(mine)
    standing.engine.add(other)
    standing.arm(Phase.MID_DECODE, at=5)
    answers = Beside(lambda: run(standing.engine))
    answers.start()
    standing.stands(Phase.MID_DECODE)
    standing.release()
    (sampled,) = answers.ended()
    assert [one.token for one in sampled if one.key == mine.key] == expected  # type: ignore[attr-defined]
    assert standing.told.get(timeout=WAIT_S) == LetGo("mine", 1, True)
    for job in (mine, other):
        standing.engine.remove(job.key)


def test_it_stands_between_pages_and_first_token(standing: Standing, tmp_path: Path) -> None:
    sender = Standing(tmp_path)
    expected = hand_over(sender.plain, standing.plain, "plain", TOKENS)
    standing.plain.check()
    standing.arm(Phase.AFTER_COMMIT)
    answers = Beside(lambda: hand_over(sender.engine, standing.engine, "mine", TOKENS))
    answers.start()
    standing.stands(Phase.AFTER_COMMIT)
    assert not answers.answers
    standing.release()
    assert answers.ended() == [expected]


def test_whose_pages_a_transfer_moves_is_known_while_the_job_is_there(standing: Standing) -> None:
    job = replace(make_job("mine", TOKENS, JobKind.PREFILL), ticket=_ticket())
    standing.engine.add(job)
    assert standing.aim.carried(_ticket().transfer) == job.key
    standing.engine.remove(job.key)
    assert standing.aim.carried(_ticket().transfer) is None


def _ticket() -> Ticket:
    layout = KvLayout(CONFIG.layers, CONFIG.kv_heads, CONFIG.head_dim, 16, "float32")
    return Ticket(
        transfer=b"t" * 16,
        secret=b"s" * 16,
        job="mine",
        attempt=1,
        source=WorkerRef("p", "1"),
        target=WorkerRef("d", "1"),
        model_digest=b"m" * 16,
        layout=layout,
        first_block=0,
        block_count=6,
        unit_blocks=4,
        link="tcp",
        address="127.0.0.1:1/0011223344556677",
    )
