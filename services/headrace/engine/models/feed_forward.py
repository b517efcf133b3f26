"""The gated feed-forward of a layer (Shazeer, arXiv 2002.05202): down(act(gate) x up).

Owns one rank's inner columns, and the names that most checkpoints give its tensors.
"""

from dataclasses import dataclass
from typing import Generic

from headrace.engine.weights.formats import GATE_UP
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig


@dataclass(frozen=True, slots=True)
class FeedForward(Generic[M, V]):
    """gate_up: [2 x inner, hidden], gate above up; down: [hidden, inner]. down_bias is added once, after the sum.

    activation: as ModelConfig names it.
    """

    gate_up: M
    down: M
    activation: str
    gate_up_bias: V | None = None
    down_bias: V | None = None


def take_feed_forward(config: ModelConfig, weights: Source[M, V], name: str) -> FeedForward[M, V]:
    """Of gate_proj, up_proj and down_proj of the feed-forward called `name`, with biases where `config` has them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    gate, up, down = (f"{name}{part}." for part in (*GATE_UP, "down_proj"))
    gate_up_bias = down_bias = None
    if config.feed_forward_bias:
        gate_up_bias = weights.joined((f"{gate}bias", f"{up}bias"), (inner, inner))
        down_bias = weights.vector(f"{down}bias", hidden)
    return FeedForward(
        gate_up=weights.stacked((f"{gate}weight", f"{up}weight"), ((inner, hidden), (inner, hidden))),
        down=weights.matrix(f"{down}weight", (hidden, inner), shard=1),
        activation=config.activation,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
    )
