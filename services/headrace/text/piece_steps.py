"""What the decoder of a SentencePiece-style `tokenizer.json` does to a token's name, step by step.

The steps are those of Hugging Face's tokenizers (`Replace`, `Metaspace`, `ByteFallback`, `Fuse`, `Strip`), in the
orders in which text can be told token by token. Any other step or order is refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
Spelled = str | int

# Rust's u8::from_str_radix, which the library reads the two digits with, takes a sign too.
_BYTE = re.compile(r"<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")


class UnsupportedPart(Exception):
    """A part of a tokenizer that cannot be followed: its name, for a sentence."""


@dataclass(frozen=True, slots=True)
class _Replacement:
    """within: `text` is put for it, but `first` in the first token of a text."""

    within: str
    text: str
    first: str


@dataclass(frozen=True, slots=True)
class PieceSteps:
    """replacements: in order. byte_fallback: names such as <0x0A> stand for bytes.

    stripped, strip_most: the character that is cut from the beginning of a text, and how many of it at most.
    """

    replacements: tuple[_Replacement, ...]
    byte_fallback: bool
    stripped: str
    strip_most: int

    def spelled(self, name: str, *, first: bool = False) -> Spelled:
        """What the token of this name stands for: a text, or one byte. first: in the first token of a text."""
        for each in self.replacements:
            name = name.replace(each.within, each.first if first else each.text)
        byte = _BYTE.fullmatch(name) if self.byte_fallback else None
        return int(byte[1], 16) if byte else name


def piece_steps(decoder: Json) -> PieceSteps:
    """decoder: the object of `tokenizer.json`, as the library writes it. Raises UnsupportedPart."""
    steps = list(_flat(decoder, "decoders"))
    replacements: list[_Replacement] = []
    while steps and steps[0]["type"] in ("Replace", "Metaspace"):
        replacements.append(_replacement(steps.pop(0)))
    byte_fallback = _taken(steps, "ByteFallback")
    fused = _taken(steps, "Fuse")
    strip = steps.pop(0) if steps and steps[0]["type"] == "Strip" and fused else None
    if strip is not None and strip["stop"]:
        raise UnsupportedPart("decoder step Strip at the end of a text")
    if steps or not (replacements or byte_fallback):
        last = steps[0]["type"] if steps else decoder["type"]
        raise UnsupportedPart(f"decoder step {last}" + (" in that place" if last in _KNOWN else ""))
    if strip is None:
        return PieceSteps(tuple(replacements), byte_fallback, "", 0)
    return PieceSteps(tuple(replacements), byte_fallback, strip["content"], strip["start"])


_KNOWN = ("Replace", "Metaspace", "ByteFallback", "Fuse", "Strip")


def _flat(step: Json, key: str) -> Sequence[Json]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for each in step[key] for inner in _flat(each, key)]


def _taken(steps: list[Json], name: str) -> bool:
    """Whether the next step is the named one; if so it is taken off."""
    found = bool(steps) and steps[0]["type"] == name
    if found:
        steps.pop(0)
    return found


def _replacement(step: Json) -> _Replacement:
    if step["type"] == "Metaspace":
        first = " " if step["prepend_scheme"] == "never" else ""
        return _Replacement(step["replacement"], " ", first)
    within = step["pattern"].get("String")
    if not within:
        raise UnsupportedPart("decoder step Replace of a regular expression")
    return _Replacement(within, step["content"], step["content"])
