"""HolderTable: who holds which block, arranged for one question: how far into a prompt does each worker reach?

A pure data structure; it knows neither sequences nor where its content comes from.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.core.blocks import HASH_BYTES
from headrace.core.fleet import WorkerRef


def digest_of(hashes: Iterable[bytes]) -> int:
    """XOR of hashes as 128-bit big-endian numbers: the same in any order, and cheap to carry forward."""
    rows = np.frombuffer(b"".join(hashes), dtype=np.uint64).reshape(-1, HASH_BYTES // 8)
    return int.from_bytes(np.bitwise_xor.reduce(rows, axis=0).tobytes(), "big")


class HolderTable:
    """Each block carries a bit mask of its holders, so a match costs one look-up per block, however many workers."""

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._bits: dict[WorkerRef, int] = {}
        self._held: dict[WorkerRef, set[bytes]] = {}

    @property
    def refs(self) -> frozenset[WorkerRef]:
        """Everyone in the table, holders of nothing included."""
        return frozenset(self._held)

    def held(self, ref: WorkerRef) -> frozenset[bytes]:
        """What one ref holds."""
        return frozenset(self._held.get(ref, ()))

    def count(self, ref: WorkerRef) -> int:
        """How many blocks one ref holds."""
        return len(self._held.get(ref, ()))

    def change(self, ref: WorkerRef, stored: Iterable[bytes], evicted: Iterable[bytes]) -> int:
        """Take `evicted` from a ref, then add `stored`. Returns the digest of all that really changed."""
        held = self._held.setdefault(ref, set())
        bit = self._bits.setdefault(ref, self._free_bit())
        lost = held.intersection(evicted)
        held -= lost
        self._clear(bit, lost)
        gained = set(stored) - held
        held |= gained
        for block in gained:
            self._masks[block] = self._masks.get(block, 0) | bit
        return digest_of(lost) ^ digest_of(gained)

    def remove(self, ref: WorkerRef) -> None:
        """Forget a ref."""
        if ref in self._held:
            self._clear(self._bits.pop(ref), self._held.pop(ref))

    def match(self, hashes: Sequence[bytes]) -> dict[WorkerRef, int]:
        """How many leading blocks each ref holds; refs that hold none are left out."""
        mask_of = self._masks.get
        alive = mask_of(hashes[0], 0) if hashes else 0
        ended: list[tuple[int, int]] = []
        for depth, block in enumerate(hashes):
            after = alive & mask_of(block, 0)
            if after != alive:
                ended.append((alive & ~after, depth))
                alive = after
                if not alive:
                    break
        ended.append((alive, len(hashes)))
        return {ref: depth for mask, depth in ended for ref, bit in self._bits.items() if mask & bit}

    def _free_bit(self) -> int:
        used = 0
        for bit in self._bits.values():
            used |= bit
        return ~used & (used + 1)

    def _clear(self, bit: int, blocks: Iterable[bytes]) -> None:
        for block in blocks:
            rest = self._masks[block] & ~bit
            if rest:
                self._masks[block] = rest
            else:
                del self._masks[block]
