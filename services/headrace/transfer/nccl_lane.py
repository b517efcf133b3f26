"""Lane: the thread that moves one peer's frames through its channel, whole and in order, in chunks.

Owns the waiting and the fence. It knows neither torch nor sockets, and of a frame only its name and bytes.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import cycle
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from headrace.transfer.link import FrameId

_log = structlog.get_logger()
STAGES = 2
Bytes = NDArray[np.uint8]


class Direction(Enum):
    OUT = "out"
    IN = "in"


class Channel(Protocol):
    """Moves chunks one way between two processes, in order. Used on one thread. After a failure it is of no use."""

    @property
    def stages(self) -> tuple[Bytes, ...]:
        """STAGES equal arrays of the channel's own; the size of one is the largest chunk."""
        ...

    def start(self, stage: int, nbytes: int) -> Callable[[], None]:
        """Begin to move the first bytes of a stage out, or into it. At most STAGES are under way.

        What is returned waits until that is done. It raises RuntimeError if it fails or takes too long; with a peer
        that is dead or frozen that may be as late as the limit of a wait, some seconds."""
        ...

    def close(self) -> None:
        """Let go of the peer, whatever is under way. Nothing may be called afterwards."""
        ...


class _Dropped(Exception):
    """The lane was dropped while a frame was under way."""


class Lane:
    """Opens its channel on its own thread, then carries frames as they are queued.

    report: called on that thread with a frame that is whole, or None and the reason why no more will be.

    Peers see only the channel's stages. A frame's buffer is touched by this process alone and under a lock, so after
    `drop` returns no byte of any buffer is read or written, and nothing is reported: that is the fence.
    """

    def __init__(
        self,
        open_channel: Callable[[], Channel],
        direction: Direction,
        report: Callable[[FrameId | None, str], None],
    ) -> None:
        self._open_channel = open_channel
        self._direction = direction
        self._report = report
        self._jobs: queue.SimpleQueue[tuple[FrameId, memoryview] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._dropped = False
        self._thread = threading.Thread(target=self._run, name="transfer-lane", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def carry(self, frame: FrameId, buffer: memoryview) -> None:
        self._jobs.put((frame, buffer))

    def drop(self) -> None:
        """Give up what is queued and under way. Returns at once. It may be called again."""
        with self._lock:
            self._dropped = True
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread of a dropped lane. What it still waits for may keep it until the limit of that wait."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with closing(self._open_channel()) as channel:
                self._serve(channel)
        except _Dropped:
            return
        except Exception as error:
            self._fail(error)

    def _serve(self, channel: Channel) -> None:
        """One chunk is copied while the next is on its way, whether of the same frame or of the one behind it."""
        under_way: deque[_Chunk] = deque()
        stages = cycle(range(STAGES))
        while (job := self._next_job(under_way)) is not None:
            for part, whole in _parts(*job, len(channel.stages[0])):
                under_way.append(self._begin(channel, next(stages), part, whole))
                if len(under_way) == STAGES:
                    self._land(under_way.popleft())

    def _next_job(self, under_way: deque["_Chunk"]) -> tuple[FrameId, memoryview] | None:
        """The next frame to carry, or None when the lane was dropped. While none is queued, what is under way lands."""
        while under_way and self._jobs.empty():
            self._land(under_way.popleft())
        return self._jobs.get()

    def _begin(self, channel: Channel, stage: int, part: Bytes, whole: FrameId | None) -> "_Chunk":
        staged = channel.stages[stage][: len(part)]
        if self._direction is Direction.OUT:
            self._touch(partial(np.copyto, staged, part))
        return _Chunk(channel.start(stage, len(part)), staged, part, whole)

    def _land(self, chunk: "_Chunk") -> None:
        chunk.wait()
        if self._direction is Direction.IN:
            self._touch(partial(np.copyto, chunk.part, chunk.staged))
        if chunk.whole is not None:
            self._touch(partial(self._report, chunk.whole, ""))

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if not self._dropped:
                reason = " ".join(str(error).split())
                _log.warning("group.broke", direction=self._direction.value, error=reason)
                self._report(None, "its process group broke")

    def _touch(self, act: Callable[[], None]) -> None:
        """Act while nobody can drop the lane. Raises _Dropped."""
        with self._lock:
            if self._dropped:
                raise _Dropped
            act()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a frame on its way. whole: the frame, if this is its last part."""

    wait: Callable[[], None]
    staged: Bytes
    part: Bytes
    whole: FrameId | None


def _parts(frame: FrameId, buffer: memoryview, size: int) -> Iterator[tuple[Bytes, FrameId | None]]:
    """A frame's bytes by chunks of at most `size`, and with the last one its name."""
    data = np.frombuffer(buffer, np.uint8)
    for begin in range(0, len(data), size):
        yield data[begin : begin + size], frame if begin + size >= len(data) else None
