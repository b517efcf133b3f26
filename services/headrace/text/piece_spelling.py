"""The spelling of SentencePiece-style BPE: pieces of text with ▁ for a space, and tokens such as <0x0A> for bytes.

The texts are exactly those of Hugging Face's decoder. Knows no texts.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from headrace.text.piece_detokenize import PieceDetokenizer
from headrace.text.piece_steps import PieceSteps, Spelled


class PieceSpelling:
    """What each token of one tokenizer stands for."""

    def __init__(self, tokenizer: Tokenizer, steps: PieceSteps) -> None:
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder()
        named = {number: name for name, number in vocabulary.items()}
        named |= {number: token.content for number, token in added.items()}
        control = {token.content for token in added.values() if token.special}
        size = max(named, default=-1) + 1
        self._steps = steps
        self._names = [named.get(number, "") for number in range(size)]
        self._named: list[Spelled | None] = [
            steps.spelled(named[number]) if number in named else None for number in range(size)
        ]
        self._shown = [
            None if name in control else spelled for name, spelled in zip(self._names, self._named, strict=True)
        ]

    def piece(self, token_id: int) -> bytes:
        """What a token stands for anywhere but at the beginning of a text, where its space may be missing. Control
        tokens stand for their names; b"" for ids without a text."""
        spelled = self._named[token_id] if token_id < len(self._named) else None
        if spelled is None:
            return b""
        return bytes([spelled]) if isinstance(spelled, int) else spelled.encode()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens by their names."""
        detokenizer = PieceDetokenizer(self._named, self._names, self._steps)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def detokenizer(self, prompt: Sequence[int]) -> PieceDetokenizer:
        """A new one, for the answer to `prompt`, which shows no control tokens."""
        return PieceDetokenizer(self._shown, self._names, self._steps).after(prompt)
