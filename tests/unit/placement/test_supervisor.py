"""The supervisor over small real processes: whatever a child or its machine does, none is lost and none is left."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from headrace.core.errors import StartupError
from headrace.placement.processes import ProcessSpec
from headrace.placement.supervisor import Supervisor

READY = 'import sys; print(\'{"who": "me"}\', flush=True)\n'
SERVE = READY + "sys.stdin.read()\n"
# Serves until it is asked to leave, and then ends well.
LEAVE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n" + SERVE
# Does not leave.
STAY = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "while True: signal.pause()\n"
WITHIN_S = 20.0


async def until(holds: Callable[[], bool]) -> None:
    """Look again and again until it holds; TimeoutError if it never does."""
    async with asyncio.timeout(WITHIN_S):
        while not holds():
            await asyncio.sleep(0.01)


class Readiness:
    """Who became ready, in order. `fails`: how many of the next calls raise."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.fails = 0

    def __call__(self, spec: ProcessSpec, pid: int, said: dict[str, str]) -> None:
        assert said == {"who": "me"}
        self.pids.append(pid)
        if self.fails:
            self.fails -= 1
            raise OSError("No space left on device")

    async def until(self, count: int) -> None:
        await until(lambda: len(self.pids) >= count)


def spec(directory: Path, program: str, name: str = "child") -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", program), dict(os.environ), directory / f"{name}.log")


@asynccontextmanager
async def supervised(
    on_ready: Callable[[ProcessSpec, int, dict[str, str]], None], **options: float
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(on_ready, grace_s=5.0, **options)
    before = {child.pid for child in psutil.Process().children()}
    try:
        yield supervisor
    finally:
        async with asyncio.timeout(WITHIN_S):
            await supervisor.stop()
    assert {child.pid for child in psutil.Process().children()} <= before, "a process is left"


async def test_a_dead_child_is_started_again(tmp_path: Path) -> None:
    ready = Readiness()
    async with supervised(ready) as supervisor:
        await supervisor.start([spec(tmp_path, SERVE)])
        for lives in (2, 3):
            psutil.Process(ready.pids[-1]).kill()
            await ready.until(lives)
    assert len(set(ready.pids)) == 3


def named(said: Sequence[Mapping[str, object]], event: str) -> list[Mapping[str, object]]:
    return [line for line in said if line["event"] == event]


async def test_a_child_that_was_told_to_leave_is_started_again_and_has_not_died(tmp_path: Path) -> None:
    ready = Readiness()
    async with supervised(ready) as supervisor:
        with capture_logs() as said:
            await supervisor.start([spec(tmp_path, LEAVE)])
            for lives in (2, 3, 4):
                psutil.Process(ready.pids[-1]).terminate()
                await ready.until(lives)
        assert supervisor.deaths == 0
    assert [(line["event"], line["log_level"]) for line in said] == [("process.left", "info")] * 3


async def test_a_child_that_has_to_be_killed_in_the_end_has_died(tmp_path: Path) -> None:
    """Its log says why it did not leave in its time."""
    ready = Readiness()
    supervisor = Supervisor(ready, grace_s=0.2)
    await supervisor.start([spec(tmp_path, STAY), spec(tmp_path, LEAVE, "other")])
    await supervisor.stop()
    assert supervisor.deaths == 1
    assert not any(psutil.pid_exists(pid) for pid in ready.pids)


async def test_a_child_that_ends_well_before_it_serves_has_died(tmp_path: Path) -> None:
    """Nobody told it to leave, and without pauses it would keep the machine busy."""
    ready = Readiness()
    mark = str(tmp_path / "begun")
    once = f"import pathlib, sys; mark = pathlib.Path({mark!r})\nif mark.exists(): sys.exit()\nmark.touch()\n"
    async with supervised(ready) as supervisor:
        with capture_logs() as said:
            await supervisor.start([spec(tmp_path, once + LEAVE)])
            psutil.Process(ready.pids[-1]).terminate()
            await until(lambda: supervisor.deaths == 2)
        assert len(named(said, "process.left")) == 1
        assert [line["restart_in_s"] for line in named(said, "process.died")] == [0.2, 0.4]


async def test_a_life_is_judged_once(tmp_path: Path) -> None:
    """A start that fails leaves the last life's exit code behind, and that is not another leave."""
    ready = Readiness()
    logs = tmp_path / "logs"
    logs.mkdir()
    async with supervised(ready) as supervisor:
        await supervisor.start([spec(logs, LEAVE)])
        logs.rename(tmp_path / "away")
        with capture_logs() as said:
            psutil.Process(ready.pids[-1]).terminate()
            await until(lambda: len(named(said, "process.died")) == 2)
        assert len(named(said, "process.left")) == 1
        assert [line["restart_in_s"] for line in named(said, "process.died")] == [0.2, 0.4]


async def test_a_child_hears_no_signal_of_our_terminal_and_shares_our_processor_time(tmp_path: Path) -> None:
    """Its process group is its own. Its session is ours: Linux deals time out to sessions first."""
    ready = Readiness()
    async with supervised(ready) as supervisor:
        await supervisor.start([spec(tmp_path, SERVE)])
        (pid,) = ready.pids
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) == os.getsid(0)


async def test_a_child_is_kept_though_a_restart_of_it_went_wrong(tmp_path: Path) -> None:
    """The machine is full for a moment: whoever keeps the state file cannot, and the child must not be lost by it."""
    ready = Readiness()
    async with supervised(ready) as supervisor:
        await supervisor.start([spec(tmp_path, SERVE)])
        ready.fails = 1
        psutil.Process(ready.pids[-1]).kill()
        await ready.until(2)
        psutil.Process(ready.pids[-1]).kill()
        await ready.until(3)


async def test_a_child_whose_log_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    ready = Readiness()
    logs = tmp_path / "logs"
    logs.mkdir()
    async with supervised(ready) as supervisor:
        await supervisor.start([spec(logs, SERVE)])
        logs.rename(tmp_path / "away")
        with capture_logs() as said:
            psutil.Process(ready.pids[-1]).kill()
            await until(lambda: bool(named(said, "process.restart_failed")))
        logs.mkdir()
        await ready.until(2)


async def test_words_of_libraries_on_standard_output_do_no_harm(tmp_path: Path) -> None:
    """Before the one JSON line and behind it, more than a pipe holds: all of it ends up in the log."""
    ready = Readiness()
    program = (
        "print('[1] ucx_context.c:1 UCX  WARN  something')\n"
        + READY
        + "for _ in range(4000): print('x' * 99)\n"
        + "sys.stdout.flush(); print('done', file=sys.stderr, flush=True); sys.stdin.read()\n"
    )
    async with supervised(ready) as supervisor:
        one = spec(tmp_path, program)
        await supervisor.start([one])
        await until(lambda: "done" in one.log.read_text())
    assert "UCX  WARN" in one.log.read_text()
    assert one.log.read_text().count("x" * 99) == 4000


async def test_the_first_failure_of_a_start_is_told_at_once(tmp_path: Path) -> None:
    async with supervised(Readiness()) as supervisor:
        slow = spec(tmp_path, "import sys; sys.stdin.read()", "slow")
        broken = spec(tmp_path, "import sys; sys.exit('headrace: It has no wheels.') ", "broken")
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(StartupError, match="no wheels"):
                await supervisor.start([slow, broken])


async def test_a_child_that_never_serves_is_given_up(tmp_path: Path) -> None:
    async with supervised(Readiness(), ready_s=0.5) as supervisor:
        with pytest.raises(StartupError, match=r"child .* 0\.5 s"):
            await supervisor.start([spec(tmp_path, "import sys; sys.stdin.read()")])
