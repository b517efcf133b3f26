"""Reading a `tokenizer.json`: which of the two kinds it is, whether every part of it can be followed, and how it puts
a space in front of a text. Knows no text."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders

from headrace.core.errors import StartupError
from headrace.text.byte_spelling import ByteSpelling
from headrace.text.piece_spelling import PieceSpelling
from headrace.text.piece_steps import UnsupportedPart, piece_steps

Json = dict[str, Any]

_UNICODE_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_NORMALIZERS = {"Prepend", "Replace", *_UNICODE_FORMS}
_PRE_TOKENIZERS = {"Metaspace", "Split", "Digits", "Punctuation"}


@dataclass(frozen=True, slots=True)
class ReadTokenizer:
    """spelling: ids to text. first, later, inside: text to ids at the beginning of a text, behind a control token,
    and in the middle of a text, where no space is put in front."""

    spelling: ByteSpelling | PieceSpelling
    first: Tokenizer
    later: Tokenizer
    inside: Tokenizer


def read_tokenizer(path: Path) -> ReadTokenizer:
    """Raises StartupError, with the part that cannot be followed."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise StartupError(f"{path} is not a tokenizer: {error}.", remedy="Fetch the model's files again.") from error
    try:
        if isinstance(tokenizer.decoder, decoders.ByteLevel):
            return _byte_level(tokenizer)
        return _pieces(tokenizer, path)
    except UnsupportedPart as error:
        raise StartupError(
            f"{path} has {error}, which is not supported: tokenizers are byte-level BPE without a leading space, or "
            f"SentencePiece-style BPE.",
            remedy="Use another model.",
        ) from error


def _byte_level(tokenizer: Tokenizer) -> ReadTokenizer:
    pre = tokenizer.pre_tokenizer
    if pre is None:
        raise UnsupportedPart("a byte-level decoder without a pre-tokenizer")
    if pre.pre_tokenize_str("a")[0][0] != "a":
        raise UnsupportedPart("a byte-level pre-tokenizer with a leading space")
    _ready(tokenizer)
    return ReadTokenizer(ByteSpelling(tokenizer), tokenizer, tokenizer, tokenizer)


def _pieces(tokenizer: Tokenizer, path: Path) -> ReadTokenizer:
    decoder = _state(tokenizer.decoder)
    if decoder is None:
        raise UnsupportedPart("no decoder")
    steps = piece_steps(decoder)
    document: Json = json.loads(path.read_bytes())
    document["normalizer"] = _state(tokenizer.normalizer)
    document["pre_tokenizer"] = _state(tokenizer.pre_tokenizer)
    _require_followed(document)
    document["model"]["merges"] = _harmless_merges(document)
    first = _ready(Tokenizer.from_str(json.dumps(document)))
    schemes = _prefix_schemes(document)
    inside = _ready(Tokenizer.from_str(json.dumps(_without_prefix(document)))) if schemes else first
    _require_no_control_from_text(inside)
    later = inside if schemes == {"first"} else first
    return ReadTokenizer(PieceSpelling(first, steps), first, later, inside)


def _ready(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # The library then reads the text of control tokens in its input as ordinary text.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _state(part: Any) -> Json | None:
    """A part of a tokenizer as the library writes it, with the forms of older files made new."""
    return None if part is None else json.loads(part.__getstate__())


def _require_followed(document: Json) -> None:
    model = document["model"]
    if model["type"] != "BPE":
        raise UnsupportedPart(f"a model of type {model['type']}")
    if model.get("ignore_merges"):
        raise UnsupportedPart("a model that ignores merges beside SentencePiece-style tokens")
    for key, inner, known in (
        ("normalizer", "normalizers", _NORMALIZERS),
        ("pre_tokenizer", "pretokenizers", _PRE_TOKENIZERS),
    ):
        for step in _steps(document[key], inner):
            if step["type"] not in known:
                raise UnsupportedPart(f"{key.replace('_', '-')} {step['type']}")


def _steps(part: Json | None, inner: str) -> Iterator[Json]:
    if part is not None and part["type"] == "Sequence":
        for each in part[inner]:
            yield from _steps(each, inner)
    elif part is not None:
        yield part


def _harmless_merges(document: Json) -> list[Any]:
    """The merges but for those that make a control token out of ordinary text: converters leave them in."""
    control = {token["content"] for token in document["added_tokens"] if token["special"]}

    def joined(merge: str | list[str]) -> str:
        return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)

    return [merge for merge in document["model"]["merges"] if joined(merge) not in control]


def _require_no_control_from_text(tokenizer: Tokenizer) -> None:
    added = tokenizer.get_added_tokens_decoder()
    unknown = tokenizer.model.unk_token
    control = {number for number, token in added.items() if token.special and token.content != unknown}
    for number in control:
        if not control.isdisjoint(tokenizer.encode(added[number].content, add_special_tokens=False).ids):
            raise UnsupportedPart(f"the control token {added[number].content!r}, which ordinary text can spell")


def _prefix_schemes(document: Mapping[str, Any]) -> set[str]:
    """When a space is put in front: "always", that is of every text between control tokens, or only the "first"."""
    prepends = any(step["type"] == "Prepend" for step in _steps(document["normalizer"], "normalizers"))
    spaces = {
        step["prepend_scheme"]
        for step in _steps(document["pre_tokenizer"], "pretokenizers")
        if step["type"] == "Metaspace"
    }
    return (spaces - {"never"}) | ({"always"} if prepends else set())


def _without_prefix(document: Json) -> Json:
    normalizers = [step for step in _steps(document["normalizer"], "normalizers") if step["type"] != "Prepend"]
    splits = [
        step | {"prepend_scheme": "never"} if step["type"] == "Metaspace" else step
        for step in _steps(document["pre_tokenizer"], "pretokenizers")
    ]
    return document | {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits} if splits else None,
    }
