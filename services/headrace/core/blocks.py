"""Block hashes: the names of KV blocks that are equal in every process of a fleet (decision 8).

A block is `BLOCK_TOKENS` tokens. Its hash chains over its parent's, so one hash names the whole prefix. The
root names model, adapter and tenant, so equal tokens under another model or tenant never match.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from headrace.core.fleet import WorkerRef

BLOCK_TOKENS = 16
HASH_BYTES = 16


def root_hash(model_digest: bytes, adapter_digest: bytes = b"", tenant_salt: bytes = b"") -> bytes:
    """The parent of every first block. The parts are length-prefixed, so no two triples collide by shape."""
    state = xxhash.xxh3_128()
    for part in (model_digest, adapter_digest, tenant_salt):
        state.update(len(part).to_bytes(4, "little"))
        state.update(part)
    return state.digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of one full block: xxh3_128(parent ‖ tokens as little-endian int32)."""
    return xxhash.xxh3_128(parent + np.asarray(tokens, dtype="<i4").tobytes()).digest()


def chain(parent: bytes, tokens: Sequence[int]) -> tuple[bytes, ...]:
    """Hashes of the full blocks of `tokens`, each the parent of the next; a partial tail has none."""
    packed = np.asarray(tokens, dtype="<i4").tobytes()
    step = BLOCK_TOKENS * 4
    hashes: list[bytes] = []
    for start in range(0, len(packed) - step + 1, step):
        parent = xxhash.xxh3_128(parent + packed[start : start + step]).digest()
        hashes.append(parent)
    return tuple(hashes)


def context_of(tokens: Sequence[int]) -> bytes:
    """16 bytes that name a run of tokens, for both ends of a transfer to compare."""
    return xxhash.xxh3_128(np.asarray(tokens, dtype="<i4").tobytes()).digest()


def blocks_for(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """How many blocks `tokens` tokens occupy, a partly filled one counted whole."""
    return -(-tokens // block_tokens)


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """What one worker incarnation changed in its prefix cache, in the order of `sequence` (from 1, no gaps).

    `reset` replaces everything the index knows of the incarnation with `stored`. A hash in both lists was
    evicted first and stored again: apply `evicted` before `stored`.
    """

    worker: WorkerRef
    sequence: int
    stored: tuple[bytes, ...] = ()
    evicted: tuple[bytes, ...] = ()
    reset: bool = False
