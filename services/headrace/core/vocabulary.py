"""What the engine must know of a vocabulary: a model's files tell it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """size: number of token ids the model can emit. stop_ids: ids that end an answer (end of turn, of text)."""

    size: int
    stop_ids: frozenset[int]
