"""`headrace bench handoff` that is asked to stop: soon, with the signal's code, and nothing left of what it made."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from fixtures.cluster import eventually
from fixtures.living import alive, children_of
from fixtures.random_gguf import write_random

from headrace.bench.handoff import WIRINGS
from headrace.testbed.namespaces import obstacle

WHY_NOT = obstacle(("ip", "tc"))
NAMESPACES = Path("/run/netns")
# It takes about one on an idle machine.
ENDS_WITHIN_S = 10.0
BEGINS_WITHIN_S = 60.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
Command = subprocess.Popen[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("model") / "random.gguf")


@contextmanager
def measuring(model: Path, *flags: str) -> Iterator[Command]:
    command = [sys.executable, "-m", "headrace.cli", "bench", "handoff", "--model", str(model), "--rounds", "1000000"]
    process = subprocess.Popen(
        [*command, "--threads", "1", "--cache-dir", str(model.parent), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def child_of(process: Command) -> psutil.Process:
    """Once it is there."""
    return eventually(lambda: children_of(process.pid, "headrace.bench.handoff_child"), bool, BEGINS_WITHIN_S)[0]


def speaking(process: Command) -> bool:
    connections = psutil.Process(process.pid).net_connections()
    return any(each.status == psutil.CONN_ESTABLISHED for each in connections)


def require_end(process: Command, asked: signal.Signals) -> None:
    out, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == CODES[asked], err
    assert (out.strip(), err.strip()) == ("", "")


@pytest.mark.parametrize("link", sorted(set(WIRINGS) - {"loopback"}))
@pytest.mark.parametrize("asked", CODES)
def test_in_the_midst_of_a_link(asked: signal.Signals, link: str, model: Path) -> None:
    with measuring(model, "--links", link, "--prompt", "0") as process:
        child = child_of(process)
        eventually(lambda: speaking(process), bool, BEGINS_WITHIN_S)
        process.send_signal(asked)
        require_end(process, asked)
        assert alive([child]) == []


def test_in_the_midst_of_a_link_of_one_process(model: Path) -> None:
    with measuring(model, "--links", "loopback", "--prompt", "0") as process:
        eventually(lambda: psutil.Process(process.pid).num_threads(), lambda count: count > 3, BEGINS_WITHIN_S)
        process.send_signal(signal.SIGINT)
        require_end(process, signal.SIGINT)


@pytest.mark.parametrize("asked", CODES)
def test_while_its_child_begins_and_as_a_terminal_does(asked: signal.Signals, model: Path) -> None:
    with measuring(model, "--links", "tcp", "--prompt", "200") as process:
        child = child_of(process)
        os.killpg(process.pid, asked)
        require_end(process, asked)
        assert alive([child]) == []


@pytest.mark.skipif(bool(WHY_NOT), reason=f"a network of namespaces cannot be made: {WHY_NOT}")
@pytest.mark.parametrize("asked", CODES)
def test_its_network_is_removed_however_often_it_is_asked(asked: signal.Signals, model: Path) -> None:
    with measuring(model, "--links", "tcp", "--gbits", "0.2", "--prompt", "0") as process:
        child = child_of(process)
        eventually(lambda: speaking(process), bool, BEGINS_WITHIN_S)
        own = os.stat(f"/proc/{child.pid}/ns/net").st_ino
        (namespace,) = (path for path in NAMESPACES.iterdir() if path.stat().st_ino == own)
        for _ in range(3):
            process.send_signal(asked)
        require_end(process, asked)
        assert alive([child]) == []
        assert not namespace.exists()
