"""Both ends of a decoder that speak of tokens: the embedding, and the LM head over one rank's rows of it."""

from dataclasses import dataclass
from typing import Generic

from headrace.engine.weights.source import M, Source, V
from headrace.modelfiles.files import ModelConfig

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Embedding(Generic[M]):
    """table: [vocabulary, hidden], whole on every rank. scale: factor of its rows, rounded to the model's dtype."""

    table: M
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LmHead(Generic[M]):
    """rows: this rank's share of [vocabulary, hidden], filled up with zeros. softcap: of the logits, 0 for none."""

    rows: M
    vocabulary: int
    softcap: float


def take_ends(config: ModelConfig, weights: Source[M, V], scale: float = 1.0) -> tuple[Embedding[M], LmHead[M]]:
    """Embedding and LM head, which are one matrix where the model ties them. Must be taken last: it ends `weights`."""
    shape = (config.vocab_size, config.hidden_size)
    table = weights.matrix(_EMBEDDING, shape)
    rows = weights.own_rows(table) if config.tied_embeddings else weights.matrix(_HEAD, shape, shard=0)
    weights.finish(frozenset({_HEAD}) if config.tied_embeddings else frozenset())
    return Embedding(table, scale), LmHead(rows, config.vocab_size, config.logit_softcap)
