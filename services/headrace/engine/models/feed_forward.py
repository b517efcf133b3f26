"""The gated feed-forward of a layer (Shazeer, arXiv 2002.05202): down(act(gate) x up).

Owns one rank's inner columns, and the names that most checkpoints give its tensors.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from headrace.engine import ops
from headrace.engine.parallel import Parallel
from headrace.engine.weights.formats import GATE_UP
from headrace.engine.weights.load import Weights
from headrace.modelfiles.files import ModelConfig


@dataclass(frozen=True, slots=True)
class FeedForward:
    """gate_up: [2 x inner, hidden], gate above up; down: [hidden, inner]. down_bias is added once, after the sum.

    activation: a name that ops.gate knows.
    """

    gate_up: Tensor
    down: Tensor
    activation: str
    parallel: Parallel
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def __call__(self, normed: Tensor) -> Tensor:
        """[row, hidden] to [row, hidden]."""
        inner = ops.gate(functional.linear(normed, self.gate_up, self.gate_up_bias), self.activation)
        out = self.parallel.sum(functional.linear(inner, self.down))
        return out if self.down_bias is None else out + self.down_bias


def take_feed_forward(config: ModelConfig, weights: Weights, name: str) -> FeedForward:
    """Of gate_proj, up_proj and down_proj of the feed-forward called `name`, with biases where `config` has them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    gate, up, down = (f"{name}{part}." for part in (*GATE_UP, "down_proj"))
    gate_up_bias = down_bias = None
    if config.feed_forward_bias:
        gate_up_bias = weights.stacked((f"{gate}bias", f"{up}bias"), ((inner,), (inner,)), shard=0)
        down_bias = weights.take(f"{down}bias", (hidden,))
    return FeedForward(
        gate_up=weights.stacked((f"{gate}weight", f"{up}weight"), ((inner, hidden), (inner, hidden)), shard=0),
        down=weights.take(f"{down}weight", (hidden, inner), shard=1),
        activation=config.activation,
        parallel=weights.parallel,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
    )
