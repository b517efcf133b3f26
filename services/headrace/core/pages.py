"""PagePort: the border between the engine, which owns KV pages, and a transfer, which moves their bytes."""

from collections.abc import Sequence
from typing import Protocol

from headrace.core.layout import KvLayout


class PagePort(Protocol):
    """Raw access to whole KV blocks by id, called on the transfer thread.

    The caller must hold the blocks: a prefill job's computed blocks for `read`, a decode job's reserved and
    not yet resident blocks for `write`. The engine frees neither before the transfer is reported closed, so
    no lock is needed: nobody writes what is read and nobody else touches what is written.
    Bytes are `[layer][block][kv head][K,V][token][dim]` in the layout's dtype, little-endian, contiguous.
    """

    @property
    def layout(self) -> KvLayout: ...

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        """Fill `into` (len(blocks) x layout.block_bytes bytes) with the blocks' contents."""
        ...

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        """Set the blocks' contents from `data` (len(blocks) x layout.block_bytes bytes)."""
        ...
