"""Tensor parallelism as a model sees it: which rank it is, and the two exchanges between ranks.

Owns the border, the arithmetic of shares and the single-rank case. It knows no processes, weights or architecture.

The ranks of a replica split every layer as Megatron-LM does (Shoeybi et al., arXiv 1909.08053): query and key-value
heads, and the feed-forward's inner dimension, by columns and then by rows, so that a layer costs two sums; the LM
head by rows of the vocabulary, gathered once a step. Embeddings, norms and a mixture's router are on every rank.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.core.errors import StartupError

if TYPE_CHECKING:
    from torch import Tensor


class Parallel(Protocol):
    """One rank's end of a replica. Every rank makes the same calls in the same order with tensors of equal shape and
    dtype; a call returns when all ranks have made it, and raises HeadraceError once one of them never will.

    rank: 0 .. size - 1.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, tensor: "Tensor") -> "Tensor":
        """The element-wise sum over all ranks, bit-equal on each. The argument may be overwritten."""
        ...

    def gather(self, tensor: "Tensor") -> "Tensor":
        """The ranks' tensors side by side along the last dimension, rank 0 first: [..., n] to [..., size x n]."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """A replica of one rank: there is nobody to exchange with."""

    rank: int = 0
    size: int = 1

    def sum(self, tensor: "Tensor") -> "Tensor":
        return tensor

    def gather(self, tensor: "Tensor") -> "Tensor":
        return tensor


ALONE = Alone()


def share_length(length: int, size: int) -> int:
    """What one of `size` ranks holds of `length` rows, columns or entries. The last ranks' shares are filled up with
    zeros where it does not divide, which add nothing to a sum and are cut off a gathered row."""
    return -(-length // size)


def local_heads(what: str, count: int, size: int) -> int:
    """The heads of one of `size` ranks. Raises StartupError where they cannot be shared out evenly."""
    if count % size:
        raise StartupError(
            f"{count} {what} heads cannot be split over {size} tensor-parallel ranks.",
            remedy="Choose a --tensor-parallel-size that divides them.",
        )
    return count // size
