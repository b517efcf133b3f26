"""The prefix cache: full blocks under their chained hash, for reuse by any sequence that starts alike.

Owns the pool of blocks and the names of those that are written. It knows no sequence, schedule or tensor.
A hit compares root, chain and the tokens themselves (decision 8), so a hash collision costs a miss, never an answer.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.errors import InternalError
from headrace.engine.pool import BlockPool


@dataclass(slots=True, eq=False)
class Entry:
    """One named block. parent is None for the first of a chain, which stands under `root`."""

    hash: bytes
    root: bytes
    parent: "Entry | None"
    tokens: tuple[int, ...]
    block: int
    children: "set[Entry]" = field(default_factory=set)
    live: bool = True


class PrefixCache:
    """Blocks to hold, find and name. A free block stays findable until it is taken for something else."""

    def __init__(self, num_blocks: int, *, enabled: bool = True) -> None:
        self.pool = BlockPool(num_blocks)
        self._enabled = enabled
        self._by_hash: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._stored: dict[bytes, None] = {}
        self._evicted: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def match(self, root: bytes, hashes: list[bytes], tokens: list[int]) -> list[Entry]:
        """The longest chain of named blocks that starts `tokens` and leaves at least one of them over."""
        found: list[Entry] = []
        parent: Entry | None = None
        for index in range(min(len(hashes), (len(tokens) - 1) // BLOCK_TOKENS)):
            entry = self._by_hash.get(hashes[index])
            if entry is None or not _same(entry, root, parent, _block_tokens(tokens, index)):
                break
            found.append(entry)
            parent = entry
        return found

    def reserve(self, total: int, found: list[Entry], headroom: int = 0) -> list[int] | None:
        """Hold `found` and as many fresh blocks as make `total`, or None and nothing changed.

        headroom: free blocks that must remain.
        """
        fresh = total - len(found)
        idle = sum(self.pool.references(entry.block) == 0 for entry in found)
        if self.pool.free - idle < fresh + headroom:
            return None
        for entry in found:
            self.pool.retain(entry.block)
        return [entry.block for entry in found] + [self._take() for _ in range(fresh)]

    def release(self, blocks: list[int]) -> None:
        """Give blocks back, the last first, so that tails are used up before heads."""
        for block in reversed(blocks):
            self.pool.release(block, keep=block in self._by_block)

    def publish(
        self, root: bytes, hashes: list[bytes], tokens: list[int], blocks: list[int], path: list[Entry]
    ) -> None:
        """Name the written blocks blocks[: len(hashes)]. path: the sequence's entries so far, extended in place.

        A block whose name is taken by equal contents stays unnamed and its entry joins the path; one whose name is
        taken by other contents ends the path.
        """
        if not self._enabled:
            return
        if path and not path[-1].live:  # an entry dies with its ancestors, so the last one speaks for all
            path.clear()
        for index in range(len(path), len(hashes)):
            entry = self._name(
                root, path[-1] if path else None, hashes[index], _block_tokens(tokens, index), blocks[index]
            )
            if entry is None:
                return
            path.append(entry)

    def forget(self, blocks: Iterable[int]) -> None:
        """Unname blocks, and all that continue them: their contents must not be found any more."""
        for block in blocks:
            entry = self._by_block.get(block)
            if entry is not None:
                self._drop(entry)

    def drain(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Hashes stored and evicted since the last call; what came and went in between is in neither."""
        news = tuple(self._stored), tuple(self._evicted)
        self._stored.clear()
        self._evicted.clear()
        return news

    def check(self, holders: Counter[int]) -> None:
        """Raises InternalError unless pool, names and chains agree with `holders`."""
        self.pool.check(holders)
        if len(self._by_block) != len(self._by_hash):
            raise InternalError("A block has two names or a name two blocks.")
        for block, entry in self._by_block.items():
            chained = entry.parent is None or (entry.parent.live and entry in entry.parent.children)
            if entry.block != block or not entry.live or self._by_hash.get(entry.hash) is not entry or not chained:
                raise InternalError(f"The prefix cache's entry of block {block} is broken.")

    def _take(self) -> int:
        block = self.pool.take()
        self.forget((block,))
        return block

    def _name(
        self, root: bytes, parent: Entry | None, name: bytes, tokens: tuple[int, ...], block: int
    ) -> Entry | None:
        entry = self._by_hash.get(name)
        if entry is not None:
            return entry if _same(entry, root, parent, tokens) else None
        entry = Entry(name, root, parent, tokens, block)
        self._by_hash[name] = self._by_block[block] = entry
        if parent is not None:
            parent.children.add(entry)
        _cancel_out(name, self._evicted, self._stored)
        return entry

    def _drop(self, entry: Entry) -> None:
        chain = [entry]
        for member in chain:  # grows while it is walked: parents stand before their children
            chain.extend(member.children)
        if entry.parent is not None:
            entry.parent.children.discard(entry)
        for member in reversed(chain):
            member.live = False
            member.children.clear()
            del self._by_hash[member.hash], self._by_block[member.block]
            self.pool.demote(member.block)
            _cancel_out(member.hash, self._stored, self._evicted)


def _block_tokens(tokens: list[int], index: int) -> tuple[int, ...]:
    return tuple(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])


def _same(entry: Entry, root: bytes, parent: Entry | None, tokens: tuple[int, ...]) -> bool:
    return entry.parent is parent and entry.root == root and entry.tokens == tokens


def _cancel_out(name: bytes, undone: dict[bytes, None], done: dict[bytes, None]) -> None:
    if name in undone:
        del undone[name]
    else:
        done[name] = None
