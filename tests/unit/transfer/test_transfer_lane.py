"""A lane over a channel whose every chunk the test lets through: order, whole frames, and the fence."""

import queue
import threading
from collections.abc import Callable

import numpy as np
import pytest

from headrace.transfer.link import FrameId
from headrace.transfer.nccl_lane import STAGES, Bytes, Direction, Lane

CHUNK = 4
WITHIN_S = 5.0
ONE, TWO = (FrameId(b"lane-unit-test-1", unit) for unit in (1, 2))


class ScriptedChannel:
    """Chunks arrive, or leave, when the test says so. wire: what left. started: sizes begun, for the test to await."""

    def __init__(self) -> None:
        self.stages: tuple[Bytes, ...] = tuple(np.zeros(CHUNK, np.uint8) for _ in range(STAGES))
        self.wire: list[bytes] = []
        self.started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.arriving: queue.SimpleQueue[bytes | RuntimeError] = queue.SimpleQueue()
        self.closed = threading.Event()

    def start(self, stage: int, nbytes: int) -> Callable[[], None]:
        self.wire.append(self.stages[stage][:nbytes].tobytes())
        self.started.put(nbytes)

        def wait() -> None:
            found = self.arriving.get(timeout=WITHIN_S)
            if isinstance(found, RuntimeError):
                raise found
            self.stages[stage][: len(found)] = np.frombuffer(found, np.uint8)

        return wait

    def close(self) -> None:
        self.closed.set()


class Opened:
    """A lane, its channel and what it reported. queued: frames that wait when the channel opens."""

    def __init__(self, direction: Direction, *queued: tuple[FrameId, bytes]) -> None:
        all_wait = threading.Event()
        self.channel = ScriptedChannel()
        self.reports: queue.SimpleQueue[tuple[FrameId | None, str]] = queue.SimpleQueue()

        def open_channel() -> ScriptedChannel:
            assert all_wait.wait(WITHIN_S)
            return self.channel

        self.lane = Lane(open_channel, direction, lambda frame, reason: self.reports.put((frame, reason)))
        for frame, payload in queued:
            self.lane.carry(frame, memoryview(bytearray(payload)))
        all_wait.set()

    def report(self) -> tuple[FrameId | None, str]:
        return self.reports.get(timeout=WITHIN_S)

    def end(self) -> None:
        self.lane.drop()
        self.lane.drop()
        self.lane.join(WITHIN_S)
        assert not self.lane.alive
        assert self.channel.closed.is_set()


def test_frames_leave_whole_and_in_order() -> None:
    opened = Opened(Direction.OUT)
    for _ in range(4):
        opened.channel.arriving.put(b"")
    opened.lane.carry(ONE, memoryview(b"0123456789"))
    opened.lane.carry(TWO, memoryview(b"ab"))
    assert [opened.report(), opened.report()] == [(ONE, ""), (TWO, "")]
    assert opened.channel.wire == [b"0123", b"4567", b"89", b"ab"]
    opened.end()


def test_frames_arrive_in_their_buffers() -> None:
    opened = Opened(Direction.IN)
    buffers = [bytearray(10), bytearray(2)]
    for chunk in (b"0123", b"4567", b"89", b"ab"):
        opened.channel.arriving.put(chunk)
    for frame, buffer in zip((ONE, TWO), buffers, strict=True):
        opened.lane.carry(frame, memoryview(buffer))
    assert [opened.report(), opened.report()] == [(ONE, ""), (TWO, "")]
    assert buffers == [b"0123456789", b"ab"]
    opened.end()


@pytest.mark.parametrize("direction", list(Direction))
def test_a_frame_is_begun_while_the_one_before_is_on_its_way(direction: Direction) -> None:
    opened = Opened(direction, (ONE, b"abcd"), (TWO, b"ef"))
    # 1. Both are under way, in the order in which they were queued, and neither is whole.
    assert [opened.channel.started.get(timeout=WITHIN_S) for _ in range(2)] == [4, 2]
    assert opened.reports.empty()
    # 2. Each is reported as soon as it is whole: the second does not wait for a third.
    for frame, chunk in ((ONE, b"0123"), (TWO, b"45")):
        opened.channel.arriving.put(chunk)
        assert opened.report() == (frame, "")
    opened.end()


def test_a_dropped_lane_touches_no_buffer_though_its_peer_goes_on() -> None:
    opened = Opened(Direction.IN)
    buffer = bytearray(12)
    opened.lane.carry(ONE, memoryview(buffer))
    # 1. The first chunk has landed, the second and third are asked for.
    opened.channel.arriving.put(b"0123")
    assert [opened.channel.started.get(timeout=WITHIN_S) for _ in range(3)] == [CHUNK] * 3
    assert buffer == b"0123" + bytes(8)
    # 2. Dropped, then the rest arrives: it stays in the channel's own memory, and nobody is told of a frame.
    opened.lane.drop()
    opened.channel.arriving.put(b"4567")
    opened.end()
    assert buffer == b"0123" + bytes(8)
    assert opened.reports.empty()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_broken_channel_is_reported_once_and_only_to_those_who_care(dropped: bool) -> None:
    opened = Opened(Direction.OUT)
    opened.lane.carry(ONE, memoryview(b"0123"))
    opened.channel.started.get(timeout=WITHIN_S)
    if dropped:
        opened.lane.drop()
    opened.channel.arriving.put(RuntimeError("gone"))
    if not dropped:
        assert opened.report() == (None, "its process group broke")
    opened.end()
    assert opened.reports.empty()


def test_a_channel_that_cannot_open_is_reported() -> None:
    def refuse() -> ScriptedChannel:
        raise RuntimeError("nobody there")

    reports: queue.SimpleQueue[tuple[FrameId | None, str]] = queue.SimpleQueue()
    lane = Lane(refuse, Direction.IN, lambda frame, reason: reports.put((frame, reason)))
    assert reports.get(timeout=WITHIN_S) == (None, "its process group broke")
    lane.join(WITHIN_S)
    assert not lane.alive
