"""From a request to what its attempts need: token ids, resolved sampling, the answer's starting state.

Everything that can be refused without a worker is refused here.
"""

import asyncio
import secrets
from collections.abc import Iterable

from headrace.core.errors import ContextLengthExceeded, InvalidRequest
from headrace.core.fleet import Role, WorkerState
from headrace.core.generation import GenerateRequest
from headrace.core.resume import ResumePoint, prompt_digest
from headrace.core.sampling import SamplingParams
from headrace.router.answer import Answer
from headrace.router.models import ServedModel
from headrace.router.view import WorkerView


def context_of(model: ServedModel, states: Iterable[WorkerState]) -> int:
    """Tokens that prompt and answer may have together: what the roomiest attached worker that decodes can hold."""
    room = [
        WorkerView(state).max_tokens
        for state in states
        if state.attached and state.info.model == model.name and state.info.role is not Role.PREFILL
    ]
    return max(room, default=model.max_model_len)


async def encode(model: ServedModel, request: GenerateRequest) -> tuple[int, ...]:
    """The prompt as the model reads it, made off the event loop."""
    return await asyncio.to_thread(model.text.encode, request.prompt)


def resolve(sampling: SamplingParams, prompt_tokens: int, context: int, point: ResumePoint | None) -> SamplingParams:
    """Sampling with a seed and a max_tokens. Raises ContextLengthExceeded, and InvalidRequest for two seeds."""
    if prompt_tokens + 1 > context:
        raise ContextLengthExceeded(
            f"The prompt has {prompt_tokens} tokens; with one token of answer that is more than "
            f"the context of {context} tokens.",
            remedy="Shorten the prompt.",
        )
    if sampling.max_tokens is not None and prompt_tokens + sampling.max_tokens > context:
        raise ContextLengthExceeded(
            f"The context is {context} tokens, but {prompt_tokens + sampling.max_tokens} were asked for: "
            f"{prompt_tokens} in the prompt and {sampling.max_tokens} for the answer.",
            remedy="Shorten the prompt or ask for fewer tokens.",
        )
    if point is not None and sampling.seed not in {None, point.seed}:
        raise InvalidRequest(f"seed is {sampling.seed}, but resume belongs to seed {point.seed}.")
    seed = secrets.randbits(63) if point is None else point.seed
    return sampling.resolved(seed, context - prompt_tokens)


def resume_point(data: bytes, prompt: tuple[int, ...], vocabulary_size: int) -> ResumePoint | None:
    """The point to go on from; None for a fresh request. Raises InvalidRequest if it is not this prompt's."""
    if not data:
        return None
    point = ResumePoint.decode(data)
    if point.prompt != prompt_digest(prompt):
        raise InvalidRequest("resume belongs to another prompt.", remedy="Send the same prompt as before.")
    if any(token >= vocabulary_size for token in point.tokens):
        raise InvalidRequest("resume holds token ids that the model does not have.")
    return point


def opening(
    model: ServedModel, request: GenerateRequest, prompt: tuple[int, ...], context: int
) -> tuple[SamplingParams, Answer]:
    """Resolved sampling, and the answer as far as an earlier try brought it."""
    point = resume_point(request.resume, prompt, model.text.vocabulary.size)
    sampling = resolve(request.sampling, len(prompt), context, point)
    answer = Answer(model.text, len(prompt), prompt_digest(prompt), sampling)
    if point is not None:
        answer.replay(tuple(point.tokens))
    return sampling, answer
