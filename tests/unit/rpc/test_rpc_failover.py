"""An answer whose router is lost goes on through another one: nothing missing, nothing twice, and never for ever."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest
from fixtures.eventually import eventually
from scripted_router import QUICK, TOKENS, ScriptedRouter, chunk, gateway, lost

from headrace.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    HeadraceError,
    InternalError,
    InvalidRequest,
    Overloaded,
    RouterLost,
    TransferFailed,
    Unavailable,
    WorkerLost,
)
from headrace.core.generation import Chunk, GenerateRequest, TextPrompt
from headrace.core.sampling import SamplingParams
from headrace.rpc.failover import FailoverInference, Progress, Waits
from headrace.rpc.fleet_failover import FailoverFleet
from headrace.rpc.routers import Routers
from headrace.rpc.tries import MAX_TRIES, names

SHORT = Waits(found_s=0.2, comeback_s=0.2)
REQUEST = GenerateRequest("r", "m", TextPrompt("Hi"), SamplingParams(seed=7), timeout_s=60.0, echo=True)
WHOLE = [chunk(0), chunk(1), chunk(2, last=True)]


async def heard(routers: Routers, request: GenerateRequest = REQUEST) -> list[Chunk]:
    async with asyncio.timeout(10):
        return [chunk async for chunk in FailoverInference(routers, SHORT).generate(request)]


def tokens(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk.token_ids)


async def test_an_answer_goes_on_from_where_it_stood() -> None:
    one = ScriptedRouter("a:1", [[chunk(0), chunk(1, 2), lost("a:1")]])
    two = ScriptedRouter("b:1", [[chunk(3), chunk(4, last=True)]])
    async with gateway(one, two) as routers:
        assert tokens(await heard(routers)) == TOKENS[:5]
    (again,) = two.asked
    assert (again.id, again.echo, again.sampling) == ("r~2", True, REQUEST.sampling)
    assert again.resume == chunk(1, 2).resume.encode()
    assert 50.0 < again.timeout_s < REQUEST.timeout_s
    assert one.left == two.left == 1


async def test_a_request_of_which_nothing_was_heard_is_asked_again_as_it_was() -> None:
    one, two = ScriptedRouter("a:1", [[lost("a:1")]]), ScriptedRouter("b:1", [WHOLE])
    async with gateway(one, two) as routers:
        assert await heard(routers) == WHOLE
    assert (two.asked[0].id, two.asked[0].resume) == ("r~2", b"")


async def test_what_was_heard_before_is_not_said_again() -> None:
    one = ScriptedRouter("a:1", [[chunk(0), chunk(1), lost("a:1")]])
    two = ScriptedRouter("b:1", [[chunk(0), chunk(1), chunk(2, last=True)]])
    async with gateway(one, two) as routers:
        assert await heard(routers) == WHOLE


@pytest.mark.parametrize("wrong", [chunk(3), chunk(1, 2), chunk(0, last=True)])
async def test_a_router_that_goes_on_elsewhere_is_no_answer(wrong: Chunk) -> None:
    one = ScriptedRouter("a:1", [[chunk(0), chunk(1), lost("a:1")]])
    two = ScriptedRouter("b:1", [[wrong]])
    async with gateway(one, two) as routers:
        with pytest.raises(InternalError, match="stands at 2"):
            await heard(routers)


async def test_a_caller_that_resumes_by_itself_is_moved_like_any_other() -> None:
    mine = chunk(0, 2).resume.encode()
    one = ScriptedRouter("a:1", [[lost("a:1")], [chunk(3, last=True)]])
    two = ScriptedRouter("b:1", [[chunk(2), lost("b:1")]])
    async with gateway(one, two) as routers:
        request = GenerateRequest("r", "m", TextPrompt("Hi"), resume=mine)
        assert tokens(await heard(routers, request)) == TOKENS[2:4]
    assert [asked.resume for asked in (*one.asked, *two.asked)] == [mine, chunk(2).resume.encode(), mine]


async def test_a_router_that_is_lost_behind_the_last_chunk_has_answered() -> None:
    one, two = ScriptedRouter("a:1", [[*WHOLE, lost("a:1")]]), ScriptedRouter("b:1")
    async with gateway(one, two) as routers:
        assert await heard(routers) == WHOLE
    assert two.asked == []


@pytest.mark.parametrize(
    "kind",
    [InvalidRequest, ContextLengthExceeded, Overloaded, DeadlineExceeded, WorkerLost, TransferFailed, Unavailable],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_errors_of_the_request_are_its_end(kind: type[HeadraceError], begun: bool) -> None:
    error = kind("No.")
    one = ScriptedRouter("a:1", [[chunk(0), error] if begun else [error]])
    two = ScriptedRouter("b:1")
    async with gateway(one, two) as routers:
        with pytest.raises(kind) as told:
            await heard(routers)
        assert told.value is error
    assert two.asked == []


async def test_there_is_an_end_to_trying() -> None:
    """Each router loses it as soon as it has it; all are there again at once."""
    routers = [ScriptedRouter(f"{name}:1", [[lost(name)] for _ in range(9)]) for name in "ab"]
    async with gateway(*routers) as asked:
        with pytest.raises(RouterLost):
            await heard(asked)
    ids = sorted(request.id for router in routers for request in router.asked)
    assert ids == list(names("r"))
    assert len(ids) == MAX_TRIES == 4


async def test_the_only_router_may_come_back() -> None:
    """1. It is lost. 2. It does not serve. 3. It serves again: the answer goes on there."""
    only = ScriptedRouter("a:1", [[chunk(0), lost("a:1")], [chunk(1), chunk(2, last=True)]])
    async with gateway(only) as routers:
        answering = asyncio.create_task(heard(routers))
        await eventually(lambda: only.left == 1)
        only.says.put_nowait(None)
        only.says.put_nowait(True)
        assert tokens(await answering) == TOKENS[:3]


async def test_without_a_router_both_losses_are_told() -> None:
    go = asyncio.Event()
    only = ScriptedRouter("a:1", [[chunk(0), go, lost("a:1")]])
    async with gateway(only) as routers:
        answering = asyncio.create_task(heard(routers))
        await eventually(lambda: len(only.asked) == 1)
        only.says.put_nowait(False)
        await eventually(lambda: not routers.answering())
        go.set()
        with pytest.raises(RouterLost, match=r"connection to a:1 failed.*No router answers at a:1") as told:
            await answering
        assert told.value.retry_after_s


async def test_who_comes_when_no_router_serves_is_told_so() -> None:
    async with gateway(ScriptedRouter("a:1"), ScriptedRouter("b:1"), serving=False) as routers:
        with pytest.raises(RouterLost, match="No router answers at a:1, b:1"):
            await heard(routers)
        with pytest.raises(RouterLost, match="No router answers"):
            await FailoverFleet(routers).status()


async def test_the_deadline_ends_the_wait_for_a_router() -> None:
    one = ScriptedRouter("a:1", [[chunk(0), lost("a:1")]])
    patient = Waits(found_s=60.0, comeback_s=60.0)
    async with gateway(one) as routers, asyncio.timeout(10):
        chunks = FailoverInference(routers, patient).generate(replace(REQUEST, timeout_s=0.3))
        assert await anext(chunks) == chunk(0)
        one.says.put_nowait(False)
        await eventually(lambda: not routers.answering())
        with pytest.raises(RouterLost, match="No router answers"):
            await anext(chunks)


def test_the_deadline_holds_over_all_tries() -> None:
    progress = Progress(replace(REQUEST, timeout_s=10.0), now=100.0)
    assert progress.wanted(104.0).timeout_s == 6.0
    assert progress.take(chunk(0))
    progress.number = 2
    assert progress.wanted(109.0).timeout_s == 1.0
    with pytest.raises(DeadlineExceeded, match="after 10 s"):
        progress.wanted(110.0)


async def test_routers_have_their_turns_and_those_that_are_away_have_none() -> None:
    routers = [ScriptedRouter(f"{name}:1", [WHOLE] * 6) for name in "abc"]
    async with gateway(*routers) as asked:
        for _ in range(6):
            await heard(asked)
        assert [len(router.asked) for router in routers] == [2, 2, 2]
        routers[1].says.put_nowait(False)
        await eventually(lambda: len(asked.answering()) == 2)
        for _ in range(4):
            await heard(asked)
        assert [len(router.asked) for router in routers] == [4, 2, 4]


async def test_a_caller_that_leaves_leaves_the_router_too() -> None:
    never = asyncio.Event()
    one = ScriptedRouter("a:1", [[chunk(0), never]])
    async with gateway(one) as routers:
        stream = cast("AsyncGenerator[Chunk, None]", FailoverInference(routers, SHORT).generate(REQUEST))
        async with aclosing(stream) as chunks:
            await anext(chunks)
        assert one.left == 1


async def test_questions_go_to_whoever_answers() -> None:
    one, two = ScriptedRouter("a:1", gone=True), ScriptedRouter("b:1")
    async with gateway(one, two) as routers:
        inference, fleet = FailoverInference(routers, SHORT), FailoverFleet(routers)
        for _ in range(4):
            assert await inference.detokenize("m", ()) == "b:1"
            assert (await inference.list_models())[0].id == "b:1"
            assert (await inference.tokenize("m", TextPrompt("x"))).token_ids == (1, 2)
            assert await fleet.metrics() == "b:1"
        two.gone = True
        with pytest.raises(RouterLost):
            await inference.list_models()
        with pytest.raises(RouterLost):
            await fleet.metrics()


async def test_names_that_mean_other_routers_are_followed() -> None:
    """1. One router of two leaves the name while it answers: it is asked nothing more, and its answer goes on.
    2. The name does not resolve: those that are known stay."""
    go = asyncio.Event()
    old, new = ScriptedRouter("a:1", [[chunk(0), go, chunk(1, last=True)]]), ScriptedRouter("b:1", [WHOLE] * 3)
    meant: tuple[str, ...] = ("a:1",)
    doors: dict[str, Callable[[], object]] = {"a:1": old.door, "b:1": new.door}

    async def locate() -> tuple[str, ...]:
        return meant

    routers = Routers(locate, lambda address: doors[address](), QUICK)  # type: ignore[arg-type, return-value]
    await routers.start()
    try:
        old.says.put_nowait(True)
        new.says.put_nowait(True)
        answering = asyncio.create_task(heard(routers))
        await eventually(lambda: len(old.asked) == 1)
        meant = ("b:1",)
        await eventually(lambda: [door.address for door in routers.answering()] == ["b:1"])
        assert await heard(routers) == WHOLE
        assert not old.closed
        go.set()
        assert tokens(await answering) == TOKENS[:2]
        await eventually(lambda: old.closed)
        meant = ()
        assert await heard(routers) == WHOLE
    finally:
        await routers.close()
