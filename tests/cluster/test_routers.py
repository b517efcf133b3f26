"""A router dies, freezes or stops under streams: a gateway's clients notice a pause, a frontend's are told, others
notice nothing; and no worker keeps a page."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fixtures.apart import Fleet, Process, fleet
from fixtures.cluster import eventually
from fixtures.random_gguf import write_random
from streams import Heard, Stream, answers, client

from headrace.rpc.clients import FleetClient

FAKE = ("--engine=fake", "--fake-step-ms=15", "--link=tcp", "--kv-cache-memory-bytes=16777216")
REAL = ("--dtype=float32", "--batch-invariant", "--threads=1", "--link=tcp", "--kv-cache-memory-bytes=16777216")
# What a router may take to finish what it has: less than an answer needs from where it is struck.
DRAIN = "--drain-s=0.2"
LENGTH = 200
# A real engine is so fast that answers must be longer to be under way for long enough.
REAL_LENGTH, CONTEXT = 1800, 2048
# Tokens of an answer between which its stop string reaches: all that time its text is held back, and the strike falls.
HELD, RELEASED, REAL_RELEASED = 70, 130, 1000
# Tokens of that answer that its worker computes at once before the strike, at least.
PACE = 5

Bodies = dict[str, dict[str, Any]]


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": f"{prompt} " + "hello " * 20, "max_tokens": LENGTH, "ignore_eos": True, **fields}


AS_FAKE, AS_REAL = (FAKE, LENGTH, RELEASED), (REAL, REAL_LENGTH, REAL_RELEASED)
with_the_fake_engine = pytest.mark.parametrize("apart", [AS_FAKE], indirect=True, ids=["fake"])
with_either_engine = pytest.mark.parametrize("apart", [AS_FAKE, AS_REAL], indirect=True, ids=["fake", "real"])

KINDS: Bodies = {
    "greedy": body("a", temperature=0),
    "seeded": body("b", seed=5),
    "penalties": body("c", seed=6, presence_penalty=0.5, frequency_penalty=0.5, min_tokens=150),
    "logprobs": body("d", seed=7, logprobs=3),
    "two": body("e", seed=8, n=2),
    "echo": body("f", seed=9, echo=True, logprobs=1),
}
LAST = body("g", seed=10)


@dataclass
class Apart:
    """One gateway before two routers. expected: what it answers undisturbed; released: the tokens after which the
    text that the stop string holds back would go."""

    fleet: Fleet
    bodies: Bodies
    expected: dict[str, Heard]
    released: int


async def stopping_late(url: str, length: int, released: int) -> Bodies:
    """Every kind of request, and one that ends at a stop string of many tokens."""
    last = LAST | {"max_tokens": length}
    (whole,) = (await answers(url, {"last": last})).values()
    short = await answers(url, {"held": last | {"max_tokens": HELD}, "released": last | {"max_tokens": released}})
    begin, end = (len(short[name].choices[0].text) for name in ("held", "released"))
    stop = whole.choices[0].text[begin + 1 : end - 1]
    return {**KINDS, "stop": last | {"stop": [stop]}}


@pytest.fixture(scope="module")
def apart(request: pytest.FixtureRequest, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """Prefill and decode worker, two routers, one gateway. Its parameter: what workers are told, how long answers
    are, and how long the one with the stop string is held back."""
    flags, length, released = request.param
    directory = tmp_path_factory.mktemp("apart")
    with fleet(directory, redis_url, str(write_random(directory / "random.gguf", CONTEXT)), *flags) as made:
        begin_workers(made)
        for name in ("r1", "r2"):
            made.router(name, DRAIN)
        for name in ("r1", "r2"):
            made[name].ready()
        made.gateway("gateway", "r1", "r2")
        made["gateway"].ready()
        made.wait_ready("gateway")
        yield asyncio.run(undisturbed(made, length, released))


async def undisturbed(made: Fleet, length: int, released: int) -> Apart:
    url = made.url("gateway")
    bodies = {
        name: each | {"max_tokens": length} for name, each in (await stopping_late(url, length, released)).items()
    }
    expected = await answers(url, bodies)
    assert expected["stop"].choices[0].finish_reason == "stop"
    assert HELD < expected["stop"].tokens <= released
    return Apart(made, bodies, expected, released)


def begin_workers(made: Fleet) -> None:
    for role in ("prefill", "decode"):
        made.worker(f"{role}-0", role)
    for role in ("prefill", "decode"):
        made[f"{role}-0"].ready()


def only_first(made: Fleet) -> None:
    """From now on the gateway has one router to ask: the other stands still, and is known to."""
    before = said(made, "router.away", "r2")
    made["r2"].freeze()
    eventually(lambda: said(made, "router.away", "r2"), lambda count: count > before)


def said(made: Fleet, event: str, router: str) -> int:
    """How often the gateway has logged this of the router."""
    address = made[router].facts["grpc"]
    return sum(event in line and address in line for line in made["gateway"].log.splitlines())


async def struck(case: Apart, strike: Callable[[Process], None]) -> dict[str, Heard]:
    """All kinds of request at the first router, which is struck while a stop string has begun; then there is the
    other one."""
    made = case.fleet
    only_first(made)
    async with client(made.url("gateway")) as http:
        streams = {name: Stream(http, body) for name, body in case.bodies.items()}
        for stream in streams.values():
            await stream.until(1)
        made["r2"].thaw()
        await kept_pace(made["decode-0"], streams["stop"], HELD + 5)
        strike(made["r1"])
        made["decode-0"].thaw()
        ended = [name for name, stream in streams.items() if stream.ended]
        assert not ended, f"the strike came too late for {ended}"
        assert streams["stop"].heard.tokens < case.released - 5
        return {name: await stream.result() for name, stream in streams.items()}


async def kept_pace(worker: Process, stream: Stream, tokens: int) -> None:
    """The stream has heard so many tokens, and the worker, which stands still now, was not far ahead of it: it went on
    only while that was waited for. A processor may compute whole answers before one of them is read."""
    for heard in range(stream.heard.tokens, tokens, PACE):
        worker.thaw()
        await stream.until(min(heard + PACE, tokens))
        worker.freeze()


def assert_moved(case: Apart, heard: dict[str, Heard]) -> None:
    """Each answer is the undisturbed one, under the id that its client knows, and can be explained by it."""
    moved = [line for line in case.fleet["gateway"].log.splitlines() if "request.moved" in line]
    for name, one in heard.items():
        assert any(one.request_id in line for line in moved), f"{name} was not moved"
        assert (one.errors, one.broken, one.done) == ([], False, True), name
        assert one.answer == case.expected[name].answer, name
        told = httpx.get(f"{case.fleet.url('gateway')}/v1/requests/{one.request_id}/explain", timeout=30).json()
        assert "request" in told, told
        assert (told["request"], told["outcome"]) == (one.request_id, one.choices[0].finish_reason)


@with_either_engine
async def test_a_killed_router_costs_a_gateways_clients_a_pause(apart: Apart) -> None:
    made = apart.fleet
    serves = said(made, "router.serves", "r1")
    heard = await struck(apart, Process.kill)
    assert_moved(apart, heard)
    made.wait_at_rest("gateway")
    # It comes back at its place: the gateway finds it by itself.
    made["r1"].again()
    eventually(lambda: said(made, "router.serves", "r1"), lambda count: count > serves)
    await everybody_well(apart)


@with_the_fake_engine
async def test_so_does_one_that_stands_still_and_wakes_again(apart: Apart) -> None:
    made = apart.fleet
    serves = said(made, "router.serves", "r1")
    heard = await struck(apart, Process.freeze)
    assert_moved(apart, heard)
    # Its jobs have ended although it has not told anybody, and when it goes on it does not begin them again.
    made.wait_at_rest("gateway")
    made["r1"].thaw()
    eventually(lambda: said(made, "router.serves", "r1"), lambda count: count > serves)
    await everybody_well(apart)


@with_the_fake_engine
async def test_so_does_one_that_is_asked_to_stop(apart: Apart) -> None:
    made = apart.fleet
    serves = said(made, "router.serves", "r1")
    heard = await struck(apart, Process.ask_to_stop)
    assert_moved(apart, heard)
    made["r1"].ended()
    made.wait_at_rest("gateway")
    made["r1"].again()
    eventually(lambda: said(made, "router.serves", "r1"), lambda count: count > serves)
    await everybody_well(apart)


async def everybody_well(case: Apart) -> None:
    """Both routers answer, hold nothing, and no page is anybody's."""
    made = case.fleet
    twice = {f"{name} {turn}": case.bodies[name] for name in ("greedy", "stop") for turn in range(2)}
    heard = await answers(made.url("gateway"), twice)
    for name, one in heard.items():
        assert one.answer == case.expected[name.partition(" ")[0]].answer
    for router in ("r1", "r2"):
        async with FleetClient(made[router].facts["grpc"]) as asked:
            status = await asked.status()
        assert (status.ready, status.requests_running, status.requests_waiting) == (True, 0, 0)
    made.wait_at_rest("gateway")


@dataclass
class Frontends:
    """Two combined frontends of one fleet. expected: what each answers undisturbed."""

    fleet: Fleet
    bodies: list[dict[str, Any]]
    expected: list[Heard]


@pytest.fixture(scope="module")
def frontends(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontends]:
    directory = tmp_path_factory.mktemp("frontends")
    bodies = [body(str(number), seed=number) for number in range(4)]
    with fleet(directory, redis_url, str(write_random(directory / "random.gguf", CONTEXT)), *FAKE) as made:
        begin_workers(made)
        for name in ("f1", "f2"):
            made.frontend(name, DRAIN)
        for name in ("f1", "f2"):
            made[name].ready()
        made.wait_ready("f1", "f2")
        named = {str(number): each for number, each in enumerate(bodies)}
        expected = asyncio.run(answers(made.url("f2"), named))
        yield Frontends(made, bodies, list(expected.values()))


async def both(case: Frontends, strike: Callable[[Process], None], after: Callable[[], None]) -> list[Heard]:
    """Four streams at each; the first is struck, the others' end as ever, then `after`. What the first's heard."""
    made = case.fleet
    async with client(made.url("f1")) as one, client(made.url("f2")) as other:
        mine, others = ([Stream(http, each) for each in case.bodies] for http in (one, other))
        for stream in (*mine, *others):
            await stream.until(10)
        strike(made["f1"])
        assert not any(stream.ended for stream in (*mine, *others)), "the strike came too late"
        undisturbed = [await stream.result() for stream in others]
        assert [heard.answer for heard in undisturbed] == [heard.answer for heard in case.expected]
        after()
        return [await stream.result() for stream in mine]


def begun_as_expected(case: Frontends, heard: list[Heard]) -> bool:
    pairs = zip(heard, case.expected, strict=True)
    return all(whole.choices[0].text.startswith(one.choices[0].text) for one, whole in pairs)


async def test_a_frontend_that_stops_tells_its_clients_once(frontends: Frontends) -> None:
    made = frontends.fleet
    heard = await both(frontends, Process.ask_to_stop, made["f1"].ended)
    for one in heard:
        (error,) = one.errors
        assert error["code"] == "unavailable"
        assert "stopping" in error["message"]
        assert not one.broken
        assert not one.done
    assert begun_as_expected(frontends, heard)
    made.wait_at_rest("f2")
    made["f1"].again()
    made.wait_ready("f1")


async def test_a_frontend_that_is_killed_breaks_its_clients_streams(frontends: Frontends) -> None:
    made = frontends.fleet
    heard = await both(frontends, Process.kill, lambda: made.wait_at_rest("f2"))
    assert [(one.broken, one.done, one.errors) for one in heard] == [(True, False, [])] * 4
    assert begun_as_expected(frontends, heard)
    made["f1"].again()
    made.wait_ready("f1")


async def test_a_frontend_that_stood_still_goes_on_with_what_it_has(frontends: Frontends) -> None:
    """While it stands still nobody holds anything for it; then its streams go on without a gap or a repeat."""
    made = frontends.fleet

    def wake() -> None:
        made.wait_at_rest("f2")
        made["f1"].thaw()

    heard = await both(frontends, Process.freeze, wake)
    assert [one.errors for one in heard] == [[]] * 4
    assert [one.answer for one in heard] == [one.answer for one in frontends.expected]
    made.wait_at_rest("f2")
    made.wait_at_rest("f1")
