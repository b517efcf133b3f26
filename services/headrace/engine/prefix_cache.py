"""The prefix cache: written pages under the tokens they hold, for reuse by any sequence that starts alike.

Owns the pool of pages and a tree of those that can be found: a full page under the page before it, and a partly filled
one as a leaf. It knows no sequence, schedule or tensor. A page is found by root, chain and the tokens themselves
(decision 8); hashes only name what is reported to the fleet, so a wrong one can cost a hit, never an answer.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.errors import InternalError
from headrace.engine.pool import BlockPool

_NO_BLOCK = -1


@dataclass(slots=True, eq=False)
class Entry:
    """One page that can be found. parent: the page before it, or the root. children: ascending by their tokens.

    hashes: the names of its 16-token blocks, of a full page only. root: the name of a root, which has no page.
    """

    parent: "Entry | None"
    tokens: tuple[int, ...] = ()
    block: int = _NO_BLOCK
    hashes: tuple[bytes, ...] = ()
    root: bytes = b""
    children: "list[Entry]" = field(default_factory=list)
    live: bool = True


@dataclass(frozen=True, slots=True)
class Hit:
    """What of a sequence's tokens is here: `pages` to share, then the first `copied` tokens of page `source`.

    tokens: how many of the sequence's tokens that makes.
    """

    pages: tuple[Entry, ...] = ()
    source: Entry | None = None
    copied: int = 0
    tokens: int = 0


MISS = Hit()


class PrefixCache:
    """Pages to hold, find and name. A free page stays findable until it is taken for something else.

    page_tokens: a multiple of BLOCK_TOKENS, the granularity of names fleet-wide.
    """

    def __init__(self, num_blocks: int, *, page_tokens: int = BLOCK_TOKENS, enabled: bool = True) -> None:
        self.pool = BlockPool(num_blocks)
        self.page_tokens = page_tokens
        self.enabled = enabled
        self._roots: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._names: Counter[bytes] = Counter()
        self._stored: dict[bytes, None] = {}
        self._evicted: dict[bytes, None] = {}

    def __len__(self) -> int:
        """How many names of 16-token blocks are here."""
        return len(self._names)

    def match(self, root: bytes, tokens: list[int], *, partial: bool) -> Hit:
        """The longest start of `tokens` that is here and leaves at least one of them over.

        partial: also the first tokens of a page that goes on differently, which are had by copying it.
        """
        size, parent = self.page_tokens, self._roots.get(root)
        pages: list[Entry] = []
        while parent is not None and (len(pages) + 1) * size < len(tokens):
            page = _child(parent, tuple(tokens[len(pages) * size : (len(pages) + 1) * size]))
            if page is None:
                break
            pages.append(page)
            parent = page
        whole = len(pages) * size
        source, copied = None, 0
        if partial and parent is not None:
            source, copied = _closest(parent, tuple(tokens[whole : min(whole + size, len(tokens) - 1)]))
        return Hit(tuple(pages), source, copied, whole + copied)

    def reserve(self, total: int, hit: Hit = MISS, headroom: int = 0) -> list[int] | None:
        """Hold the hit's pages and as many fresh ones as make `total`, or None and nothing changed.

        headroom: free pages that must remain. The hit's source is not held: copy it before anything else is written.
        """
        fresh = total - len(hit.pages)
        idle = sum(self.pool.references(entry.block) == 0 for entry in hit.pages)
        if self.pool.free - idle < fresh + headroom:
            return None
        for entry in hit.pages:
            self.pool.retain(entry.block)
        if hit.source is not None:
            self.pool.touch(hit.source.block)
        return [entry.block for entry in hit.pages] + [self._take() for _ in range(fresh)]

    def release(self, blocks: list[int]) -> None:
        """Give pages back, the last first, so that tails are used up before heads."""
        for block in reversed(blocks):
            self.pool.release(block, keep=block in self._by_block)

    def publish(
        self, root: bytes, hashes: list[bytes], tokens: list[int], blocks: list[int], path: list[Entry]
    ) -> None:
        """Let the full pages that the leading `hashes` cover be found. path: the sequence's entries so far, extended
        in place.

        A page whose contents can be found already stays out of the tree, and the found one joins the path.
        """
        if not self.enabled:
            return
        if path and not path[-1].live:  # an entry dies with its ancestors, so the last one speaks for all
            path.clear()
        size, names = self.page_tokens, self.page_tokens // BLOCK_TOKENS
        for index in range(len(path), len(hashes) // names):
            parent = path[-1] if path else self._root(root)
            contents = tuple(tokens[index * size : (index + 1) * size])
            entry = _child(parent, contents)
            if entry is None:
                self.forget((blocks[index],))  # it could be found as partly filled until now
                entry = Entry(parent, contents, blocks[index], tuple(hashes[index * names : (index + 1) * names]))
                self._put(entry)
            path.append(entry)

    def publish_tail(self, root: bytes, tail: list[int], block: int, path: list[Entry]) -> None:
        """Let a partly filled page be found, after `path`, by its first len(tail) tokens.

        It stays out of the tree if another page holds them too.
        """
        if not self.enabled or not tail or (path and not path[-1].live):
            return
        parent = path[-1] if path else self._root(root)
        known = self._by_block.get(block)
        if known is not None and known.parent is parent and len(known.tokens) == len(tail):
            return
        self.forget((block,))
        contents = tuple(tail)
        _, covered = _closest(parent, contents)
        if covered < len(contents):
            self._put(Entry(parent, contents, block))

    def forget(self, blocks: Iterable[int]) -> None:
        """Take pages, and all that continue them, out of the tree: their contents must not be found any more."""
        for block in blocks:
            entry = self._by_block.get(block)
            if entry is not None:
                self._drop(entry)

    def drain(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Names stored and evicted since the last call; what came and went in between is in neither."""
        news = tuple(self._stored), tuple(self._evicted)
        self._stored.clear()
        self._evicted.clear()
        return news

    def check(self, holders: Counter[int]) -> None:
        """Raises InternalError unless pool, tree and names agree with `holders`."""
        self.pool.check(holders)
        names: Counter[bytes] = Counter()
        reached = list(self._roots.values())
        for entry in reached:  # grows while it is walked
            reached.extend(entry.children)
            names.update(entry.hashes)
            self._check_entry(entry)
        if len(reached) != len(self._by_block) + len(self._roots):
            raise InternalError("The prefix cache knows pages that its tree does not reach.")
        if names != self._names:
            raise InternalError("The prefix cache's names are not those of its pages.")

    def _check_entry(self, entry: Entry) -> None:
        page = entry.parent is not None
        full = len(entry.tokens) == self.page_tokens
        sound = (
            entry.live
            and (self._by_block.get(entry.block) is entry) == page
            and bool(entry.hashes) == full
            and (full or not page or (entry.tokens and not entry.children))
            and all(child.parent is entry for child in entry.children)
            and all(first.tokens <= second.tokens for first, second in pairwise(entry.children))
        )
        if not sound or (not page and not entry.children):
            raise InternalError(f"The prefix cache's entry of block {entry.block} is broken.")

    def _root(self, root: bytes) -> Entry:
        """It joins the tree with its first page."""
        return self._roots.get(root) or Entry(None, root=root)

    def _take(self) -> int:
        block = self.pool.take()
        self.forget((block,))
        return block

    def _put(self, entry: Entry) -> None:
        assert entry.parent is not None
        insort(entry.parent.children, entry, key=_tokens)
        if entry.parent.parent is None:
            self._roots[entry.parent.root] = entry.parent
        self._by_block[entry.block] = entry
        for name in entry.hashes:
            self._names[name] += 1
            if self._names[name] == 1:
                _cancel_out(name, self._evicted, self._stored)

    def _drop(self, entry: Entry) -> None:
        chain = [entry]
        for member in chain:  # grows while it is walked: parents stand before their children
            chain.extend(member.children)
        assert entry.parent is not None
        entry.parent.children.remove(entry)
        if entry.parent.parent is None and not entry.parent.children:
            del self._roots[entry.parent.root]
        for member in reversed(chain):
            member.live = False
            member.children.clear()
            del self._by_block[member.block]
            self.pool.demote(member.block)
            self._unname(member.hashes)

    def _unname(self, names: tuple[bytes, ...]) -> None:
        for name in names:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
                _cancel_out(name, self._stored, self._evicted)


def _tokens(entry: Entry) -> tuple[int, ...]:
    return entry.tokens


def _child(parent: Entry, tokens: tuple[int, ...]) -> Entry | None:
    """The page after `parent` that holds exactly `tokens`."""
    index = bisect_left(parent.children, tokens, key=_tokens)
    if index < len(parent.children) and parent.children[index].tokens == tokens:
        return parent.children[index]
    return None


def _closest(parent: Entry, tokens: tuple[int, ...]) -> tuple[Entry | None, int]:
    """The page after `parent` that starts like `tokens` for longest, and for how long.

    Among sequences in order, the one with the longest common start is a neighbour of where `tokens` would stand.
    """
    index = bisect_left(parent.children, tokens, key=_tokens)
    best: Entry | None = None
    longest = 0
    for entry in parent.children[max(0, index - 1) : index + 1]:
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(entry.tokens, tokens, strict=False)))
        if common > longest:
            best, longest = entry, common
    return best, longest


def _cancel_out(name: bytes, undone: dict[bytes, None], done: dict[bytes, None]) -> None:
    if name in undone:
        del undone[name]
    else:
        done[name] = None
