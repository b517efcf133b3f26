"""Wire blocks: KV blocks as they travel between workers whose pages have different sizes.

Owns which size that is, how wire blocks are numbered in pages, and the cut. Both ends count in wire blocks, the largest
that make up whole pages of either, so neither needs to know how the other lays out its own.
"""

from collections.abc import Sequence
from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from headrace.core.layout import KvLayout
from headrace.core.pages import PagePort
from headrace.core.ticket import UNIT_BLOCKS

_Bytes = npt.NDArray[np.uint8]


def wire_tokens(here: int, peer: int) -> int:
    """Tokens of a wire block between pages of so many tokens."""
    return gcd(here, peer)


def unit_blocks(here: int, peer: int) -> int:
    """Wire blocks of a unit: UNIT_BLOCKS pages of the smaller size, which fit a slab at both ends, and of these as many
    as make up whole pages of both, so that no page is read or written twice. If none do: all."""
    room, whole = UNIT_BLOCKS * min(here, peer), lcm(here, peer)
    return (room // whole * whole or room) // gcd(here, peer)


def wire_blocks(pages: tuple[int, ...], ratio: int) -> tuple[int, ...]:
    """The ids of the wire blocks in these pages, `ratio` a page."""
    if ratio == 1:
        return pages
    return tuple(page * ratio + place for page in pages for place in range(ratio))


def wire_pages(pages: PagePort, tokens: int) -> PagePort:
    """`pages` as wire blocks of so many tokens; themselves if that is their size."""
    return pages if tokens == pages.layout.block_tokens else _WirePages(pages, tokens)


class _WirePages:
    """See PagePort; a block is a wire block of larger pages.

    What of a page is not asked for is read along and ignored: the engine may be writing it. A page that is written in
    part keeps the rest, of which nobody else writes anything.
    """

    def __init__(self, pages: PagePort, tokens: int) -> None:
        whole = pages.layout
        assert whole.block_tokens % tokens == 0, "check_ticket refuses it"
        assert not whole.scale_bytes, "check_ticket refuses it"
        self._pages = pages
        self._ratio = whole.block_tokens // tokens
        self._layout = KvLayout(whole.layers, whole.kv_heads, whole.head_dim, tokens, whole.dtype)

    @property
    def layout(self) -> KvLayout:
        return self._layout

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        ids = self._page_ids(blocks)
        buffer = self._buffer(ids)
        self._pages.read(ids, buffer.data)
        for mine, whole in self._places(blocks, ids, into, buffer):
            mine[:] = whole

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        ids = self._page_ids(blocks)
        buffer = self._buffer(ids)
        if len(blocks) < len(ids) * self._ratio:
            self._pages.read(ids, buffer.data)
        for mine, whole in self._places(blocks, ids, data, buffer):
            whole[:] = mine
        self._pages.write(ids, buffer.data)

    def _page_ids(self, blocks: Sequence[int]) -> list[int]:
        """The pages that the blocks are in, each once."""
        return list(dict.fromkeys(block // self._ratio for block in blocks))

    def _buffer(self, ids: list[int]) -> _Bytes:
        return np.empty(len(ids) * self._pages.layout.block_bytes, dtype=np.uint8)

    def _places(
        self, blocks: Sequence[int], ids: list[int], wire: memoryview, pages: _Bytes
    ) -> list[tuple[_Bytes, _Bytes]]:
        """Each block in the buffer of wire blocks and in that of pages: [layer, kv head and K or V, bytes]."""
        layers, runs = self._layout.layers, self._layout.kv_heads * 2
        mine = np.frombuffer(wire, dtype=np.uint8).reshape(layers, len(blocks), runs, -1)
        whole = pages.reshape(layers, len(ids), runs, self._ratio, -1)
        index = {page: at for at, page in enumerate(ids)}
        return [
            (mine[:, at], whole[:, index[block // self._ratio], :, block % self._ratio])
            for at, block in enumerate(blocks)
        ]
