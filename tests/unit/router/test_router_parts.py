"""The small parts, each by itself: ledger, commands, admission, answer, merge, history, retries."""

import asyncio
import itertools
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_worker import MODEL
from toy_cluster import ByteText, sampling

from headrace.core.errors import NotFound, Overloaded, Unavailable, WorkerLost
from headrace.core.fleet import Load, WorkerRef
from headrace.core.generation import Chunk, FinishReason
from headrace.core.jobs import Abort, Activate, Command, Hello, Job, JobKey, JobKind, Submit, TokenEvent
from headrace.core.route import Explanation, Route
from headrace.router.absence import Absence
from headrace.router.admission import Admission
from headrace.router.answer import Answer
from headrace.router.attempt import Attempt, Footing
from headrace.router.attempt_numbers import attempt_numbers
from headrace.router.choose import NoRoute
from headrace.router.commands import CommandQueue
from headrace.router.deadly import Deadly
from headrace.router.history import History
from headrace.router.ledger import Ledger
from headrace.router.leg import Inbox, Leg
from headrace.router.life import Life
from headrace.router.merge import Exposition, merge
from headrace.router.reading import Reading
from headrace.router.retries import AttemptFailed, Fault, Loss, Retries
from headrace.router.retry_budget import RetryBudget
from headrace.router.view import Inflight

W = WorkerRef("w", "1")
KEY = JobKey("r", 1)


def test_ledger_counts_a_job_until_the_worker_does() -> None:
    ledger = Ledger(lambda: 0.0)
    a, b = JobKey("a", 1), JobKey("b", 1)
    # 1. Two jobs are spent: both are unreflected.
    ledger.spend(a, W, 100)
    ledger.spend(b, W, 50)
    assert ledger.inflight(W) == Inflight(2, 2, 150)
    # 2. The credits fall by one: the older is reflected.
    ledger.reflect(W, Load(credits=4), Load(credits=3), ())
    assert ledger.inflight(W) == Inflight(2, 1, 150)
    # 3. A report names the other, whatever the credits say.
    ledger.reflect(W, Load(credits=3), Load(credits=4), [b])
    assert ledger.inflight(W) == Inflight(2, 0, 150)
    # 4. The first token is here: its prompt no longer waits.
    ledger.computed(a)
    assert ledger.inflight(W).uncomputed_tokens == 50
    # 5. One worker is done with its share: it counts no more there.
    ledger.leave(a, W)
    assert ledger.inflight(W).jobs == 1
    # 6. Released, twice, unknown: nothing is left.
    for key in (a, b, a, JobKey("c", 1)):
        ledger.release(key)
    assert (ledger.inflight(W), ledger.jobs) == (Inflight(), 0)


def test_ledger_cools_for_a_while() -> None:
    now = [10.0]
    ledger = Ledger(lambda: now[0])
    ledger.cool(W, 2.0)
    assert ledger.cooling(W)
    now[0] = 12.5
    assert not ledger.cooling(W)


def a_job(key: JobKey) -> Job:
    return Job(key, JobKind.LOCAL, (1,), 1, sampling(), b"", (), 1.0)


async def drain(queue: CommandQueue, count: int) -> list[Command]:
    """The next `count` commands, or those until the end."""
    got: list[Command] = []
    async for command in queue.stream():
        got.append(command)
        if len(got) == count:
            break
    return got


async def test_aborts_overtake_and_take_back_what_has_not_left() -> None:
    queue = CommandQueue(Hello("r", "", 1))
    other = JobKey("o", 1)
    queue.put(Submit(a_job(KEY)))
    queue.put(Submit(a_job(other)))
    queue.put(Activate(JobKey("x", 1), 5))
    assert queue.unsent == {KEY, other}
    assert queue.abort(KEY) is True
    assert queue.abort(JobKey("x", 1)) is False
    assert queue.abort(JobKey("gone", 1)) is False
    got = await drain(queue, 4)
    assert isinstance(got[0], Hello)
    assert got[1:3] == [Abort(JobKey("gone", 1)), Abort(JobKey("x", 1))]
    assert got[3] == Submit(a_job(other))
    assert queue.unsent == frozenset()


@pytest.mark.parametrize("drawn", [0, 2**31 - 1])
def test_attempt_numbers_rise_and_fit_their_32_bits(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: drawn % 2**bits)
    first, second = itertools.islice(attempt_numbers(), 2)
    assert 0 < first < second == first + 1
    assert first + 2**31 - 1 < 2**32


async def test_closing_ends_the_commands() -> None:
    queue = CommandQueue(Hello("r", "", 1))
    await drain(queue, 1)
    reader = asyncio.create_task(drain(queue, 1))
    await asyncio.sleep(0)
    queue.close()
    assert await reader == []


ROUTE = Route(W, None, 0, 1.0, (), ())


class Gatekeeper:
    """Lets in as many as it is told."""

    def __init__(self) -> None:
        self.free = 0
        self.refusal = NoRoute("full", 0.5, served=True)
        self.tries = 0

    def take(self) -> Route | NoRoute:
        self.tries += 1
        if not self.free:
            return self.refusal
        self.free -= 1
        return ROUTE


async def test_admission_wakes_those_who_wait_in_order_and_asks_once_a_group() -> None:
    gate, gauge = Gatekeeper(), []
    admission = Admission(limit=10, grace_s=5.0, gauge=gauge.append)
    deadline = asyncio.get_running_loop().time() + 5
    order: list[int] = []

    async def enter(number: int, ahead: bool = False) -> None:
        await admission.admit(gate.take, "group", deadline, ahead=ahead)
        order.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(enter(9, ahead=True)))
    await asyncio.sleep(0)
    assert admission.waiting == 5
    # One look for all of a group, however many wait and however often it is woken.
    await asyncio.sleep(0)
    gate.tries = 0
    admission.wake()
    admission.wake()
    await asyncio.sleep(0)
    assert gate.tries == 1
    gate.free = 3
    admission.wake()
    await asyncio.gather(tasks[0], tasks[1], tasks[4])
    assert order == [9, 0, 1]
    # Nobody overtakes those who wait.
    gate.free = 2
    late = asyncio.create_task(enter(5))
    await asyncio.gather(tasks[2], tasks[3])
    assert (order, late.done()) == ([9, 0, 1, 2, 3], False)
    gate.free = 1
    admission.wake()
    await late
    assert (admission.waiting, gauge[-1]) == (0, 0)


async def test_admission_grace_runs_only_while_nobody_could_serve() -> None:
    gate = Gatekeeper()
    admission = Admission(limit=10, grace_s=0.05, gauge=lambda waiting: None)
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(admission.admit(gate.take, "g", loop.time() + 5))
    await asyncio.sleep(0)
    begun = loop.time()
    gate.refusal = NoRoute("nobody there", 2.0, served=False)
    admission.wake()
    with pytest.raises(Unavailable, match="nobody there") as refused:
        await waiting
    assert refused.value.retry_after_s == 2.0
    assert loop.time() - begun >= 0.04


async def test_a_waiter_whose_look_fails_harms_nobody_else() -> None:
    gate = Gatekeeper()
    admission = Admission(limit=10, grace_s=5.0, gauge=lambda waiting: None)
    deadline = asyncio.get_running_loop().time() + 5
    looks: list[Exception | NoRoute] = [ZeroDivisionError(), gate.refusal]

    def broken() -> Route | NoRoute:
        look = looks.pop()
        if isinstance(look, Exception):
            raise look
        return look

    first = asyncio.create_task(admission.admit(broken, "one", deadline))
    second = asyncio.create_task(admission.admit(gate.take, "other", deadline))
    await asyncio.sleep(0)
    gate.free = 1
    admission.wake()
    with pytest.raises(ZeroDivisionError):
        await first
    assert await second == ROUTE


async def test_those_served_before_wait_for_a_comeback() -> None:
    gate = Gatekeeper()
    gate.refusal = NoRoute("nobody there", 2.0, served=False)
    admission = Admission(limit=10, grace_s=0.02, gauge=lambda waiting: None, comeback_s=5.0)
    deadline = asyncio.get_running_loop().time() + 5
    ahead = asyncio.create_task(admission.admit(gate.take, "g", deadline, ahead=True))
    with pytest.raises(Unavailable):
        await admission.admit(gate.take, "h", deadline)
    gate.free = 1
    admission.wake()
    assert await ahead == ROUTE


def test_what_killed_is_refused_for_a_while() -> None:
    now = [0.0]
    deadly = Deadly(refuse_s=10.0, clock=lambda: now[0], size=2)
    deadly.check(b"a")
    for name in (b"a", b"b", b"c"):
        deadly.record(name)
    deadly.check(b"a")  # the oldest is forgotten first
    now[0] = 4.0
    with pytest.raises(WorkerLost) as refused:
        deadly.check(b"b")
    assert refused.value.retry_after_s == 6.0
    now[0] = 10.0
    deadly.check(b"b")


async def test_admission_is_bounded_except_for_those_served_before() -> None:
    gate = Gatekeeper()
    admission = Admission(limit=1, grace_s=5.0, gauge=lambda waiting: None)
    deadline = asyncio.get_running_loop().time() + 5
    first = asyncio.create_task(admission.admit(gate.take, "g", deadline))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await admission.admit(gate.take, "g", deadline)
    ahead = asyncio.create_task(admission.admit(gate.take, "g", deadline, ahead=True))
    await asyncio.sleep(0)
    assert admission.waiting == 2
    admission.close(Unavailable("stopping"))
    for ending in await asyncio.gather(first, ahead, return_exceptions=True):
        assert isinstance(ending, Unavailable)
    with pytest.raises(Unavailable, match="stopping"):
        await admission.admit(gate.take, "g", deadline)


def event(position: int, *tokens: int, cached: int = 0) -> TokenEvent:
    return TokenEvent(KEY, 0, position, tokens, cached)


def answer(**changes: object) -> Answer:
    params = sampling(**{"max_tokens": 100, **changes})
    return Answer(ByteText(), Reading((1, 2, 3, 4, 5), params), b"p" * 8, params)


@given(st.data())
def test_an_answer_is_the_same_however_its_tokens_are_cut_repeated_and_resumed(data: st.DataObject) -> None:
    tokens = list(data.draw(st.text(alphabet="abé字🙂", min_size=1, max_size=20)).encode())
    stops = tuple(data.draw(st.lists(st.text(alphabet="abé字", min_size=1, max_size=3), max_size=3)))
    whole = _feed(answer(stop=stops, max_tokens=len(tokens)), tokens, [len(tokens)])
    cuts = data.draw(st.lists(st.integers(1, 5), min_size=len(tokens)))
    pieces = _feed(answer(stop=stops, max_tokens=len(tokens)), tokens, cuts)
    assert _text(pieces) == _text(whole)
    assert pieces[-1].finish_reason is whole[-1].finish_reason
    at = data.draw(st.integers(0, len(pieces) - 1))
    resumed = answer(stop=stops, max_tokens=len(tokens))
    resumed.replay(tuple(pieces[at].resume.tokens[: pieces[at].resume.count]))
    rest = [] if resumed.finished else _feed(resumed, tokens, [3] * len(tokens), start=len(resumed.tokens))
    assert _text(pieces[: at + 1]) + _text(rest) == _text(whole)


def _feed(into: Answer, tokens: list[int], cuts: list[int], start: int = 0) -> list[Chunk]:
    """Pieces that overlap what came before by one token."""
    chunks = []
    for size in cuts:
        if into.finished or start >= len(tokens):
            break
        begin = max(0, start - 1)
        chunk = into.accept(event(begin, *tokens[begin : start + size]))
        assert chunk is not None
        chunks.append(chunk)
        start += size
    return chunks


def _text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_an_answer_cut_inside_a_character_and_ended_by_the_worker() -> None:
    one = answer()
    first = one.accept(event(0, *"é".encode()[:1], cached=3))
    assert first is not None
    assert first.text == ""
    last = one.end(FinishReason.LENGTH)
    assert (last.text, last.finish_reason, last.position, last.token_ids) == ("�", FinishReason.LENGTH, 1, ())
    assert last.usage is not None
    assert last.usage.cached_tokens == 3


def test_ignore_eos_goes_on() -> None:
    one = answer(ignore_eos=True)
    chunk = one.accept(event(0, 97, 0, 98))
    assert chunk is not None
    assert (chunk.text, one.finished) == ("ab", False)


def test_resume_points_share_one_list() -> None:
    one = answer()
    first, second = one.accept(event(0, 97)), one.accept(event(1, 98))
    assert first is not None
    assert second is not None
    assert first.resume.tokens is second.resume.tokens
    assert (first.resume.count, second.resume.count) == (1, 2)


def test_merge_gives_each_family_once_and_keeps_every_sample() -> None:
    page = '# HELP a_total A "quoted".\n# TYPE a_total counter\na_total{k="x\\\\y\\n\\"z"} 1.0\n'
    histogram = (
        '# HELP h H.\n# TYPE h histogram\nh_bucket{le="1.0"} 2.0\nh_bucket{le="+Inf"} 3.0\nh_count 3.0\nh_sum 4.5\n'
    )
    merged = merge(
        [
            Exposition(page + histogram, {}),
            Exposition(page + histogram, {"worker": "w1"}),
            Exposition(page, {"worker": "w2"}),
        ]
    )
    assert merged.count("# TYPE a_total counter") == 1
    assert merged.count("# TYPE h histogram") == 1
    assert merged.count("\na_total{") == 3
    assert 'h_bucket{le="+Inf",worker="w1"} 3.0' in merged
    assert 'k="x\\\\y\\n\\"z",worker="w2"' in merged
    # What comes out goes in again, unchanged.
    assert merge([Exposition(merged, {})]) == merged


def test_history_forgets_the_oldest() -> None:
    history = History(size=3)
    for name in ("a", "b", "a", "c", "d"):
        history.record(Explanation(name, MODEL, 1, (), (), "stop", 0, 0.0))
    with pytest.raises(NotFound):
        history.get("b")
    assert [history.get(name).request for name in ("a", "c", "d")] == ["a", "c", "d"]


def a_death(worker: WorkerRef, *, held: bool = True) -> AttemptFailed:
    absence = Absence(worker)
    absence.gone()
    return AttemptFailed(WorkerLost("gone"), worker, Fault.LOST, losses=(Loss(absence, held),))


@pytest.mark.parametrize("prefill", [None, WorkerRef("p", "1")])
async def test_a_worker_that_left_between_choice_and_send_has_not_died(prefill: WorkerRef | None) -> None:
    def left(worker: WorkerRef, job: Job, inbox: Inbox) -> Leg:
        raise WorkerLost(f"Worker {worker} is not attached any more.")

    footing = Footing(left, Ledger(lambda: 0.0), asyncio.Queue(), Life(KEY.request), deadline=1.0)
    attempt = Attempt(a_job(KEY), Route(W, prefill, 0, 1.0, (), ()), footing)
    with pytest.raises(AttemptFailed) as failed:
        attempt.start()
    assert (failed.value.fault, failed.value.worker, failed.value.losses) == (Fault.AWAY, W, ())


@pytest.mark.parametrize("held", [True, False])
def test_retries_stop_at_the_second_death(held: bool) -> None:
    """What a worker had not begun with is not what killed it, yet the request has used up its tries."""
    retries = Retries(RetryBudget())
    retries.weigh(a_death(WorkerRef("w0", "1")))
    assert {ref.worker for ref in retries.excluded} == {"w0"}
    assert not retries.deadly
    with pytest.raises(WorkerLost, match="2 workers"):
        retries.weigh(a_death(W, held=held))
    assert retries.deadly is held


def test_retries_stop_at_an_empty_budget_and_what_repeats_nothing_costs_none() -> None:
    budget = RetryBudget(left=1.0)
    Retries(budget).weigh(a_death(W))
    for fault in (Fault.LOST, Fault.CUT, Fault.FAILED):
        with pytest.raises(WorkerLost, match="gone"):
            Retries(budget).weigh(AttemptFailed(WorkerLost("gone"), W, fault))
    Retries(budget).weigh(AttemptFailed(Overloaded("busy"), W, Fault.BUSY))
    Retries(budget).weigh(AttemptFailed(WorkerLost("gone"), W, Fault.AWAY))
