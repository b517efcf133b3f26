"""The decoder that every architecture is built as: embedding, layers with residual connections, norm, LM head.

Owns the order of operations. It knows no tensor names and no pages beyond handing them to attention. Layers with a
window keep their whole context in pages all the same: the window hides what is behind it and frees nothing.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headrace.engine import ops
from headrace.engine.batch import Batch
from headrace.engine.models.attention import Attention
from headrace.engine.models.head import Embedding, LmHead
from headrace.engine.models.norms import Norm
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

    norms: tuple[Norm, Norm]
    attention: Attention
    feed_forward: Block
    post_norms: tuple[Norm, Norm] | tuple[()] = ()
    rope: int = 0

    def __call__(self, hidden: Tensor, batch: Batch, kv: ops.PagedKv, angles: list[Angles]) -> Tensor:
        """[batch.rows, hidden], and so the result."""
        attended = self.attention(self.norms[0](hidden), batch, kv, angles[self.rope])
        hidden = hidden + (self.post_norms[0](attended) if self.post_norms else attended)
        fed = self.feed_forward(self.norms[1](hidden))
        return hidden + (self.post_norms[1](fed) if self.post_norms else fed)


@dataclass(frozen=True, slots=True)
class Decoder:
    """One rank of one model. ropes: the tables that its layers choose from."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: Norm
    head: LmHead
    ropes: tuple[RopeTables, ...]

    def forward(self, batch: Batch, kv: ops.PagedKv) -> Tensor:
        """Writes the batch's keys and values into `kv`; returns the last layer's states [batch.rows, hidden]."""
        angles = [tables.at(batch.positions) for tables in self.ropes]
        hidden = self.embedding(batch.ids)
        for layer in self.layers:
            hidden = layer(hidden, batch, kv, angles)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[row, hidden] to float32 [row, vocabulary]. Pad the rows to a multiple of ROW_MULTIPLE."""
        return self.head(self.norm(hidden))
