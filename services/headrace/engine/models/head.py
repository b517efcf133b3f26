"""Both ends of a decoder that speak of tokens: the embedding, and the LM head over one rank's rows of it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.activations import soft_cap
from headrace.engine.parallel import Parallel, share_length
from headrace.engine.weights.load import Weights, pad
from headrace.modelfiles.files import ModelConfig

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Embedding:
    """table: [vocabulary, hidden], whole on every rank. scale: factor of its rows, rounded to their dtype."""

    table: Tensor
    scale: float = 1.0

    def __call__(self, ids: Tensor) -> Tensor:
        """[row] to [row, hidden]."""
        rows = functional.embedding(ids, self.table)
        return rows if self.scale == 1.0 else rows * torch.tensor(self.scale, dtype=rows.dtype)


@dataclass(frozen=True, slots=True)
class LmHead:
    """rows: this rank's share of [vocabulary, hidden], filled up with zeros. softcap: of the logits, 0 for none."""

    rows: Tensor
    vocabulary: int
    softcap: float
    parallel: Parallel

    def __call__(self, normed: Tensor) -> Tensor:
        """[row, hidden] to float32 [row, vocabulary], the same on every rank."""
        shares = self.parallel.gather(functional.linear(normed, self.rows))
        logits = shares[:, : self.vocabulary].float()
        return soft_cap(logits, self.softcap) if self.softcap else logits


def take_ends(config: ModelConfig, weights: Weights, scale: float = 1.0) -> tuple[Embedding, LmHead]:
    """Embedding and LM head, which are one matrix where the model ties them. Must be taken last: it ends `weights`."""
    shape = (config.vocab_size, config.hidden_size)
    table = weights.take(_EMBEDDING, shape)
    rows = _own_rows(table, weights.parallel) if config.tied_embeddings else weights.take(_HEAD, shape, shard=0)
    weights.finish(frozenset({_HEAD}) if config.tied_embeddings else frozenset())
    head = LmHead(rows, config.vocab_size, config.logit_softcap, weights.parallel)
    return Embedding(table, scale), head


def _own_rows(table: Tensor, parallel: Parallel) -> Tensor:
    if parallel.size == 1:
        return table
    share = share_length(len(table), parallel.size)
    return pad(table[parallel.rank * share : (parallel.rank + 1) * share], 0, share)
