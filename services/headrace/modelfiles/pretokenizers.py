"""Byte-level BPE tokenizers in Hugging Face's `tokenizer.json` format, built from what a GGUF holds.

A GGUF names its pre-tokenizer (`tokenizer.ggml.pre`) and does not describe it: the table here does, for the names
whose token ids were compared with llama.cpp's. A name that is not in it is refused, because a wrong split gives
plausible and wrong ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import StartupError

Json = dict[str, Any]

# The pattern published with Llama 3; Qwen 2 has the same with single digits.
_CASED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(*, use_regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """split: the `pre_tokenizer` object. ignore_merges: a word that is itself a token is not merged up to."""

    split: Json
    ignore_merges: bool = False


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "smollm": PreTokenizer(_sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))),
    "gpt-2": PreTokenizer(_byte_level(use_regex=True)),
    "llama-bpe": PreTokenizer(_sequence(_split(_CASED % "{1,3}"), _byte_level(use_regex=False)), ignore_merges=True),
    "qwen2": PreTokenizer(_sequence(_split(_CASED % ""), _byte_level(use_regex=False))),
}


def tokenizer_json(
    pre: str, tokens: Sequence[str], merges: Sequence[str], control: Sequence[int], user_defined: Sequence[int]
) -> Json:
    """A whole tokenizer. tokens: text by id; merges: "left right", best first; control: ids that are special.

    Raises StartupError for a pre-tokenizer that is not in the table.
    """
    if pre not in PRE_TOKENIZERS:
        raise StartupError(
            f"The model's pre-tokenizer {pre!r} is not known, so its text would be split wrongly.",
            remedy=f"Known: {', '.join(PRE_TOKENIZERS)}. Or use the model's safetensors files, which describe theirs.",
        )
    added = sorted([(token, True) for token in control] + [(token, False) for token in user_defined])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, tokens[token], special) for token, special in added],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre].split,
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": PRE_TOKENIZERS[pre].ignore_merges,
            "vocab": {text: token for token, text in enumerate(tokens)},
            "merges": list(merges),
        },
    }


def _added_token(token: int, text: str, special: bool) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, **flags, "special": special}
