"""Reading a request: its words become token ids, and every token id that it names is one that the model has.

All of it may take long and happens on a thread. Knows no workers and no answers.
"""

import asyncio
import codecs
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.core.errors import InvalidRequest
from headrace.core.generation import GenerateRequest, Prompt, PromptEcho, TextPrompt
from headrace.core.sampling import SamplingParams
from headrace.router.models import TextModel


@dataclass(frozen=True, slots=True)
class Reading:
    """tokens: the prompt as the model reads it. sampling: with the ids of its bad words.

    echo, offsets: the prompt's text, and how many of its characters come before each token; where the request asks
    for the one or for prompt_logprobs.
    """

    tokens: tuple[int, ...]
    sampling: SamplingParams
    echo: PromptEcho | None = None
    offsets: tuple[int, ...] = ()


async def read(text: TextModel, request: GenerateRequest) -> Reading:
    """Raises InvalidRequest, naming the field."""
    return await asyncio.to_thread(_read, text, request)


def _read(text: TextModel, request: GenerateRequest) -> Reading:
    sampling = _with_bad_words(text, request.sampling)
    _require_known(sampling, text.vocabulary.size)
    tokens = text.encode(request.prompt)
    if not request.echo and sampling.prompt_logprobs is None:
        return Reading(tokens, sampling)
    echo = _echo(text, request.prompt, tokens)
    return Reading(tokens, sampling, echo, _offsets(echo))


def _with_bad_words(text: TextModel, sampling: SamplingParams) -> SamplingParams:
    if not sampling.bad_words:
        return sampling
    ids = (ids for word in sampling.bad_words for ids in text.word_ids(word))
    return replace(sampling, bad_word_ids=tuple(dict.fromkeys((*sampling.bad_word_ids, *ids))))


def _require_known(sampling: SamplingParams, size: int) -> None:
    named: tuple[tuple[str, Iterable[int]], ...] = (
        ("logit_bias", (token for token, _ in sampling.logit_bias)),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("stop_token_ids", sampling.stop_token_ids),
        ("bad_words", (token for word in sampling.bad_word_ids for token in word)),
    )
    for param, ids in named:
        unknown = next((token for token in ids if token >= size), None)
        if unknown is not None:
            raise InvalidRequest(
                f"{param} names token {unknown}, which the model does not have.",
                remedy=f"Its tokens are 0 to {size - 1}.",
                param=param,
            )


def _echo(text: TextModel, prompt: Prompt, tokens: tuple[int, ...]) -> PromptEcho:
    pieces = tuple(map(text.piece, tokens))
    words = prompt.text if isinstance(prompt, TextPrompt) else text.decode(tokens)
    return PromptEcho(words, tokens, pieces)


def _offsets(echo: PromptEcho) -> tuple[int, ...]:
    """A token inside a character has the offset of that character; what the tokenizer put in front has 0."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    before = [0]
    for piece in echo.pieces:
        before.append(before[-1] + len(decoder.decode(piece)))
    added = max(0, before[-1] + len(decoder.decode(b"", final=True)) - len(echo.text))
    return tuple(max(0, offset - added) for offset in before[:-1])
