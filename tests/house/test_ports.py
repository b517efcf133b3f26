"""Ports that tests hand to servers: nobody else is given them before the server takes them."""

import socket

import pytest
from fixtures import ports


def test_ports_are_different_free_and_never_given_out_by_the_system() -> None:
    low, high = map(int, ports.GIVEN_OUT.read_text().split())
    drawn = ports.free_ports(50)
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & set(range(low, high + 1))
    for port in drawn:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_in_use_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = ports.free_ports(1)
    monkeypatch.setattr(ports, "LOWEST", port)
    monkeypatch.setattr(ports, "HIGHEST", port)
    assert ports.free_ports(1) == [port]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(AssertionError, match="fewer than 1"):
        ports.free_ports(1)
