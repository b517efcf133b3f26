"""Control and Agent over a real unix socket: orders are obeyed when they return, news arrive, either may leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.chaos.agent import Agent
from headrace.chaos.control import Control
from headrace.chaos.messages import Arrived, Damage, FrameKind, Held, Hold, LetGo, Phase, Struck, WireFault
from headrace.core.errors import DeadlineExceeded, NotFound, StartupError, WorkerLost
from headrace.core.jobs import JobKey
from headrace.transfer.link import FrameId

WAIT_S = 5.0
KEY = JobKey("cell-1", 2)
AT = "127.0.0.1:7/0011223344556677"

Dial = Callable[[str], Agent]


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "chaos.sock"


@pytest.fixture
async def control(socket: Path) -> AsyncIterator[Control]:
    async def proxied(worker: str, address: str) -> str:
        return f"{worker} behind {address}" if worker == "proxied" else ""

    made = Control(socket, proxied)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def dial(control: Control, socket: Path) -> AsyncIterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def dialed(name: str = "w", incarnation: str = "a1") -> Agent:
        agents.append(Agent(socket, Arrived(name, incarnation, 42)))
        return agents[-1]

    yield dialed
    for agent in agents:
        await asyncio.to_thread(agent.close)


async def test_a_worker_says_who_it_is(control: Control, dial: Dial) -> None:
    dial("w")
    assert await control.arrived("w", WAIT_S) == Arrived("w", "a1", 42)
    assert control.workers() == {"w": Arrived("w", "a1", 42)}


async def test_a_hold_from_order_to_end(control: Control, dial: Dial) -> None:
    agent = dial("w")
    await control.arrived("w", WAIT_S)
    await control.arm("w", Hold(Phase.BEFORE_GRANT, "cell-1"))
    # It is armed when the order returned.
    held = agent.aim.take(Phase.BEFORE_GRANT, KEY)
    assert held is not None
    assert await control.held("w", WAIT_S) == Held("cell-1", 2, Phase.BEFORE_GRANT)
    await control.release("w")
    assert held.over
    agent.aim.let_go(held)
    assert await control.let_go("w", WAIT_S) == LetGo("cell-1", 2, True)


async def test_a_wire_fault_from_order_to_end(control: Control, dial: Dial) -> None:
    agent = dial("w")
    await control.arrived("w", WAIT_S)
    fault = WireFault(Damage.CORRUPTED, FrameKind.END)
    await control.arm_wire("w", fault)
    assert agent.aim.strike(FrameKind.END, b"t" * 16) == fault
    agent.aim.struck(fault, FrameId(b"t" * 16, 65535))
    assert await control.struck("w", WAIT_S) == Struck(Damage.CORRUPTED, (b"t" * 16).hex(), 65535)


async def test_what_is_disarmed_is_not_heard_of(control: Control, dial: Dial) -> None:
    agent = dial("w")
    await control.arrived("w", WAIT_S)
    await control.arm("w", Hold(Phase.BEFORE_GRANT, ""))
    held = agent.aim.take(Phase.BEFORE_GRANT, KEY)
    await control.disarm("w")
    assert held is not None
    assert held.over
    with pytest.raises(DeadlineExceeded, match="did not say Held"):
        await control.held("w", 0.05)
    # What was left over is not taken for the next one.
    await control.arm("w", Hold(Phase.AFTER_GRANT, ""))
    agent.aim.take(Phase.AFTER_GRANT, KEY)
    assert (await control.held("w", WAIT_S)).phase is Phase.AFTER_GRANT


async def test_news_of_a_hold_that_struck_at_once_are_not_lost(control: Control, dial: Dial) -> None:
    """The job is there already when the order is: its news are right behind the answer."""
    agent = dial("w")
    await control.arrived("w", WAIT_S)
    for number in range(20):
        taking = asyncio.create_task(asyncio.to_thread(_take, agent, number))
        await control.arm("w", Hold(Phase.BEFORE_GRANT, f"r{number}."))
        assert (await control.held("w", WAIT_S)).request == f"r{number}."
        await taking


def _take(agent: Agent, number: int) -> None:
    while agent.aim.take(Phase.BEFORE_GRANT, JobKey(f"r{number}.", 1)) is None:
        pass


async def test_a_worker_that_leaves(control: Control, dial: Dial) -> None:
    agent = dial("w")
    await control.arrived("w", WAIT_S)
    waiting = asyncio.create_task(control.held("w", WAIT_S))
    await asyncio.to_thread(agent.close)
    with pytest.raises(WorkerLost, match="left before"):
        await waiting
    with pytest.raises(NotFound, match="not connected"):
        await control.arm("w", Hold(Phase.BEFORE_GRANT, ""))


async def test_a_worker_that_comes_back_has_nothing_armed(control: Control, dial: Dial) -> None:
    first = dial("w")
    await control.arrived("w", WAIT_S)
    await control.arm("w", Hold(Phase.BEFORE_GRANT, ""))
    second = dial("w", "b2")
    assert (await control.arrived("w", WAIT_S, after="a1")).incarnation == "b2"
    # The former one may be noticed to be gone later than that.
    await asyncio.to_thread(first.close)
    await control.disarm("w")
    assert second.aim.take(Phase.BEFORE_GRANT, KEY) is None
    assert control.workers()["w"].incarnation == "b2"


async def test_a_worker_that_does_not_come(control: Control) -> None:
    with pytest.raises(DeadlineExceeded, match="did not connect"):
        await control.arrived("w", 0.05)


async def test_a_harness_that_leaves_frees_everything(control: Control, dial: Dial) -> None:
    agent = dial("w")
    await control.arrived("w", WAIT_S)
    await control.arm("w", Hold(Phase.BEFORE_GRANT, ""))
    held = agent.aim.take(Phase.BEFORE_GRANT, KEY)
    await control.arm("w", Hold(Phase.BEFORE_GRANT, ""))
    await control.close()
    assert held is not None
    await asyncio.to_thread(held.wait)
    assert held.released
    agent.aim.let_go(held)
    assert await asyncio.to_thread(agent.advertised, AT) == AT
    assert agent.aim.take(Phase.BEFORE_GRANT, KEY) is None


async def test_a_link_is_told_what_to_call_itself(control: Control, dial: Dial) -> None:
    plain, proxied = dial("plain"), dial("proxied")
    assert await asyncio.to_thread(plain.advertised, AT) == AT
    assert await asyncio.to_thread(proxied.advertised, AT) == f"proxied behind {AT}"
    # A link that is opened again asks again.
    assert await asyncio.to_thread(proxied.advertised, AT + "0") == f"proxied behind {AT}0"


async def test_who_says_nothing_sensible_is_no_worker(control: Control, socket: Path, dial: Dial) -> None:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"\0\0\0\2{}")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert control.workers() == {}
    dial("w")
    await control.arrived("w", WAIT_S)


def test_without_a_harness_a_worker_does_not_start(socket: Path) -> None:
    with pytest.raises(StartupError, match="No chaos harness listens"):
        Agent(socket, Arrived("w", "a1", 42))
