"""A mixture of experts in place of a feed-forward (Shazeer et al., arXiv 1701.06538): each token goes to a few of many.

Owns what routing needs to know, and one rank's inner columns of every expert. Who computes routes.
"""

from dataclasses import dataclass
from typing import Generic

from headrace.core.errors import InternalError
from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import Experts, ModelConfig


@dataclass(frozen=True, slots=True)
class Expert(Generic[M]):
    """gate_up: [2 x inner, hidden], gate above up; down: [hidden, inner]."""

    gate_up: M
    down: M


@dataclass(frozen=True, slots=True)
class Mixture(Generic[M]):
    """router: [experts, hidden], whole on every rank. Each token uses its `per_token` most likely experts.

    normalised: whether their weights are scaled to sum to 1.
    """

    router: M
    experts: tuple[Expert[M], ...]
    per_token: int
    normalised: bool
    activation: str


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a checkpoint calls an expert's three matrices."""

    gate: str
    up: str
    down: str


def take_mixture(config: ModelConfig, weights: Source[M, V], name: str, names: ExpertNames) -> Mixture[M]:
    """Out of `gate` (the router) and `experts` of the mixture called `name`."""
    experts = config.experts
    if experts is None:
        raise InternalError(f"{name} has experts, and the configuration none.")
    return Mixture(
        router=weights.matrix(f"{name}gate.weight", (experts.count, config.hidden_size)),
        experts=tuple(
            _expert(config.hidden_size, experts, weights, f"{name}experts.{index}.", names)
            for index in range(experts.count)
        ),
        per_token=experts.per_token,
        normalised=experts.normalised,
        activation=config.activation,
    )


def _expert(hidden: int, experts: Experts, weights: Source[M, V], name: str, names: ExpertNames) -> Expert[M]:
    above, below = (f"{name}{part}.weight" for part in (names.gate, names.up))
    shape = (experts.inner, hidden)
    return Expert(
        weights.stacked((above, below), (shape, shape)),
        weights.matrix(f"{name}{names.down}.weight", (hidden, experts.inner), shard=1),
    )
