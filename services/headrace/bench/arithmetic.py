"""What a step has to move and to multiply: bytes and floating-point operations, counted from a model's shape.

Pure functions. Counted is what no implementation can do without: each weight read once a step, the keys and values that
the step's queries see, those that it adds, and its logits. Activations are left out: they stay in caches.
"""

from collections import Counter
from dataclasses import dataclass

from headrace.modelfiles.files import ModelConfig

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Matrices:
    """The weights of a model's matrices. values: how many numbers; bytes: what they take in memory.

    layers: those that every token meets, in all layers. expert: one expert of each layer that has some, of which
    there are `experts` and a token meets `experts_per_token`. head: those that a row of logits meets.
    """

    layer_values: int
    layer_bytes: int
    head_values: int
    head_bytes: int
    expert_values: int = 0
    expert_bytes: int = 0
    experts: int = 0
    experts_per_token: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cost of a model's steps follows from. kv_bytes: of one key or value number. vocabulary: logits of a row.

    windows: of each layer, tokens that a query sees, itself among them; 0 for all.
    """

    matrices: Matrices
    heads: int
    kv_heads: int
    head_dim: int
    kv_bytes: int
    vocabulary: int
    windows: tuple[int, ...]

    @staticmethod
    def of(config: ModelConfig, matrices: Matrices, kv_bytes: int) -> "Shape":
        windows = tuple(config.window(layer) for layer in range(config.layers))
        return Shape(matrices, config.heads, config.kv_heads, config.head_dim, kv_bytes, config.vocab_size, windows)


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step. spans: of each sequence, how many tokens stand in its pages and how many are computed on top.

    drawn: rows of logits.
    """

    spans: tuple[tuple[int, int], ...]
    drawn: int

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.spans)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one step."""

    weights: int
    kv_read: int
    kv_written: int
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_read + self.kv_written + self.logits


def matrices_of(config: ModelConfig, bytes_per_value: float) -> Matrices:
    """A model's matrices, all of one format."""
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention = config.layers * hidden * (2 * queries + 2 * keys)
    head = config.vocab_size * hidden
    if config.experts is None:
        layer, expert, count, per_token = attention + config.layers * 3 * hidden * config.intermediate_size, 0, 0, 0
    else:
        mixed = config.layers - len(config.experts.dense_layers)
        dense = len(config.experts.dense_layers) * 3 * hidden * config.intermediate_size
        layer = attention + dense + mixed * hidden * config.experts.count
        expert = mixed * 3 * hidden * config.experts.inner
        count, per_token = config.experts.count, config.experts.per_token
    sizes = (round(values * bytes_per_value) for values in (layer, head, expert))
    layer_bytes, head_bytes, expert_bytes = sizes
    return Matrices(layer, layer_bytes, head, head_bytes, expert, expert_bytes, count, per_token)


def traffic(shape: Shape, step: StepWork) -> Traffic:
    """The bytes that a step moves to or from memory at the least.

    Of a mixture's experts, as many are counted as the step's tokens can meet.
    """
    matrices = shape.matrices
    experts = min(matrices.experts, step.tokens * matrices.experts_per_token)
    weights = matrices.layer_bytes + experts * matrices.expert_bytes + (matrices.head_bytes if step.drawn else 0)
    of_token = 2 * shape.kv_heads * shape.head_dim * shape.kv_bytes
    read = sum(
        layers * _seen_by_any(start, count, window)
        for window, layers in Counter(shape.windows).items()
        for start, count in step.spans
    )
    written = len(shape.windows) * step.tokens
    return Traffic(weights, read * of_token, written * of_token, step.drawn * shape.vocabulary * _FLOAT_BYTES)


def operations(shape: Shape, step: StepWork) -> int:
    """Floating-point operations of a step's products, a multiplication and an addition counted as two."""
    matrices = shape.matrices
    a_token = matrices.layer_values + matrices.experts_per_token * matrices.expert_values
    products = step.tokens * a_token + step.drawn * matrices.head_values
    seen = sum(
        layers * _seen_by_each(start, count, window)
        for window, layers in Counter(shape.windows).items()
        for start, count in step.spans
    )
    # A query meets each key it sees once, and its value once.
    return 2 * products + 4 * shape.heads * shape.head_dim * seen


def _seen_by_any(start: int, count: int, window: int) -> int:
    """Tokens that one or more of `count` queries from position `start` on see."""
    return min(start + count, window + count - 1) if window else start + count


def _seen_by_each(start: int, count: int, window: int) -> int:
    """The same for each query by itself, added up."""
    return sum(min(position + 1, window) if window else position + 1 for position in range(start, start + count))
