"""The tcp link and peers that are never silent: whoever waits on it is called again when its time is up."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.transfer.data_address import DataAddress
from headrace.transfer.link import FrameId
from headrace.transfer.tcp import TcpLink
from headrace.transfer.tcp_head import Head, Verb, pack_head

WAIT_S = 0.2
# After which the caller is woken in another way, so that the test ends.
RESCUE_S = 10.0
SOON_S = 5.0
HEADS = 2000


@pytest.fixture
def link() -> Iterator[TcpLink]:
    opened = TcpLink("127.0.0.1")
    yield opened
    opened.close()


def _say(to: socket.socket, heads: bytes) -> None:
    """Again and again, until the connection ends."""
    try:
        while True:
            to.sendall(heads)
    except OSError:
        return


@pytest.mark.parametrize("verb", [Verb.OFFER, Verb.RETRACTED], ids=["calls", "retractions"])
def test_a_peer_that_never_stops_talking_puts_no_deadline_off(link: TcpLink, verb: Verb) -> None:
    called = DataAddress.parse(link.address)
    hello = Head(Verb.HELLO, FrameId(b"n" * 16, 0), int.from_bytes(called.nonce, "big"))
    talk = pack_head(Head(verb, FrameId(b"x" * 16, 1))) * HEADS
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    rescue = threading.Timer(RESCUE_S, os.eventfd_write, (wake, 1))
    with socket.create_connection((called.host, called.port)) as peer:
        peer.sendall(pack_head(hello))
        talking = threading.Thread(target=_say, args=(peer, talk))
        talking.start()
        rescue.start()
        try:
            began = time.monotonic()
            link.progress(WAIT_S, wake)
            took = time.monotonic() - began
        finally:
            rescue.cancel()
            peer.shutdown(socket.SHUT_RDWR)
            talking.join()
            rescue.join()
            os.close(wake)
    assert took < SOON_S, f"who waits {WAIT_S} s came back after {took:.1f} s"
