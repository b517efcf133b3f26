"""What a process has by the kernel's account, and what is left on the machine: each thing is seen to come and go."""

import asyncio
import os
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import shared_memory as segments

import pytest

from headrace.chaos.probes import redis_keys
from headrace.chaos.soak import remains as leftovers
from headrace.chaos.soak.remains import remains, shared_memory
from headrace.chaos.soak.sample import MEMORY, THREADS, kernels_account


def test_descriptors_sockets_and_threads_are_counted() -> None:
    before = kernels_account(os.getpid())
    assert before[MEMORY] > 2**20
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    with ExitStack() as closing:
        thread.start()
        closing.callback(thread.join)
        closing.callback(go.set)
        for each in socket.socketpair():
            closing.enter_context(each)
        closing.enter_context(open(os.devnull))
        now = kernels_account(os.getpid())
        assert {name: now[name] - before[name] for name in ("fds", "sockets", THREADS)} == {
            "fds": 3,
            "sockets": 2,
            THREADS: 1,
        }
    assert kernels_account(os.getpid())["fds"] == before["fds"]


def test_nothing_is_told_of_a_process_that_has_ended() -> None:
    assert kernels_account(2**22 + 1) == {}


@pytest.mark.parametrize(
    ("said", "stay"),
    [
        (b"# Keyspace\r\ndb0:keys=18,expires=12,avg_ttl=3,subexpiry=0\r\ndb3:keys=1,expires=0,avg_ttl=0\r\n", 7),
        (b"# Keyspace\r\n", 0),
        (None, None),
    ],
)
async def test_of_keys_in_redis_only_those_that_stay_are_counted(said: bytes | None, stay: int | None) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"INFO keyspace\r\n"
        writer.write(b"-LOADING later\r\n" if said is None else b"$%d\r\n%s\r\n" % (len(said), said))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert await redis_keys("127.0.0.1", server.sockets[0].getsockname()[1]) == stay


@pytest.fixture
def segment() -> Iterator[segments.SharedMemory]:
    made = segments.SharedMemory(f"soak-{uuid.uuid4().hex}", create=True, size=4096)
    yield made
    made.close()
    made.unlink()


async def test_shared_memory_that_nobody_uses_is_left(
    segment: segments.SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_GOES_S", 0.0)
    before = shared_memory() - {segment.name}
    assert kernels_account(os.getpid())["shared"] >= 1
    assert not any(segment.name in sentence for sentence in await remains(before, None))
    segment.close()
    assert any(segment.name in sentence for sentence in await remains(before, None))
    assert not any(segment.name in sentence for sentence in await remains(shared_memory(), None))


async def test_a_process_that_runs_on_is_left_and_so_is_one_that_nobody_reaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leftovers, "_GOES_S", 0.0)
    before = shared_memory()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    try:
        told = [sentence for sentence in await remains(before, None) if f"process {child.pid} " in sentence]
        assert len(told) == 1
    finally:
        child.kill()
        await child.wait()
    assert not any(f"process {child.pid} " in sentence for sentence in await remains(before, None))
