"""A prefix is fetched before its request begins: in which order, and what may go wrong. The caller sees only time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fixtures.eventually import eventually
from scripted_worker import ScriptedWorker, expected, worker_info
from test_router_waterfall import HANDED_OVER, LOCAL, adds_up, stages
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options, sampling

from headrace.core.errors import HeadraceError, InternalError, NotFound, TakenUp, TransferFailed, WorkerLost
from headrace.core.fleet import Role
from headrace.core.jobs import JobKind
from headrace.core.waterfall import Stage
from headrace.router.policy import Disaggregation

K = JobKind
# A token a second: there is nothing that would not rather be fetched.
SLOW_READER = (1.0, 0.0)
# Bytes a second: of 2,048 bytes, which are then waited for about a second, or longer than a test takes.
FAST_LINK, SLOW_LINK = 1e9, 500.0
BOTH_WAYS = pytest.mark.parametrize("mode", [Disaggregation.NEVER, Disaggregation.ALWAYS])


@asynccontextmanager
async def holding(
    mode: Disaggregation = Disaggregation.NEVER, *, pull: bool = True, link: float = FAST_LINK
) -> AsyncIterator[ToyCluster]:
    """`reader` is to read the prompt and has nothing of it, two blocks of it are with `holder`, which cannot."""
    never = mode is Disaggregation.NEVER
    policy = replace(options(mode).policy, pull=pull)
    async with cluster(
        prefill=1, decode=0 if never else 1, local=int(never), with_options=options(policy=policy)
    ) as toy:
        source, target = holder(toy), reader(toy)
        source.brings, source.speeds, target.speeds = target, (0.0, link), SLOW_READER
        for worker in (source, target):
            worker.report_load()
        toy.hits[source.info.ref] = 2
        await toy.status_when(
            lambda status: all(one.load.prefill_tokens_s or one.load.transfer_bytes_s for one in status.workers)
        )
        yield toy
        toy.hits.clear()
        assert ids(await collect(toy, ask("after"))) == expected(3, 6)
        await toy.quiet()


def holder(toy: ToyCluster) -> ScriptedWorker:
    return next(toy.workers[ref] for ref in toy.workers if ref.worker == ("p1" if _local(toy) else "d1"))


def reader(toy: ToyCluster) -> ScriptedWorker:
    return toy.worker("l1" if _local(toy) else "p1")


def _local(toy: ToyCluster) -> bool:
    return any(ref.worker == "l1" for ref in toy.workers)


def kinds(worker: ScriptedWorker, request: str = "r1") -> list[JobKind]:
    return [job.kind for job in worker.submits if job.key.request == request]


@BOTH_WAYS
async def test_a_prefix_comes_before_its_request_begins(mode: Disaggregation) -> None:
    async with holding(mode) as toy:
        assert ids(await collect(toy, ask())) == expected(3, 6)
        own = K.LOCAL if mode is Disaggregation.NEVER else K.PREFILL
        assert kinds(reader(toy)) == [K.IMPORT, own]
        assert kinds(holder(toy))[0] is K.EXPORT
        taken, job = reader(toy).submits
        sent = holder(toy).submits[0]
        assert taken.tokens == sent.tokens == job.tokens[:32]
        assert (taken.hashes, taken.root, taken.prompt_len) == (job.hashes[:2], job.root, 32)
        assert (taken.peer, taken.key) == (holder(toy).info.ref, sent.key)
        assert taken.key != job.key
        assert sent.ticket is not None
        assert sent.ticket.source == holder(toy).info.ref
        told = await toy.router.explain("r1")
        assert told.routes[0].pull is not None
        whole = HANDED_OVER if own is K.PREFILL else LOCAL
        assert stages(told) == [*whole[:3], Stage.PULL, *whole[3:]]
        assert [(note.role, note.worker) for note in told.notes[:2]] == [
            (Role.DECODE, reader(toy).info.ref),
            (Role.PREFILL, holder(toy).info.ref),
        ]
        assert adds_up(toy, told)
        assert toy.counted("headrace_kv_pulls_total", outcome="pulled") == 1
        assert toy.counted("headrace_kv_pulled_tokens_total") == 32


Wrong = Callable[[ToyCluster], None]


def _reader_is_full(toy: ToyCluster) -> None:
    reader(toy).busy_times = 1


def _reader_refuses(toy: ToyCluster) -> None:
    _import_refused(toy, InternalError("It cannot."))


def _reader_refuses_amid(toy: ToyCluster) -> None:
    _import_fails(toy, InternalError("It cannot."))


def _holder_is_full(toy: ToyCluster) -> None:
    holder(toy).busy_times = 1


def _holder_has_it_no_more(toy: ToyCluster) -> None:
    holder(toy).fail_first_with = [TransferFailed("The pages of 0 of 32 tokens are here to be exported.")]


def _holder_says_nothing(toy: ToyCluster) -> None:
    holder(toy).silent.add("export")


def _reader_grants_nothing(toy: ToyCluster) -> None:
    reader(toy).silent.add("grant")


def _holder_dies_first(toy: ToyCluster) -> None:
    reader(toy).at["grant"] = holder(toy).die


def _holder_dies_amid(toy: ToyCluster) -> None:
    holder(toy).at["export"] = holder(toy).die


def _holder_is_cut_off(toy: ToyCluster) -> None:
    holder(toy).at["export"] = holder(toy).cut


def _what_comes_is_wrong(toy: ToyCluster) -> None:
    source = holder(toy)
    source.silent.add("export")

    def fail() -> None:
        refused = TransferFailed("What the prefill worker sent did not verify (checksum).")
        source._spawn(reader(toy).imported(source.submits[0].key, refused))

    source.at["export"] = fail


ANYWHERE = [
    (_reader_is_full, "busy", None),
    (_holder_is_full, "busy", None),
    (_holder_has_it_no_more, "failed", holder),
    (_holder_says_nothing, "late", holder),
    (_reader_grants_nothing, "late", reader),
    (_reader_refuses, "failed", reader),
    (_reader_refuses_amid, "failed", reader),
    (_what_comes_is_wrong, "failed", holder),
]
# Of a pair, the holder is the request's decode worker too, which it would have to replace.
LOST_HOLDERS = [(wrong, "failed", holder) for wrong in (_holder_dies_first, _holder_dies_amid, _holder_is_cut_off)]


@pytest.mark.parametrize(
    ("mode", "wrong", "outcome", "shunned"),
    [
        *((Disaggregation.NEVER, *case) for case in [*ANYWHERE, *LOST_HOLDERS]),
        *((Disaggregation.ALWAYS, *case) for case in ANYWHERE),
    ],
)
async def test_what_does_not_come_is_computed(
    mode: Disaggregation, wrong: Wrong, outcome: str, shunned: Callable[[ToyCluster], ScriptedWorker] | None
) -> None:
    """No other attempt is paid for it. The end that failed is left alone for a while, one that only had no room is
    not."""
    async with holding(mode) as toy:
        wrong(toy)
        assert ids(await collect(toy, ask())) == expected(3, 6)
        told = await toy.router.explain("r1")
        assert len(told.routes) == 1
        assert toy.counted("headrace_kv_pulls_total", outcome=outcome) == 1
        assert toy.counted("headrace_kv_pulled_tokens_total") == 0
        assert toy.budget == toy.router._standing.retries.most
        assert toy.router._dispatch._pulls.shunned == ({shunned(toy).info.ref} if shunned else frozenset())
        reader(toy).silent.clear()
        holder(toy).silent.clear()
        holder(toy).at.clear()
        assert ids(await collect(toy, ask("r2"))) == expected(3, 6)
        assert (K.IMPORT in kinds(reader(toy), "r2")) is (outcome == "busy")


@pytest.mark.parametrize("comes", [True, False])
async def test_a_prefix_on_its_way_is_not_fetched_twice(comes: bool) -> None:
    """Several requests wait for the same one."""
    async with holding(link=SLOW_LINK) as toy:
        if not comes:
            _holder_has_it_no_more(toy)
        gate = holder(toy).gate("submit")
        asking = [asyncio.create_task(collect(toy, ask(f"r{number}"))) for number in range(3)]
        await holder(toy).passed("submit")
        for number in range(3):
            await _at(toy, f"r{number}", Stage.PULL)
        gate.set()
        assert [ids(await one) for one in asking] == [expected(3, 6)] * 3
        assert sorted(job.kind.value for job in reader(toy).submits) == ["import", *["local"] * 3]
        assert toy.counted("headrace_kv_pulls_total", outcome="pulled" if comes else "failed") == 1
        assert toy.counted("headrace_kv_pulls_total", outcome="shared") == 2
        assert toy.counted("headrace_kv_pulled_tokens_total") == (32 if comes else 0)


async def test_who_waits_for_anothers_prefix_goes_on_when_that_one_leaves() -> None:
    async with holding(link=SLOW_LINK) as toy:
        gate = holder(toy).gate("submit")
        first = asyncio.create_task(collect(toy, ask("first")))
        await holder(toy).passed("submit")
        second, third = (asyncio.create_task(collect(toy, ask(name))) for name in ("second", "third"))
        await _at(toy, "second", Stage.PULL)
        await _at(toy, "third", Stage.PULL)
        for one in (third, first):
            one.cancel()
        assert ids(await second) == expected(3, 6)
        gate.set()
        assert toy.counted("headrace_kv_pulls_total", outcome="given_up") == 2


async def _at(toy: ToyCluster, request: str, stage: Stage) -> None:
    """The request is at this stage."""

    async def there() -> bool:
        try:
            return (await toy.router.explain(request)).waterfall[-1].stage is stage
        except NotFound:
            return False

    await eventually(there)


async def test_a_reader_that_dies_takes_nothing_with_it() -> None:
    """The request goes on at another worker, and met nobody who died of it."""
    async with holding() as toy:
        second = ScriptedWorker(worker_info("l2", Role.LOCAL))
        await toy.join(second)
        await toy.attached(3)
        reader(toy).at["grant"] = reader(toy).die
        toy.hits[reader(toy).info.ref] = 1
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert kinds(second) == [K.LOCAL]
        assert toy.counted("headrace_kv_pulls_total", outcome="given_up") == 1


async def test_a_caller_that_leaves_amid_a_pull_leaves_nothing() -> None:
    async with holding(link=SLOW_LINK) as toy:
        gate = holder(toy).gate("export")
        asking = asyncio.create_task(collect(toy, ask()))
        await holder(toy).passed("export")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        gate.set()
        key = holder(toy).submits[0].key
        await reader(toy).until(lambda: key in reader(toy).aborts)
        await holder(toy).until(lambda: key in holder(toy).aborts)
        assert toy.counted("headrace_kv_pulls_total", outcome="given_up") == 1


async def test_turned_off_nothing_is_fetched() -> None:
    async with holding(pull=False) as toy:
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert kinds(reader(toy)) == [K.LOCAL]


async def test_who_wants_the_prompts_logprobs_gets_it_computed() -> None:
    async with holding() as toy:
        await collect(toy, ask(sampling=sampling(prompt_logprobs=1)))
        assert kinds(reader(toy)) == [K.LOCAL]


async def test_a_request_that_another_router_took_up_is_left_to_it() -> None:
    """What the reader says of the import it says of the request: the next job would end the other router's."""
    async with holding() as toy:
        taken = TakenUp("Another router has taken up the request 'r1'.")
        _import_fails(toy, taken)
        with pytest.raises(TakenUp, match="Another router"):
            await collect(toy, ask())
        assert kinds(reader(toy)) == [K.IMPORT]


async def test_a_reader_whose_engine_dies_amid_an_import_is_not_asked_again() -> None:
    """It says so itself. The request met nobody who died of it."""
    async with holding() as toy:
        second = ScriptedWorker(worker_info("l2", Role.LOCAL))
        await toy.join(second)
        await toy.attached(3)
        dead = WorkerLost("The worker's engine died.")
        reader(toy).fail_local_with = dead
        _import_fails(toy, dead)
        toy.hits[reader(toy).info.ref] = 1
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert kinds(reader(toy)) == [K.IMPORT]
        assert kinds(second) == [K.LOCAL]
        reader(toy).fail_local_with = None


async def test_a_holder_is_not_blamed_for_a_reader_that_dies() -> None:
    """It says that its pages were not taken before anybody knows why."""
    async with holding() as toy:
        second = ScriptedWorker(worker_info("l2", Role.LOCAL))
        await toy.join(second)
        await toy.attached(3)
        holder(toy).fail_first_with = [TransferFailed("The decode worker did not take the pages: connection reset.")]
        reader(toy).at["token 0"] = reader(toy).die
        toy.hits[reader(toy).info.ref] = 1
        assert ids(await collect(toy, ask())) == expected(3, 6)
        assert kinds(reader(toy)) == [K.IMPORT, K.LOCAL]
        assert toy.counted("headrace_kv_pulls_total", outcome="failed") == 1
        assert toy.router._dispatch._pulls.shunned == frozenset()


def _import_refused(toy: ToyCluster, error: HeadraceError) -> None:
    """The reader says so before it has granted anything."""
    target = reader(toy)
    target.silent.add("grant")

    def fail() -> None:
        target._spawn(target.imported(target.submits[0].key, error))

    target.at["grant"] = fail


def _import_fails(toy: ToyCluster, error: HeadraceError) -> None:
    source = holder(toy)
    source.silent.add("export")

    def fail() -> None:
        source._spawn(reader(toy).imported(source.submits[0].key, error))

    source.at["export"] = fail


async def test_who_waits_in_vain_for_anothers_prefix_blames_nobody() -> None:
    """It asked no holder for anything: who did, and waits on, is to judge of that one."""
    async with holding(link=SLOW_LINK) as toy:
        gate = holder(toy).gate("submit")
        first = asyncio.create_task(collect(toy, ask("first")))
        await holder(toy).passed("submit")
        await _at(toy, "first", Stage.PULL)
        # By now both are so fast that nothing is waited for long.
        holder(toy).speeds, reader(toy).speeds = (0.0, FAST_LINK), (320.0, 0.0)
        for worker in (holder(toy), reader(toy)):
            worker.report_load()
        await toy.status_when(lambda status: any(one.load.prefill_tokens_s == 320.0 for one in status.workers))
        assert ids(await collect(toy, ask("second"))) == expected(3, 6)
        assert toy.counted("headrace_kv_pulls_total", outcome="late") == 1
        assert (await toy.router.explain("second")).routes[0].pull is not None
        third = asyncio.create_task(collect(toy, ask("third")))
        await _at(toy, "third", Stage.PULL)
        gate.set()
        assert ids(await first) == ids(await third) == expected(3, 6)
