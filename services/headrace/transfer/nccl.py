"""NcclLink: frames through torch.distributed process groups: NCCL between GPUs, gloo where there is none.

Frames are offered, pulled and acknowledged over TCP as `tcp` does it; only payloads travel in the group, in the order
in which they are announced there. Owns what connects the two; it knows no torch. See docs/decisions/0008.
"""

import contextlib
import dataclasses
import os
import queue
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial

from headrace.transfer.data_address import DataAddress
from headrace.transfer.link import FrameId
from headrace.transfer.nccl_group import Meeting
from headrace.transfer.nccl_lane import Channel, Direction, Lane
from headrace.transfer.tcp import TcpLink
from headrace.transfer.tcp_connection import Accepted, Connection, Dialed, Posted
from headrace.transfer.tcp_head import Head, ProtocolBreach, Verb

_JOIN_S = 0.5
# Opens the lane of the group that has this name, for the connection given.
OpenLane = Callable[[Connection, str], Lane]


class Sending(Dialed):
    """To a peer: TcpLink's protocol without the payloads. The connection's name is that of the pair's group."""

    def __init__(self, sock: socket.socket, nonce: bytes, open_lane: OpenLane) -> None:
        super().__init__(sock, nonce)
        self._open_lane = open_lane
        self.lane: Lane | None = None

    def say(self, verb: Verb, frame: FrameId, nbytes: int = 0, payload: memoryview | None = None) -> None:
        super().say(verb, frame, nbytes)
        if payload is not None:
            self.lane = self.lane or self._open_lane(self, self.name.hex())
            self.lane.carry(frame, payload)

    def payload_complete(self, frame: FrameId) -> None:
        """It left; the peer will say that it was taken."""

    def lost(self, reason: str) -> None:
        _drop(self.lane)
        super().lost(reason)


class Receiving(Accepted):
    """From a peer. The announcement of a payload puts its buffer in the lane's queue."""

    def __init__(self, sock: socket.socket, posts: dict[FrameId, Posted], nonce: bytes, open_lane: OpenLane) -> None:
        super().__init__(sock, posts, nonce)
        self._on_its_way: set[FrameId] = set()
        self._open_lane = open_lane
        self.lane: Lane | None = None

    def heard(self, head: Head) -> None:
        if head.frame in self._on_its_way:
            raise ProtocolBreach("the peer spoke of a frame that is on its way")
        buffer = super().heard(head)
        if buffer is not None:
            self._on_its_way.add(head.frame)
            self.lane = self.lane or self._open_lane(self, self.name.hex())
            self.lane.carry(head.frame, buffer)

    def payload_complete(self, frame: FrameId) -> None:
        self._on_its_way.remove(frame)
        super().payload_complete(frame)

    def lost(self, reason: str) -> None:
        _drop(self.lane)
        super().lost(reason)


def _drop(lane: Lane | None) -> None:
    if lane is not None:
        lane.drop()


class NcclLink(TcpLink):
    """A TcpLink whose payloads go through one private group per connection, so per pair of incarnations and direction.

    A group that fails or stalls is discarded with its connection and all that was under way on it; the next send makes
    a new one. Peers only ever write to a group's own staging memory, so every receipt settles at once.
    """

    def __init__(self, host: str) -> None:
        self._meeting = Meeting(host)
        super().__init__(host)
        self._own = dataclasses.replace(self._own, meeting=self._meeting.port)
        self._lanes: list[Lane] = []
        self._moved: queue.SimpleQueue[tuple[Connection, FrameId | None, str]] = queue.SimpleQueue()
        self._moved_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._moved_fd, selectors.EVENT_READ)

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        self._hear_lanes()
        super().progress(timeout_s, wake_fd)
        self._hear_lanes()
        self._flush_all()
        self._settled_early = False

    def close(self) -> None:
        super().close()
        until = time.monotonic() + _JOIN_S
        for lane in self._lanes:
            lane.join(max(until - time.monotonic(), 0.0))
        os.close(self._moved_fd)

    def _connection_to(self, sock: socket.socket, called: DataAddress) -> Dialed:
        return Sending(sock, called.nonce, partial(self._send_lane, called))

    def _connection_from(self, sock: socket.socket) -> Accepted:
        return Receiving(sock, self._posts, self._own.nonce, self._receive_lane)

    def _send_lane(self, called: DataAddress, connection: Connection, name: str) -> Lane:
        return self._open(connection, partial(self._meeting.send, called.host, called.meeting, name), Direction.OUT)

    def _receive_lane(self, connection: Connection, name: str) -> Lane:
        return self._open(connection, partial(self._meeting.receive, name), Direction.IN)

    def _open(self, connection: Connection, channel: Callable[[], Channel], direction: Direction) -> Lane:
        def report(frame: FrameId | None, reason: str) -> None:
            self._moved.put((connection, frame, reason))
            os.eventfd_write(self._moved_fd, 1)

        lane = Lane(channel, direction, report)
        self._lanes = [*(known for known in self._lanes if known.alive), lane]
        return lane

    def _hear_lanes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._moved_fd)
        while not self._moved.empty():
            connection, frame, reason = self._moved.get_nowait()
            if connection not in {*self._dialed.values(), *self._accepted}:
                continue  # it said so before it was dropped
            if frame is None:
                self._drop(connection, reason)
            else:
                connection.payload_complete(frame)
                self._settled_early = True
