"""Data addresses: their text, and nothing that would need a name service."""

import socket

import pytest

from headrace.core.errors import StartupError
from headrace.transfer.data_address import ANY_PORT, DataAddress, interface_of, listen, own_address, port_range

NONCE = bytes(range(8))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.77.0.2", "::1", "fe80::1"])
@pytest.mark.parametrize("meeting", [0, 4444])
def test_an_address_comes_back_from_its_text(host: str, meeting: int) -> None:
    address = DataAddress(host, 9200, NONCE, meeting)
    assert DataAddress.parse(str(address)) == address


def test_no_two_lives_have_one_address() -> None:
    assert len({str(DataAddress.at("127.0.0.1", 9200)) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "127.0.0.1:9200",
        "127.0.0.1:9200/",
        "127.0.0.1:9200/00",
        "localhost:9200/0001020304050607",
        "127.0.0.1:0/0001020304050607",
        "127.0.0.1:65536/0001020304050607",
        "127.0.0.1:-1/0001020304050607",
        "127.0.0.1:9200/0001020304050607/",
        "127.0.0.1:9200/0001020304050607/1/2",
        "127.0.0.1:9200/000102030405060A",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        DataAddress.parse(text)


def test_names_become_numbers() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") in {"127.0.0.1", "::1"}
    for nobody in ("no-such-host.invalid", "203.0.113.7"):
        with pytest.raises(StartupError, match=nobody):
            own_address(nobody)


def test_of_several_addresses_the_own_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("203.0.113.7", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    assert own_address("replicas") == "127.0.0.1"


def test_the_loopback_interface_has_all_of_its_addresses() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2")
    with pytest.raises(StartupError, match=r"203\.0\.113\.7"):
        interface_of("203.0.113.7")


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with listen("127.0.0.1") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", range(port, port + 1))
        with socket.create_server(("127.0.0.1", 0)) as other:
            last = other.getsockname()[1]
        if last > port:
            with listen("127.0.0.1", range(port, last + 1)) as found:
                assert port < found.getsockname()[1] <= last


def test_a_range_of_ports_is_read_with_both_its_ends() -> None:
    assert port_range("9200-9299") == range(9200, 9300)
    assert port_range("9200-9200") == range(9200, 9201)
    assert port_range("") == ANY_PORT


@pytest.mark.parametrize("text", ["9200", "9300-9200", "0-10", "9200-65536", "a-b", "9200-", "-9200"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match="--data-port-range"):
        port_range(text)
