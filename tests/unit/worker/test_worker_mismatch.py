"""Which routers a worker lets attach, and what it says of itself while none fits."""

import asyncio

import pytest
from fixtures.eventually import eventually
from worker_hellos import MINE, OTHERS, hello

from headrace.core.errors import InvalidRequest
from headrace.rpc.contracts import OLDEST_PROTOCOL, PROTOCOL_VERSION, agreed, spoken
from headrace.worker.mismatch import Mismatch

NEWEST, OLDEST = PROTOCOL_VERSION, OLDEST_PROTOCOL


@pytest.mark.parametrize(
    ("newest", "oldest", "version"),
    [
        (NEWEST, OLDEST, NEWEST),
        (NEWEST, 0, NEWEST),
        (NEWEST + 3, OLDEST, NEWEST),
        (NEWEST + 3, NEWEST, NEWEST),
        (NEWEST + 3, NEWEST + 1, None),
        (NEWEST + 3, 0, None),
        (OLDEST - 1, 1, None),
        (OLDEST, 1, OLDEST),
    ],
)
def test_two_programs_use_the_newest_version_that_both_speak(newest: int, oldest: int, version: int | None) -> None:
    assert agreed(newest, oldest) == version


def test_a_router_with_the_same_weights_or_without_an_opinion_is_let_in() -> None:
    door = Mismatch("tiny", MINE)
    for weights in (MINE, b""):
        door.require_fit(hello(weights=weights), alone=True)
    assert door.obstacle == ""


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"weights": OTHERS}, "serve other models as tiny, their weights are 6d696e656d69 and 6f7468657273"),
        ({"protocol": 99, "oldest": 98}, f"speaks protocols 98 to 99 and this worker {spoken()}"),
        ({"protocol": 1}, f"speaks protocol 1 and this worker {spoken()}"),
    ],
    ids=str,
)
def test_another_is_refused_by_name_and_it_is_the_reason_for_not_being_ready(
    changes: dict[str, object], clause: str
) -> None:
    door = Mismatch("tiny", MINE)
    with pytest.raises(InvalidRequest, match=clause):
        door.require_fit(hello(**changes), alone=True)
    assert clause in door.obstacle


def test_a_worker_that_serves_one_router_is_ready_whatever_others_say() -> None:
    door = Mismatch("tiny", MINE)
    # 1. Nobody can use it.
    with pytest.raises(InvalidRequest):
        door.require_fit(hello(weights=OTHERS), alone=True)
    assert door.obstacle
    # 2. Somebody can.
    door.require_fit(hello(), alone=True)
    assert door.obstacle == ""
    # 3. While that one is there, others change nothing.
    with pytest.raises(InvalidRequest):
        door.require_fit(hello(weights=OTHERS), alone=False)
    assert door.obstacle == ""


async def test_whoever_watches_hears_of_every_change_also_of_the_one_before() -> None:
    door, heard = Mismatch("tiny", MINE), list[str]()

    async def changed() -> None:
        heard.append(door.obstacle)

    with pytest.raises(InvalidRequest):
        door.require_fit(hello(weights=OTHERS), alone=True)
    watching = asyncio.create_task(door.watch(changed))
    try:
        await eventually(lambda: len(heard) == 1)
        door.require_fit(hello(), alone=True)
        door.require_fit(hello(), alone=True)
        await eventually(lambda: len(heard) == 2)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    assert heard[0]
    assert heard[1] == ""
