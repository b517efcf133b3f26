"""Token ids to text, token by token, for SentencePiece-style tokenizers: pieces of text, and bytes for what has none.

What is held back follows from Hugging Face's rule for bytes: a run of byte tokens that is UTF-8 as a whole is text, and
any other becomes one U+FFFD for each of its bytes, its valid characters too.
"""

import codecs
from collections.abc import Sequence

from headrace.text.piece_steps import PieceSteps, Spelled

_REPLACEMENT = "\ufffd"


class PieceDetokenizer:
    """The text of one answer. All it returned, joined, is what the tokenizer's decoder makes of all ids together.

    A run of byte tokens comes when it ends, or from where it is known to be broken.
    """

    def __init__(self, spelled: Sequence[Spelled | None], names: Sequence[str], steps: PieceSteps) -> None:
        """spelled: what each id stands for, None where it is passed over. names: of the tokens, by id."""
        self._spelled = spelled
        self._names = names
        self._steps = steps
        self._first = True
        self._to_strip = steps.strip_most
        self._run = _ByteRun()

    def after(self, prompt: Sequence[int]) -> "PieceDetokenizer":
        """Itself, when the text before the answer is the prompt's: only the first of all texts loses its space."""
        for token in prompt:
            if not self._first and not self._to_strip:
                break
            self.push(token)
        self.flush()
        return self

    @property
    def likely(self) -> str:
        """Complete characters held back: they come as they are unless a later byte breaks their run."""
        text = self._run.likely
        return text[self._cut(text) :] if self._to_strip else text

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain; "" for control tokens and for ids without a text."""
        spelled = self._spelled[token_id] if token_id < len(self._spelled) else None
        if spelled is None:
            return ""  # it does not even end a run of bytes
        if self._first:
            self._first = False
            spelled = self._steps.spelled(self._names[token_id], first=True)
        if isinstance(spelled, int):
            return self._stripped(self._run.push(spelled))
        return self._stripped(self._run.end() + spelled)

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        return self._stripped(self._run.end())

    def _stripped(self, text: str) -> str:
        if not self._to_strip or not text:
            return text
        cut = self._cut(text)
        self._to_strip = self._to_strip - cut if cut == len(text) else 0
        return text[cut:]

    def _cut(self, text: str) -> int:
        beginning = text[: self._to_strip]
        return len(beginning) - len(beginning.lstrip(self._steps.stripped))


class _ByteRun:
    """Byte tokens that follow each other. likely: the complete characters that they come to so far."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._length = 0
        self._broken = False
        self.likely = ""

    def push(self, byte: int) -> str:
        """What can no longer be otherwise: U+FFFD for each byte so far of a run that breaks, and for each after."""
        if self._broken:
            return _REPLACEMENT
        self._length += 1
        try:
            self.likely += self._decoder.decode(bytes([byte]))
        except UnicodeDecodeError:
            lost, self._length = self._length, 0
            self._broken, self.likely = True, ""
            self._decoder.reset()
            return _REPLACEMENT * lost
        return ""

    def end(self) -> str:
        """The text of what was held back. The run is then a new one."""
        unfinished = self._decoder.getstate()[0]
        text = _REPLACEMENT * self._length if unfinished else self.likely
        self._decoder.reset()
        self._length, self._broken, self.likely = 0, False, ""
        return text
