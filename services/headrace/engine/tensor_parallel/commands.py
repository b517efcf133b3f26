"""Commands to a replica's ranks: what rank 0 tells the others before each pass, as frames on a socket.

Owns the bytes. A frame is kind and length (two uint32), then its payload; integers are little-endian. The first one is
the start, a pickle: both ends are one program, and the socket is theirs alone.
"""

import pickle
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from headrace.core.blocks import blocks_for
from headrace.core.layout import KvLayout
from headrace.engine.runner import Span
from headrace.modelfiles.files import ModelFiles

# Exit code of a rank that the others left alone in an exchange: it is not the one that failed.
LEFT_ALONE = 3
_HEAD = struct.Struct("<II")


class Kind(IntEnum):
    """start: load a model. step: compute spans. logits: of rows that rank 0 sends through the group.

    From the ranks: ready, to the start; or failed, with a sentence.
    """

    START = 1
    STEP = 2
    LOGITS = 3
    READY = 4
    FAILED = 5


@dataclass(frozen=True, slots=True)
class Start:
    """What a rank needs to know. layout: of its share of the pages, which stand in the memory of descriptor `pages`.

    port: of the store on this machine at which the ranks meet. threads: of its tensor operations.
    """

    files: ModelFiles
    rank: int
    size: int
    port: int
    layout: KvLayout
    num_blocks: int
    pages: int
    max_model_len: int
    threads: int
    batch_invariant: bool

    def pack(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def unpack(payload: bytes) -> "Start":
        start = pickle.loads(payload)
        assert isinstance(start, Start)
        return start


def pack_step(spans: list[Span], block_tokens: int) -> bytes:
    """Spans without what rank 0 alone needs: int32 [spans], [start, count, blocks] of each, then tokens and blocks."""
    numbers = [len(spans)]
    needed = [blocks_for(span.start + span.count, block_tokens) for span in spans]
    for span, blocks in zip(spans, needed, strict=True):
        numbers += (span.start, span.count, blocks)
    for span, blocks in zip(spans, needed, strict=True):
        numbers += span.tokens[span.start : span.start + span.count]
        numbers += span.blocks[:blocks]
    return np.array(numbers, dtype="<i4").tobytes()


def unpack_step(payload: bytes) -> list[Span]:
    """The spans; tokens before their start are unknown, and stand as 0."""
    numbers = np.frombuffer(payload, dtype="<i4").tolist()
    at = 1 + 3 * numbers[0]
    spans: list[Span] = []
    for index in range(numbers[0]):
        start, count, blocks = numbers[1 + 3 * index : 4 + 3 * index]
        tokens, pages = numbers[at : at + count], numbers[at + count : at + count + blocks]
        spans.append(Span([0] * start + tokens, start, count, pages, None))
        at += count + blocks
    return spans


def send(connection: socket.socket, kind: Kind, payload: bytes = b"") -> None:
    """Raises OSError, a TimeoutError among them, if the other end does not take it."""
    connection.sendall(_HEAD.pack(kind, len(payload)) + payload)


def receive(connection: socket.socket) -> tuple[Kind, bytes]:
    """The next frame. Raises EOFError once the other end is gone, OSError if it is silent for too long."""
    kind, length = _HEAD.unpack(_exactly(connection, _HEAD.size))
    return Kind(kind), _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("The other end is gone.")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
