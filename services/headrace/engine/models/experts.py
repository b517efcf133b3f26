"""A mixture of experts in place of a feed-forward (Shazeer et al., arXiv 1701.06538): each token goes to a few of many.

Owns the routing and one rank's inner columns of every expert.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.errors import InternalError
from headrace.engine import ops
from headrace.engine.parallel import Parallel
from headrace.engine.rows import padded_rows
from headrace.engine.weights.load import Weights
from headrace.modelfiles.files import Experts, ModelConfig


@dataclass(frozen=True, slots=True)
class Expert:
    """gate_up: [2 x inner, hidden], gate above up; down: [hidden, inner]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Mixture:
    """router: [experts, hidden], whole on every rank. Each token uses its `per_token` most likely experts.

    normalised: whether their weights are scaled to sum to 1.
    """

    router: Tensor
    experts: tuple[Expert, ...]
    per_token: int
    normalised: bool
    activation: str
    parallel: Parallel

    def __call__(self, normed: Tensor) -> Tensor:
        """[row, hidden] to [row, hidden]. A row's experts are added in their order, whatever else is in the batch."""
        chances = functional.linear(normed, self.router).float().softmax(-1)
        weights, chosen = chances.topk(self.per_token, dim=-1)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        choices, weights = chosen.flatten(), weights.to(normed.dtype).flatten()
        # Sorted by expert: choice c is one of row c // per_token.
        order = torch.argsort(choices, stable=True)
        counts = torch.bincount(choices, minlength=len(self.experts)).tolist()
        out = torch.zeros_like(normed)
        for expert, these in zip(self.experts, torch.split(order, counts), strict=True):
            if len(these):
                rows = these // self.per_token
                out.index_add_(0, rows, self._compute(expert, normed, rows) * weights[these, None])
        return self.parallel.sum(out)

    def _compute(self, expert: Expert, normed: Tensor, rows: Tensor) -> Tensor:
        """The expert's answer to some rows, computed with as many as ROW_MULTIPLE asks for."""
        padded = functional.pad(rows, (0, padded_rows(len(rows)) - len(rows)))
        inner = ops.gate(functional.linear(normed[padded], expert.gate_up), self.activation)
        return functional.linear(inner, expert.down)[: len(rows)]


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a checkpoint calls an expert's three matrices."""

    gate: str
    up: str
    down: str


def take_mixture(config: ModelConfig, weights: Weights, name: str, names: ExpertNames) -> Mixture:
    """Out of `gate` (the router) and `experts` of the mixture called `name`."""
    experts = config.experts
    if experts is None:
        raise InternalError(f"{name} has experts, and the configuration none.")
    return Mixture(
        router=weights.take(f"{name}gate.weight", (experts.count, config.hidden_size)),
        experts=tuple(
            _expert(config.hidden_size, experts, weights, f"{name}experts.{index}.", names)
            for index in range(experts.count)
        ),
        per_token=experts.per_token,
        normalised=experts.normalised,
        activation=config.activation,
        parallel=weights.parallel,
    )


def _expert(hidden: int, experts: Experts, weights: Weights, name: str, names: ExpertNames) -> Expert:
    above, below = (f"{name}{part}.weight" for part in (names.gate, names.up))
    shape = (experts.inner, hidden)
    return Expert(
        weights.stacked((above, below), (shape, shape), shard=0),
        weights.take(f"{name}{names.down}.weight", (hidden, experts.inner), shard=1),
    )
