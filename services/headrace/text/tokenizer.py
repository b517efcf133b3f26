"""Byte-level BPE: text to token ids and token ids to bytes.

Ordinary text never yields a control token here, whatever it spells: control tokens come only from
`encode_with_controls`, which the caller uses for text it trusts. Knows no chat and no model.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders

from headrace.core.errors import InvalidRequest, StartupError

_SPACES = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class _Control:
    """A control token. lstrip, rstrip: it swallows the white space before or after it."""

    id: int
    lstrip: bool
    rstrip: bool


class ByteTokenizer:
    """One model's tokenizer. Safe to use from many threads: nothing changes after construction.

    token_bytes: what each id stands for in an answer, b"" for control tokens. pieces: the same, but control tokens
    stand for their names.
    """

    def __init__(self, tokenizer_json: Path) -> None:
        self._tokenizer = _loaded(tokenizer_json)
        # The library then reads the text of control tokens in its input as ordinary text.
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self._controls = {
            token.content: _Control(number, token.lstrip, token.rstrip)
            for number, token in added.items()
            if token.special
        }
        self._control_pattern = _any_of(self._controls)
        self.token_bytes = _bytes_by_id(self._tokenizer, added)
        self.pieces = list(self.token_bytes)
        for text, control in self._controls.items():
            self.pieces[control.id] = text.encode()

    @property
    def control_ids(self) -> dict[str, int]:
        """Control tokens by their text."""
        return {text: control.id for text, control in self._controls.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text, in which control tokens have no meaning. Raises InvalidRequest for lone surrogates."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError as error:  # the library's word for text that is not Unicode
            raise InvalidRequest("A text holds half of a surrogate pair, which is no character.") from error
        return ids

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
            ids += self._encode_restored(plain.rstrip() if control.lstrip else plain, restore)
            ids.append(control.id)
            at = _after_spaces(text, match.end()) if control.rstrip else match.end()
        return ids + self._encode_restored(text[at:], restore)

    def _encode_restored(self, text: str, restore: Mapping[int, str] | None) -> list[int]:
        return self.encode(text.translate(restore) if restore else text)


def _loaded(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise StartupError(f"{path} is not a tokenizer: {error}.", remedy="Fetch the model's files again.") from error
    pre = tokenizer.pre_tokenizer
    byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel) and pre is not None
    if not byte_level or pre.pre_tokenize_str("a")[0][0] != "a":
        raise StartupError(
            f"{path} is not a byte-level tokenizer without a leading space, the only kind supported.",
            remedy="Use another model.",
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the texts, the longest where several match; None where there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _after_spaces(text: str, at: int) -> int:
    spaces = _SPACES.match(text, at)
    return spaces.end() if spaces else at


def _bytes_by_id(tokenizer: Tokenizer, added: dict[int, AddedToken]) -> list[bytes]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    alphabet = _byte_alphabet()
    size = max([*vocabulary.values(), *added], default=-1) + 1
    table = [b""] * size
    for text, number in vocabulary.items():
        try:
            table[number] = bytes([alphabet[character] for character in text])
        except KeyError:  # a token that is not written in the alphabet stands for its own text
            table[number] = text.encode()
    for number, token in added.items():
        table[number] = b"" if token.special else token.content.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 for itself, the others moved up from U+0100 in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(0x100 + place): byte for place, byte in enumerate(moved)}
