"""The decoder that every architecture is built as: embedding, layers with residual connections, norm, LM head.

Owns the order of operations. It knows no tensor names and no pages beyond handing them to attention. Layers with a
window keep their whole context in pages all the same: the window hides what is behind it and frees nothing.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headrace.engine import ops
from headrace.engine.batch import Step
from headrace.engine.models.attention import Attention
from headrace.engine.models.head import Embedding, LmHead
from headrace.engine.models.norms import RmsNorm
from headrace.engine.models.rope import Angles, RopeTables


class Block(Protocol):
    """What follows a layer's attention: a feed-forward, or a mixture of experts."""

    def __call__(self, normed: Tensor) -> Tensor:
        """[row, hidden] to [row, hidden]."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """norms: before attention and feed-forward. post_norms: after them, before the residual is added; () for none.

    rope: which of the decoder's tables its heads turn by.
    """

    norms: tuple[RmsNorm, RmsNorm]
    attention: Attention
    feed_forward: Block
    post_norms: tuple[RmsNorm, RmsNorm] | tuple[()] = ()
    rope: int = 0

    def __call__(self, hidden: Tensor, batch: Step, kv: ops.PagedKv, angles: list[Angles]) -> Tensor:
        """[batch.rows, hidden], and so the result."""
        before, between = self.norms
        attended = self.attention(before(hidden), batch, kv, angles[self.rope])
        if not self.post_norms:
            hidden, normed = between.of_sum(hidden, attended)
            return hidden + self.feed_forward(normed)
        after_attention, after_feed = self.post_norms
        hidden = after_attention.added_to(hidden, attended)
        return after_feed.added_to(hidden, self.feed_forward(between(hidden)))


@dataclass(frozen=True, slots=True)
class Decoder:
    """One rank of one model. ropes: the tables that its layers choose from."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: RmsNorm
    head: LmHead
    ropes: tuple[RopeTables, ...]

    def forward(self, batch: Step, kv: ops.PagedKv) -> Tensor:
        """Writes the batch's keys and values into `kv`; returns the last layer's states [batch.rows, hidden]."""
        angles = [tables.at(batch.positions) for tables in self.ropes]
        hidden = self.embedding(batch.ids)
        for layer in self.layers:
            hidden = layer(hidden, batch, kv, angles)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[row, hidden] to float32 [row, vocabulary]. Pad the rows to a multiple of ROW_MULTIPLE."""
        return self.head(self.norm(hidden))
