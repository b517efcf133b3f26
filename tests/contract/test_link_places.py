"""Where links listen, and whom an address means."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest
from fixtures.namespaces import two_hosts, why_not
from link_drive import UCX_SHARED_MEMORY, OpenLinks, buffer, carry, drive, factory_of, frame, settled
from link_sockets import Seen, free_ports, tcp_sockets

from headrace.core.errors import StartupError
from headrace.transfer.data_address import DataAddress
from headrace.transfer.link import ReceiptState

OVER_SOCKETS = ["tcp", "ucx", UCX_SHARED_MEMORY, "nccl"]
OTHER_ADDRESSES = [
    address.address
    for addresses in psutil.net_if_addrs().values()
    for address in addresses
    if address.family == socket.AF_INET and not address.address.startswith("127.")
]
HOSTS = ["127.0.0.1", *OTHER_ADDRESSES[:1]]
FORMER = b"\xf0rmerly."


@pytest.fixture
def opened() -> Iterator[Callable[..., OpenLinks]]:
    made: list[OpenLinks] = []

    def make(kind: str, host: str = "127.0.0.1", ports: range = range(0)) -> OpenLinks:
        made.append(OpenLinks(kind, host, ports))
        return made[-1]

    yield make
    for links in made:
        links.close_all()


def _listening(before: frozenset[Seen]) -> set[tuple[str, int]]:
    return {(seen.host, seen.port) for seen in tcp_sockets() - before if seen.listens}


@pytest.mark.parametrize("kind", OVER_SOCKETS)
@pytest.mark.parametrize("host", HOSTS)
def test_a_link_listens_where_its_worker_is_and_nowhere_else(
    opened: Callable[..., OpenLinks], wake: int, kind: str, host: str
) -> None:
    links = opened(kind, host)
    before = tcp_sockets()
    left, right = links.open(), links.open()
    carry(wake, left, right, frame(0))
    found = _listening(before)
    assert {at for at, _ in found} == {host}
    assert (host, DataAddress.parse(right.address).port) in found


@pytest.mark.parametrize("kind", ["tcp", "ucx", UCX_SHARED_MEMORY])
def test_links_listen_in_their_range_of_ports(opened: Callable[..., OpenLinks], wake: int, kind: str) -> None:
    ports = free_ports(8)
    links = opened(kind, ports=ports)
    before = tcp_sockets()
    left, right = links.open(), links.open()
    carry(wake, left, right, frame(0))
    assert {port for _, port in _listening(before)} <= set(ports)


@pytest.mark.parametrize("kind", ["tcp", "ucx"])
def test_a_range_without_a_free_port_is_refused(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError):
            factory_of(kind, ports=range(port, port + 1)).open()


def test_ports_of_process_groups_cannot_be_chosen() -> None:
    with pytest.raises(StartupError, match="nccl"):
        factory_of("nccl", ports=range(9200, 9300))


@pytest.mark.parametrize("kind", OVER_SOCKETS)
@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_that_is_not_this_hosts_is_refused(kind: str, host: str) -> None:
    with pytest.raises(StartupError, match=host):
        factory_of(kind, host).open()


@pytest.mark.parametrize("kind", OVER_SOCKETS)
def test_names_of_this_host_are_announced_as_numbers(opened: Callable[..., OpenLinks], kind: str) -> None:
    assert opened(kind, "localhost").open().address.startswith(("127.0.0.1:", "[::1]:"))


@pytest.mark.parametrize("kind", OVER_SOCKETS)
def test_what_was_sent_to_a_former_life_reaches_nobody(opened: Callable[..., OpenLinks], wake: int, kind: str) -> None:
    links = opened(kind)
    left, right = links.open(), links.open()
    former = str(replace(DataAddress.parse(right.address), nonce=FORMER))
    # 1. At the same place, a frame that is awaited there: it is not taken, and where the link can know it fails.
    into = buffer(1000)
    received = right.post(frame(0), into)
    ghost = left.send(former, frame(0), buffer(1000, 9))
    knock = left.send(former, frame(1), memoryview(b""))
    if kind in {"tcp", "nccl"}:
        drive(wake, settled(ghost, knock), left, right)
    for unit in range(1, 4):
        carry(wake, left, right, frame(unit))
    assert ReceiptState.DONE not in {ghost.state, knock.state}
    assert received.pending
    assert bytes(into) == bytes(1000)
    # 2. What is sent to the present one arrives.
    sent = left.send(right.address, frame(0), buffer(1000, 7))
    drive(wake, settled(sent, received), left, right)
    assert bytes(into) == b"\7" * 1000


@pytest.mark.skipif(bool(why_not()), reason=f"two hosts cannot be made here: {why_not()}")
@pytest.mark.parametrize("kind", OVER_SOCKETS)
def test_a_host_may_have_its_address_on_a_bridge(kind: str) -> None:
    """In a process of its own: UCX looks once at the routes of its host."""
    program = f"""
import os, sys
from link_drive import OpenLinks, carry, frame
links = OpenLinks({kind!r}, sys.argv[1])
carry(os.eventfd(0, os.EFD_NONBLOCK), links.open(), links.open(), frame(0))
links.close_all()
"""
    with two_hosts() as cable:
        assert run(program, cable.bridge).returncode == 0


def run(program: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    here = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=here, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.parametrize(("level", "writes"), [(None, False), ("FATAL", False), ("ERROR", True), ("DEBUG", True)])
def test_the_binding_of_ucx_writes_only_what_its_user_asks_for(
    monkeypatch: pytest.MonkeyPatch, level: str | None, writes: bool
) -> None:
    """That nobody answers a call is an error to it."""
    program = """
import os
from link_drive import OpenLinks, buffer, drive, frame, settled
links, wake = OpenLinks("ucx"), os.eventfd(0, os.EFD_NONBLOCK)
link = links.open()
drive(wake, settled(link.send("127.0.0.1:1/0123456789abcdef", frame(0), buffer(100))), link)
links.close_all()
"""
    monkeypatch.delenv("UCXX_LOG_LEVEL", raising=False)
    done = run(program, **({} if level is None else {"UCXX_LOG_LEVEL": level}))
    assert ("UCXX" in done.stdout + done.stderr) is writes
