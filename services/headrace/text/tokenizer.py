"""Text to token ids, for the two kinds of tokenizers: byte-level BPE and SentencePiece-style BPE.

Ordinary text never yields a control token here, whatever it spells (but for the token of the unknown, where a
vocabulary lacks characters): control tokens come only from `encode_with_controls`, which the caller uses for text it
trusts. Knows no chat and no model.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from headrace.core.errors import InvalidRequest
from headrace.text.tokenizer_file import read_tokenizer

_SPACES = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class _Control:
    """A control token. lstrip, rstrip: it swallows the white space before or after it."""

    id: int
    lstrip: bool
    rstrip: bool


class ModelTokenizer:
    """One model's tokenizer. Safe to use from many threads: nothing changes after construction.

    spelling: ids to text.
    """

    def __init__(self, tokenizer_json: Path) -> None:
        """Raises StartupError for a tokenizer of another kind, naming its part that is not supported."""
        read = read_tokenizer(tokenizer_json)
        self.spelling = read.spelling
        self._first, self._later, self._inside = read.first, read.later, read.inside
        self._controls = {
            token.content: _Control(number, token.lstrip, token.rstrip)
            for number, token in read.first.get_added_tokens_decoder().items()
            if token.special
        }
        self._control_pattern = _any_of(self._controls)

    @property
    def control_ids(self) -> dict[str, int]:
        """Control tokens by their text."""
        return {text: control.id for text, control in self._controls.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text, in which control tokens have no meaning. Raises InvalidRequest for lone surrogates."""
        return _ids(self._first, text)

    def encode_inside(self, text: str) -> list[int]:
        """The same in the middle of a text: without the space that some tokenizers put in front of one."""
        return _ids(self._inside, text)

    def encode_with_controls(self, text: str, restore: Mapping[int, str] | None = None) -> list[int]:
        """Ids of text whose control tokens count.

        restore: characters (as for `str.translate`) to put back once the control tokens are found, which is how
        untrusted parts of the text kept theirs from being found.
        """
        ids: list[int] = []
        at = 0
        for match in self._control_pattern.finditer(text) if self._control_pattern else ():
            control = self._controls[match[0]]
            plain = text[at : match.start()]
            ids += self._encode_part(plain.rstrip() if control.lstrip else plain, at, restore)
            ids.append(control.id)
            at = _after_spaces(text, match.end()) if control.rstrip else match.end()
        return ids + self._encode_part(text[at:], at, restore)

    def _encode_part(self, text: str, at: int, restore: Mapping[int, str] | None) -> list[int]:
        return _ids(self._later if at else self._first, text.translate(restore) if restore else text)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except TypeError as error:  # the library's word for text that is not Unicode
        raise InvalidRequest("A text holds half of a surrogate pair, which is no character.") from error
    return ids


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the texts, the longest where several match; None where there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _after_spaces(text: str, at: int) -> int:
    spaces = _SPACES.match(text, at)
    return spaces.end() if spaces else at
