"""Logprobs in the three shapes that clients know: OpenAI's for chats, OpenAI's for completions, vLLM's for prompts.

Pure. A token that is part of a character is written by its bytes: `\\xe2\\x80` in chats, `bytes:\\xe2\\x80` in
completions, as OpenAI does.
"""

from collections.abc import Iterable
from typing import Any

from headrace.core.generation import PromptEcho
from headrace.core.logprobs import TokenLogprob
from headrace.gateway.shown import Shown

# JSON has no infinities.
_LOWEST = -9999.0


def chat_logprobs(logprobs: Iterable[TokenLogprob], shown: Shown) -> dict[str, Any] | None:
    """`logprobs` of a chat's choice; None where none are asked for."""
    if shown.logprobs is None:
        return None
    content = [
        {
            **_chat_token(one.token, one.piece, one.logprob, shown),
            "top_logprobs": [
                _chat_token(token, piece, logprob, shown) for (token, logprob), piece in _tops(one, shown.logprobs)
            ],
        }
        for one in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    logprobs: Iterable[TokenLogprob], shown: Shown, *, prompt: PromptEcho | None, start: int = 0
) -> dict[str, Any] | None:
    """`logprobs` of a completion's choice; None where none are asked for.

    prompt: given where `logprobs` begin with the prompt's second token, so that its first one, of which there are
    none, stands before them. start: characters of the text before offset 0.
    """
    if shown.logprobs is None:
        return None
    legacy: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if prompt is not None:
        _append(legacy, _legacy_name(prompt.token_ids[0], prompt.pieces[0], shown), None, None, start)
    for one in logprobs:
        name, logprob = _legacy_name(one.token, one.piece, shown), max(one.logprob, _LOWEST)
        top: dict[str, float] = {}
        for (token, each), piece in _tops(one, shown.logprobs):
            top.setdefault(_legacy_name(token, piece, shown), max(each, _LOWEST))
        # The token itself always, whether or not it is among the likeliest.
        _append(legacy, name, logprob, {**top, name: logprob}, start + one.offset)
    return legacy


def prompt_logprobs(logprobs: Iterable[TokenLogprob], shown: Shown) -> list[dict[str, Any] | None] | None:
    """vLLM's `prompt_logprobs`: nothing for the first token; None where none are asked for."""
    if shown.prompt_logprobs is None:
        return None
    return [None, *(_by_id(one, shown.prompt_logprobs) for one in logprobs)]


def _by_id(one: TokenLogprob, count: int) -> dict[str, Any]:
    ranked = {
        str(token): _ranked(logprob, rank, piece) for rank, ((token, logprob), piece) in enumerate(_tops(one, count), 1)
    }
    return {str(one.token): _ranked(one.logprob, one.rank, one.piece)} | ranked


def _ranked(logprob: float, rank: int, piece: bytes) -> dict[str, Any]:
    return {"logprob": max(logprob, _LOWEST), "rank": rank, "decoded_token": piece.decode(errors="replace")}


def _tops(one: TokenLogprob, count: int) -> list[tuple[tuple[int, float], bytes]]:
    return list(zip(one.top, one.top_pieces, strict=True))[:count]


def _chat_token(token: int, piece: bytes, logprob: float, shown: Shown) -> dict[str, Any]:
    name = f"token_id:{token}" if shown.as_token_ids else _text(piece, "")
    return {"token": name, "logprob": max(logprob, _LOWEST), "bytes": list(piece)}


def _legacy_name(token: int, piece: bytes, shown: Shown) -> str:
    """Names are keys here, so ids without a text are told apart by their numbers."""
    return f"token_id:{token}" if shown.as_token_ids or not piece else _text(piece, "bytes:")


def _text(piece: bytes, mark: str) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in piece)


def _append(
    legacy: dict[str, list[Any]], name: str, logprob: float | None, top: dict[str, float] | None, offset: int
) -> None:
    for column, value in zip(legacy.values(), (name, logprob, top, offset), strict=True):
        column.append(value)
