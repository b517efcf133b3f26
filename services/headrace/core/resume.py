"""Resume points: the opaque bytes in each chunk from which a broken stream goes on, exactly.

Encoding: version byte, signed 64-bit seed, 8 bytes of prompt digest, then the generated ids as LEB128.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from headrace.core.errors import InvalidRequest

_HEAD = struct.Struct("<Bq8s")
_VERSION = 1


def prompt_digest(tokens: Sequence[int]) -> bytes:
    """Eight bytes that tell whether a resume point belongs to a prompt."""
    return xxhash.xxh3_64(np.asarray(tokens, dtype="<i4").tobytes()).digest()


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """State after `count` generated tokens.

    `tokens` may be the stream's own append-only list: `count` fixes the prefix that is meant, and nothing is
    copied unless the point is encoded, which only callers across gRPC pay for.
    """

    seed: int
    prompt: bytes
    tokens: Sequence[int]
    count: int

    def encode(self) -> bytes:
        out = bytearray(_HEAD.pack(_VERSION, self.seed, self.prompt))
        for token in self.tokens[: self.count]:
            while token >= 0x80:
                out.append((token & 0x7F) | 0x80)
                token >>= 7
            out.append(token)
        return bytes(out)

    @staticmethod
    def decode(data: bytes) -> "ResumePoint":
        """Raises InvalidRequest if `data` is not a resume point of this version."""
        if len(data) < _HEAD.size or data[0] != _VERSION or (len(data) > _HEAD.size and data[-1] & 0x80):
            raise InvalidRequest(
                "resume is not a resume point of this server.", remedy="Send the bytes of a chunk unchanged."
            )
        _, seed, prompt = _HEAD.unpack_from(data)
        tokens = _read_varints(data[_HEAD.size :])
        return ResumePoint(seed, prompt, tokens, len(tokens))


def _read_varints(data: bytes) -> tuple[int, ...]:
    tokens: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            tokens.append(value)
            value = shift = 0
        if shift > 28:
            raise InvalidRequest("resume holds a token id of more than 32 bits.")
    return tuple(tokens)
