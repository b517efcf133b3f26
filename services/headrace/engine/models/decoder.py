"""The decoder that every architecture is put together as: embedding, layers with residual connections, norm, LM head.

Owns the parts and their order. What computes them is another's: torch_decoder, or the native kernels.
"""

from dataclasses import dataclass
from typing import Generic

from headrace.engine.models.attention import Attention
from headrace.engine.models.experts import Mixture
from headrace.engine.models.feed_forward import FeedForward
from headrace.engine.models.head import Embedding, LmHead
from headrace.engine.models.norms import RmsNorm
from headrace.engine.models.rope import RopeTables
from headrace.engine.weights.source import M, V

# What follows a layer's attention.
Block = FeedForward[M, V] | Mixture[M]


@dataclass(frozen=True, slots=True)
class Layer(Generic[M, V]):
    """norms: before attention and feed-forward. post_norms: after them, before the residual is added; () for none.

    rope: which of the decoder's tables its heads turn by.
    """

    norms: tuple[RmsNorm[V], RmsNorm[V]]
    attention: Attention[M, V]
    feed_forward: Block[M, V]
    post_norms: tuple[RmsNorm[V], RmsNorm[V]] | tuple[()] = ()
    rope: int = 0


@dataclass(frozen=True, slots=True)
class Decoder(Generic[M, V]):
    """One rank of one model. ropes: the tables that its layers choose from.

    Layers with a window keep their whole context in pages all the same: the window hides what is behind it and frees
    nothing.
    """

    embedding: Embedding[M]
    layers: tuple[Layer[M, V], ...]
    norm: RmsNorm[V]
    head: LmHead[M]
    ropes: tuple[RopeTables, ...]
