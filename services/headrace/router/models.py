"""The models a router serves, by name, and what it needs of each: text in, text out, the context."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import ModelNotFound
from headrace.core.fleet import WorkerInfo
from headrace.core.generation import Prompt
from headrace.core.layout import shown, weights_difference
from headrace.core.vocabulary import Vocabulary
from headrace.text.answer_text import Detokenizing


class TextModel(Protocol):
    """The text side of a model. `encode` and `word_ids` may take long and are called on a thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    def encode(self, prompt: Prompt) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizing: ...

    def piece(self, token_id: int) -> bytes: ...

    def word_ids(self, word: str) -> tuple[tuple[int, ...], ...]: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """max_model_len: the context where no worker says otherwise. created: Unix seconds.

    weights: digest of its files, the only one that workers of this name may have; empty takes any. Whichever they
    have, requests never mix workers whose model digests differ.
    """

    name: str
    text: TextModel
    max_model_len: int
    created: int
    weights: bytes = b""


class Models:
    """Served names, without repetition."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._served = {model.name: model for model in served}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def get(self, name: str) -> ServedModel:
        """Raises ModelNotFound."""
        if name not in self._served:
            raise ModelNotFound(
                f"There is no model named {name!r} here.", remedy=f"Served: {', '.join(sorted(self._served))}."
            )
        return self._served[name]

    def weights(self, name: str) -> bytes:
        """What workers that serve this name must have; empty if anything, or if the name is unknown."""
        model = self._served.get(name)
        return b"" if model is None else model.weights

    def misfit(self, info: WorkerInfo) -> str:
        """Why a worker's model is none of these, or ""."""
        if info.model not in self._served:
            return f"serves {info.model}, which this router does not"
        wanted = self.weights(info.model)
        if wanted and not info.weights:
            return f"does not say of which weights its {info.model} is, and this router's are {shown(wanted)}"
        differs = weights_difference(info.weights, wanted)
        return f"and this router serve other models as {info.model}: {differs}" if differs else ""
