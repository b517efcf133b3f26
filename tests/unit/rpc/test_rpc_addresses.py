"""Addresses of several routers in one line, and what the names among them mean."""

import asyncio
import socket
from typing import Any

import pytest

from headrace.core.errors import StartupError
from headrace.rpc.addresses import Place, located, places

MEANS = {
    "routers": ["10.0.0.1", "10.0.0.2"],
    "both": ["::1", "127.0.0.1"],
    "newer": ["fe80::1"],
    "127.0.0.1": ["127.0.0.1"],
    "::1": ["::1"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service that knows MEANS."""

    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        if host not in MEANS:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kinds = [(socket.AF_INET6 if ":" in each else socket.AF_INET, each) for each in MEANS[host]]
        return [(family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in kinds]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def test_a_name_means_all_its_addresses() -> None:
    assert await located(places("routers:9000")) == ("10.0.0.1:9000", "10.0.0.2:9000")


async def test_a_host_with_addresses_of_both_kinds_is_one() -> None:
    assert await located(places("both:9000")) == ("127.0.0.1:9000",)
    assert await located(places("newer:9000")) == ("[fe80::1]:9000",)


async def test_order_stays_and_nothing_comes_twice() -> None:
    line = "127.0.0.1:2, routers:9000,127.0.0.1:1,127.0.0.1:2,[::1]:9000"
    assert await located(places(line)) == (
        "127.0.0.1:2",
        "10.0.0.1:9000",
        "10.0.0.2:9000",
        "127.0.0.1:1",
        "[::1]:9000",
    )


async def test_what_does_not_resolve_is_left_out() -> None:
    assert await located(places("nobody:9000,routers:9000")) == ("10.0.0.1:9000", "10.0.0.2:9000")
    assert await located(places("nobody:9000")) == ()


async def test_a_name_service_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*arguments: Any, **more: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("headrace.rpc.addresses._RESOLVE_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    assert await located(places("routers:9000")) == ()


def test_only_names_can_mean_another_host() -> None:
    assert [place.fixed for place in places("127.0.0.1:1,[::1]:1,routers:1,localhost:1")] == [True, True, False, False]
    assert places("[::1]:9000") == (Place("::1", 9000),)


@pytest.mark.parametrize("line", ["", "routers", "routers:", ":9000", "routers:70000", "routers:0", "a:1,", "a:1,,b:2"])
def test_what_is_no_address_is_one_sentence(line: str) -> None:
    with pytest.raises(StartupError, match="is not host:port"):
        places(line)


def test_an_ipv6_address_needs_brackets() -> None:
    with pytest.raises(StartupError, match=r"'::1:9000' is no address: .* not in brackets"):
        places("::1:9000")
