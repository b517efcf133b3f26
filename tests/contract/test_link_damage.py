"""TcpLink beside a peer, played by a bare socket, whose words were damaged on their way or are not its protocol's."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from link_drive import OpenLinks, buffer, carry, drive, frame, settled

from headrace.transfer.data_address import DataAddress
from headrace.transfer.link import FrameId, Link, ReceiptState
from headrace.transfer.tcp_head import HEAD_BYTES, Head, Verb, pack_head

NAME = FrameId(b"connection-name.", 0)


@pytest.fixture
def links() -> Iterator[OpenLinks]:
    opened = OpenLinks("tcp")
    yield opened
    opened.close_all()


def _damaged(head: bytes, at: int) -> bytes:
    return head[:at] + bytes([head[at] ^ 0x10]) + head[at + 1 :]


def _hello(link: Link) -> bytes:
    nonce = int.from_bytes(DataAddress.parse(link.address).nonce, "big")
    return pack_head(Head(Verb.HELLO, NAME, nonce))


def _hangs_up(wake: int, link: Link, words: bytes) -> None:
    """The link ends a connection on which these words were said, and lets others in."""
    place = DataAddress.parse(link.address)
    with socket.create_connection((place.host, place.port)) as caller:
        caller.setblocking(False)
        caller.sendall(words)
        drive(wake, lambda: _ended(caller), link)


def _ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("words", ["damaged hello", "another's hello", "no hello", "no words", "damaged offer", "data"])
def test_a_caller_who_breaks_the_protocol_is_sent_away(links: OpenLinks, wake: int, words: str) -> None:
    link, other = links.open(), links.open()
    received = link.post(frame(0), buffer(1000))
    offer = pack_head(Head(Verb.OFFER, frame(0), 1000))
    said = {
        "damaged hello": _damaged(_hello(link), 5),
        "another's hello": _hello(other),
        "no hello": offer,
        "no words": b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n",
        "damaged offer": _hello(link) + _damaged(offer, 20),
        "data": _hello(link) + pack_head(Head(Verb.DATA, frame(0), 1000)),
    }
    _hangs_up(wake, link, said[words])
    # The frame is still awaited, from those who speak well.
    assert received.pending
    carry(wake, other, link, frame(1))


def test_a_damaged_answer_fails_the_sends_at_once(links: OpenLinks, wake: int) -> None:
    link = links.open()
    with socket.create_server(("127.0.0.1", 0)) as peer:
        peer.settimeout(10.0)
        sent = link.send(str(DataAddress.at("127.0.0.1", peer.getsockname()[1])), frame(0), buffer(1000))
        link.progress(0.0, wake)
        connection, _ = peer.accept()
        with connection:
            connection.setblocking(False)
            heard = bytearray()
            drive(wake, lambda: _heard(connection, heard) >= 2 * HEAD_BYTES, link)
            connection.sendall(_damaged(pack_head(Head(Verb.PULL, frame(0))), 7))
            drive(wake, settled(sent), link)
    assert sent.state is ReceiptState.FAILED
    assert "damaged" in sent.reason


def _heard(connection: socket.socket, heard: bytearray) -> int:
    with contextlib.suppress(BlockingIOError):
        heard += connection.recv(4096)
    return len(heard)
