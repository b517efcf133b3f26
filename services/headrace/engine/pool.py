"""The block pool: reference counts and the order in which unreferenced blocks are used again.

Owns counts only. It knows neither what a block holds nor who holds it.
"""

from collections import Counter, OrderedDict

from headrace.core.errors import InternalError


class BlockPool:
    """`size` blocks, each free (no reference) or held by one or more sequences.

    A free block that still holds something worth keeping waits at the end of the line, least recently used
    first; one that does not goes to the front.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))

    @property
    def free(self) -> int:
        """How many blocks no one holds."""
        return len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def take(self) -> int:
        """The next free block, now held once. Raises InternalError if there is none: ask `free` first."""
        if not self._free:
            raise InternalError("The block pool is empty.")
        block, _ = self._free.popitem(last=False)
        self._references[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more holder; a free block leaves the line."""
        if self._references[block] == 0:
            del self._free[block]
        self._references[block] += 1

    def release(self, block: int, *, keep: bool) -> None:
        """One holder less. keep: the block's contents are worth keeping while there are others to use."""
        if self._references[block] == 0:
            raise InternalError(f"Block {block} was freed twice.")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free[block] = None
            self._free.move_to_end(block, last=keep)

    def touch(self, block: int) -> None:
        """A free block was used just now: use it again last. A held one is left alone."""
        if block in self._free:
            self._free.move_to_end(block)

    def demote(self, block: int) -> None:
        """A free block's contents lost their worth: use it next. A held one is left alone."""
        if block in self._free:
            self._free.move_to_end(block, last=False)

    def check(self, holders: Counter[int]) -> None:
        """Raises InternalError unless every block is held exactly as often as `holders` says."""
        for block, count in enumerate(self._references):
            if count != holders[block]:
                raise InternalError(f"Block {block} has {count} references and {holders[block]} holders.")
            if (count == 0) != (block in self._free):
                raise InternalError(f"Block {block} with {count} references is on the wrong side of the free list.")
