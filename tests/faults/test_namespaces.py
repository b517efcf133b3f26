"""Namespaces as processes have them: each reaches the others, is parted in silence, and reaches them again."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.testbed.namespaces import Namespaces, namespaces, obstacle

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=f"namespaces cannot be made: {obstacle()}")

PORT = 9000
CONNECT_S = 0.5
GREETING = b"here\n"
SERVER = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall({GREETING!r})
"""
CALLER = f"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], {PORT}), timeout={CONNECT_S}) as connection:
        connection.settimeout({CONNECT_S})
        print("reached" if connection.recv(16) == {GREETING!r} else "cut")
except OSError as error:
    print(type(error).__name__)
"""


@asynccontextmanager
async def listening(made: Namespaces, name: str) -> AsyncIterator[None]:
    words = (*made.inside(name), sys.executable, "-c", SERVER)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listening\n"
        yield
    finally:
        process.kill()
        await process.wait()


async def call(made: Namespaces, caller: str, called: str) -> str:
    words = (*made.inside(caller), sys.executable, "-c", CALLER, made.hosts[called])
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return said.decode().strip()


def there_is(name: str) -> bool:
    return Path("/run/netns", name).exists()


async def test_a_partition_is_silence_between_those_that_it_parts_and_nobody_else() -> None:
    async with namespaces(("a", "b", "c")) as made, listening(made, "a"), listening(made, "b"):
        assert await call(made, "b", "a") == "reached"
        await made.cut("a", ["b"])
        assert (await call(made, "b", "a"), await call(made, "a", "b")) == ("TimeoutError", "TimeoutError")
        assert (await call(made, "c", "a"), await call(made, "c", "b")) == ("reached", "reached")
        reader, writer = await asyncio.open_connection(made.hosts["a"], PORT)
        assert await reader.readline() == GREETING
        writer.close()
        await made.heal("a")
        assert (await call(made, "b", "a"), await call(made, "a", "b")) == ("reached", "reached")


async def test_two_that_were_parted_from_both_sides_meet_when_both_are_healed() -> None:
    async with namespaces(("a", "b", "c")) as made, listening(made, "a"):
        await made.cut("a", ["b", "c"])
        await made.cut("b", ["a"])
        await made.heal("a")
        assert (await call(made, "b", "a"), await call(made, "c", "a")) == ("TimeoutError", "reached")
        await made.heal("b")
        await made.heal("b")
        assert await call(made, "b", "a") == "reached"


async def test_what_a_run_leaves_is_removed_and_another_at_the_same_time_is_left_alone() -> None:
    async with namespaces(("a",)) as one, namespaces(("a",)) as other:
        assert one.hosts["a"] != other.hosts["a"]
        await other.remove()
        async with listening(one, "a"):
            assert await call(one, "a", "a") == "reached"
        name = one.inside("a")[-1]
        assert there_is(name)
    assert not there_is(name)


async def test_a_place_is_free_as_soon_as_it_was_left() -> None:
    """Several times, at once after each other: the kernel takes its time to clear up."""
    for _ in range(5):
        async with namespaces(("a", "b")) as made:
            name = made.inside("a")[-1]
            assert there_is(name)
        assert not [device for _, device in socket.if_nameindex() if device.startswith(name.partition("-")[0] + "-")]


async def test_what_runs_in_them_ends_with_them() -> None:
    async with namespaces(("a",)) as made:
        words = (*made.inside("a"), sys.executable, "-c", SERVER)
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listening\n"
    async with asyncio.timeout(5):
        assert await process.wait() == -9
