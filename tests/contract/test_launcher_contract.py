"""The Launcher contract, over child processes and over a real Ray: places, starts, ends, and what is left."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from fixtures.eventually import eventually
from fixtures.living import lives
from fixtures.ray_head import CPUS, RayHead

from headrace.config import inherited_environment
from headrace.core.errors import StartupError
from headrace.placement.launcher import Launcher
from headrace.placement.local import ProcessLauncher
from headrace.placement.processes import MACHINE_ADDRESS, Bundle, ProcessSpec
from headrace.placement.supervisor import Supervisor

REFUSED_WITHIN_S = 5.0
READY_WITHIN_S = 30.0
ONE_CPU = Bundle(1.0)
SAY = "import json, os, secrets, signal, sys\ndef say(**facts): print(json.dumps(facts), flush=True)\n"
SERVE = SAY + "say(life=secrets.token_hex(4), pid=os.getpid())\nsys.stdin.read()\n"
DEAF = SAY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(life='deaf')\nwhile True: signal.pause()\n"
POLITE = SAY + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nsay(life='polite')\nsignal.pause()\n"


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[None]:
    """Variables of the machine, which reach a Ray that is started on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OF", "the machine")
        patch.setenv("WHOSE", "the machine's")
        yield


@pytest.fixture(scope="module")
def head(ray_head: RayHead) -> Iterator[RayHead]:
    """One Ray for all tests, which may be connected to from here."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_head.environment.items():
            patch.setenv(name, value)
        yield ray_head


@pytest.fixture(params=["process", "ray"])
async def launcher(request: pytest.FixtureRequest) -> AsyncIterator[Launcher]:
    if request.param == "process":
        launcher: Launcher = ProcessLauncher()
    else:
        head = request.getfixturevalue("head")
        from headrace.placement.ray_cluster import RayLauncher

        launcher = RayLauncher(head.address, inherited_environment)
    try:
        yield launcher
    finally:
        await launcher.close()


@pytest.fixture
def spec(launcher: Launcher, tmp_path: Path) -> "Specs":
    """A child here gets its whole environment from us; elsewhere it gets its machine's, and from us its own part."""
    return Specs(tmp_path, whole_environment=isinstance(launcher, ProcessLauncher))


class Specs:
    """Small processes that want one CPU each unless told."""

    def __init__(self, directory: Path, *, whole_environment: bool) -> None:
        self._directory = directory
        self._whole = whole_environment

    def __call__(self, program: str = SERVE, name: str = "one", bundle: Bundle = ONE_CPU, *words: str) -> ProcessSpec:
        argv = (sys.executable, "-c", program, *words)
        environment = {**(inherited_environment() if self._whole else {}), "WHOSE": "its own"}
        return ProcessSpec(name, argv, environment, self._directory / "logs" / f"{name}.log", (bundle,))


async def gone(pid: int) -> None:
    await eventually(lambda: not lives(pid))


async def test_a_life_says_what_it_is_and_ends_when_told(launcher: Launcher, spec: Specs) -> None:
    one = spec()
    await launcher.reserve([one])
    life = await launcher.launch(one)
    said = await life.ready(READY_WITHIN_S)
    assert said["pid"] == str(life.pid)
    assert life.spec == one
    assert lives(life.pid)
    assert await life.stop(5.0) == -signal.SIGTERM
    await gone(life.pid)
    assert await life.stop(5.0) == await life.ended() == -signal.SIGTERM


async def test_stopping_is_graceful_and_then_is_not(launcher: Launcher, spec: Specs) -> None:
    polite, deaf = spec(POLITE, "polite"), spec(DEAF, "deaf")
    await launcher.reserve([polite, deaf])
    lives = [await launcher.launch(each) for each in (polite, deaf)]
    for life in lives:
        await life.ready(READY_WITHIN_S)
    assert await lives[0].stop(5.0) == 7
    assert await lives[1].stop(0.2) == -signal.SIGKILL
    for life in lives:
        await gone(life.pid)


async def test_an_end_is_told_with_its_code(launcher: Launcher, spec: Specs) -> None:
    one = spec()
    await launcher.reserve([one])
    life = await launcher.launch(one)
    await life.ready(READY_WITHIN_S)
    ended = asyncio.create_task(life.ended())
    os.kill(life.pid, signal.SIGKILL)
    assert await asyncio.wait_for(ended, READY_WITHIN_S) == -signal.SIGKILL


async def test_giving_up_waiting_for_an_end_does_no_harm(launcher: Launcher, spec: Specs) -> None:
    one = spec()
    await launcher.reserve([one])
    life = await launcher.launch(one)
    await life.ready(READY_WITHIN_S)
    watch = asyncio.create_task(life.ended())
    await asyncio.sleep(0)
    watch.cancel()
    await asyncio.wait({watch})
    assert lives(life.pid)
    assert await life.stop(5.0) == -signal.SIGTERM


async def test_a_dead_process_comes_back_as_a_new_life(launcher: Launcher, spec: Specs) -> None:
    lives: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    supervisor = Supervisor(lambda _, pid, said: lives.put_nowait((pid, said["life"])), launcher, grace_s=5.0)
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            await supervisor.start([spec()])
            seen = [await lives.get()]
            for _ in range(2):
                os.kill(seen[-1][0], signal.SIGKILL)
                seen.append(await lives.get())
    finally:
        await supervisor.stop()
    assert len({pid for pid, _ in seen}) == len({life for _, life in seen}) == 3
    await gone(seen[-1][0])


async def test_who_does_not_start_says_why_in_its_own_words(launcher: Launcher, spec: Specs) -> None:
    broken = spec("import sys; print('headrace: It has no wheels.', file=sys.stderr); sys.exit(2)")
    silent = spec("import sys; sys.stdin.read()", "silent")
    await launcher.reserve([broken, silent])
    life = await launcher.launch(broken)
    with pytest.raises(StartupError) as refused:
        await life.ready(READY_WITHIN_S)
    assert str(refused.value) == "one did not start: It has no wheels."
    await life.stop(1.0)
    life = await launcher.launch(silent)
    with pytest.raises(StartupError, match=r"silent does not serve after 0\.2 s"):
        await life.ready(0.2)
    await life.stop(5.0)


@pytest.mark.parametrize("bundle", [Bundle(cpus=1000.0), Bundle(gpus=16.0)], ids=["cpus", "gpus"])
async def test_what_cannot_be_had_is_said_at_once_and_holds_nothing(
    launcher: Launcher, spec: Specs, bundle: Bundle
) -> None:
    greedy, modest = spec(SERVE, "greedy", bundle), spec(SERVE, "modest")
    began = time.monotonic()
    with pytest.raises(StartupError, match=r"greedy needs .* on one machine, and no machine has more than") as refused:
        await launcher.reserve([modest, greedy])
    assert time.monotonic() - began < REFUSED_WITHIN_S
    assert "\n" not in str(refused.value)
    assert refused.value.remedy
    await launcher.reserve([modest, spec(SERVE, "other")])
    life = await launcher.launch(modest)
    await life.ready(READY_WITHIN_S)
    await life.stop(5.0)


async def test_environment_and_address_are_those_of_the_machine(launcher: Launcher, spec: Specs) -> None:
    program = SAY + "say(whose=os.environ['WHOSE'], of=os.environ['OF'], at=sys.argv[1])\nsys.stdin.read()\n"
    one = spec(program, "one", ONE_CPU, f"--at={MACHINE_ADDRESS}")
    await launcher.reserve([one])
    life = await launcher.launch(one)
    said = await life.ready(READY_WITHIN_S)
    assert said["whose"] == "its own"
    assert said["of"] == "the machine"
    assert said["at"].removeprefix("--at=").replace(".", "").isdigit()
    await life.stop(5.0)


async def test_closing_leaves_nothing(launcher: Launcher, spec: Specs) -> None:
    specs = [spec(), spec(DEAF, "deaf")]
    await launcher.reserve(specs)
    lives = [await launcher.launch(each) for each in specs]
    for life in lives:
        await life.ready(READY_WITHIN_S)
    await launcher.close()
    await launcher.close()
    for life in lives:
        await gone(life.pid)


@pytest.mark.parametrize("launcher", ["ray"], indirect=True)
async def test_a_dead_actor_comes_back_and_takes_its_process_along(launcher: Launcher, spec: Specs) -> None:
    lives: asyncio.Queue[int] = asyncio.Queue()
    supervisor = Supervisor(lambda _, pid, __: lives.put_nowait(pid), launcher, grace_s=5.0)
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            await supervisor.start([spec()])
            first = await lives.get()
            os.kill(psutil.Process(first).ppid(), signal.SIGKILL)
            await lives.get()
        await gone(first)
    finally:
        await supervisor.stop()


@pytest.mark.parametrize("launcher", ["ray"], indirect=True)
async def test_what_others_hold_is_said_and_not_waited_for(launcher: Launcher, spec: Specs) -> None:
    await launcher.reserve([spec(SERVE, f"early-{index}") for index in range(CPUS)])
    began = time.monotonic()
    with pytest.raises(StartupError, match=r"late needs 1 CPU on one machine of Ray's, and 0 CPUs are free in all"):
        await launcher.reserve([spec(SERVE, "late")])
    assert time.monotonic() - began < REFUSED_WITHIN_S


async def test_a_ray_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    from headrace.placement.ray_cluster import RayLauncher

    nowhere = ("127.0.0.1:1", "No Ray answers at 127.0.0.1:1.")
    for address, sentence in (nowhere, ("nonsense", "is no address of Ray: it is not host:port")):
        launcher = RayLauncher(address, inherited_environment)
        with pytest.raises(StartupError, match=sentence):
            await launcher.reserve([Specs(tmp_path, whole_environment=False)()])
        await launcher.close()


NOT_FORKED = "Initialization failure from server: RuntimeError: Starting Ray client server failed."


@pytest.mark.parametrize(
    ("failures", "tries"),
    [
        ([], 1),
        ([ConnectionAbortedError(NOT_FORKED), RuntimeError(NOT_FORKED)], 3),
        ([ConnectionAbortedError(NOT_FORKED)] * 3, 3),
        ([ConnectionError("the token is wrong")], 1),
    ],
)
def test_a_client_server_that_did_not_begin_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, failures: list[Exception], tries: int
) -> None:
    from headrace.placement import ray_cluster

    asked: list[str] = []

    def join(address: str, files: str) -> None:
        asked.append(address)
        if len(asked) <= len(failures):
            raise failures[len(asked) - 1]

    monkeypatch.setattr(ray_cluster, "_init", join)
    fails = len(failures) == tries
    with pytest.raises((OSError, RuntimeError)) if fails else contextlib.nullcontext():
        ray_cluster._connect("ray://head:10001", "")
    assert asked == ["ray://head:10001"] * tries
