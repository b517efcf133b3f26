"""The cluster's supervision over processes that are quick to start: who died, who hung, who is started again."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.chaos import cluster as supervision
from headrace.chaos.cells import Fault
from headrace.chaos.cluster import Cluster
from headrace.chaos.members import Kind, Member, Settings
from headrace.chaos.strike import Blow, pass_by, strike
from headrace.core.errors import StartupError
from headrace.placement.processes import ProcessSpec

# Says that it serves, and ends when it is asked to.
WELL = 'import signal; print(\'{"incarnation": "1"}\', flush=True); signal.pause()'
# Does not hear that it is asked.
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WELL}\nwhile True: signal.pause()"
FAILING = "raise SystemExit('no room')"
WITHIN_S = 10.0


class Simple(Cluster):
    """Its processes are the programs of `programs`."""

    programs: dict[str, str]

    def _spec(self, member: Member) -> ProcessSpec:
        words = (sys.executable, "-c", self.programs[member.name])
        return ProcessSpec(member.name, words, {}, self.directory / f"{member.name}.log")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simple]:
    monkeypatch.setattr(supervision, "STOP_S", 1.0)
    members = [Member("prefill-0", Kind.PREFILL, "127.0.0.1", 1), Member("decode-0", Kind.DECODE, "127.0.0.1", 2)]
    settings = Settings(sys.executable, {}, tmp_path, tmp_path, "tcp", tmp_path / "socket")
    made = Simple(members, settings, tmp_path, None)
    made.programs = {member.name: WELL for member in members}
    await made.launch_missing()
    yield made
    await made.stop()


async def test_who_is_told_to_end_has_not_died(cluster: Simple) -> None:
    await strike(cluster, Blow(Fault.KILL, "prefill-0"))
    assert not cluster.runs("prefill-0")
    assert cluster.runs("decode-0")
    assert cluster.take_deaths() == ()
    before = cluster.pid("decode-0")
    await cluster.launch_missing()
    assert cluster.runs("prefill-0")
    assert cluster.pid("decode-0") == before


async def test_who_ends_by_itself_has_died_and_is_told_once(cluster: Simple) -> None:
    ended = asyncio.create_task(cluster.ended("decode-0", WITHIN_S))
    # As a defect of its own would end it: by a signal that is none of ours.
    os.kill(cluster.pid("decode-0"), signal.SIGUSR1)
    assert await ended
    assert cluster.take_deaths() == ("decode-0 ended with code -10",)
    assert cluster.take_deaths() == ()


async def test_a_restart_is_another_process_at_once(cluster: Simple) -> None:
    before = cluster.pid("decode-0")
    blow = Blow(Fault.RESTART, "decode-0", graceful=True)
    await strike(cluster, blow)
    assert await pass_by(cluster, blow) == ()
    assert cluster.runs("decode-0")
    assert cluster.pid("decode-0") != before


async def test_who_does_not_stop_when_asked_hung(cluster: Simple) -> None:
    cluster.signal("decode-0", signal.SIGKILL)
    assert await cluster.ended("decode-0", WITHIN_S)
    cluster.programs["decode-0"] = DEAF
    await cluster.launch("decode-0")
    # One that was killed before did not hang.
    cluster.signal("prefill-0", signal.SIGKILL)
    assert await cluster.ended("prefill-0", WITHIN_S)
    assert await cluster.stop() == ("decode-0",)


async def test_who_does_not_come_up_is_told_with_its_last_words(cluster: Simple) -> None:
    cluster.signal("decode-0", signal.SIGKILL)
    assert await cluster.ended("decode-0", WITHIN_S)
    cluster.programs["decode-0"] = FAILING
    with pytest.raises(StartupError, match="decode-0 did not start"):
        await cluster.launch_missing()
