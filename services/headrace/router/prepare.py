"""From what was read of a request to what its attempts need: resolved sampling, the answer's starting state.

What does not fit into the context, or does not go together, is refused here, without a worker.
"""

import secrets
from collections.abc import Iterable

from headrace.core.errors import ContextLengthExceeded, InvalidRequest
from headrace.core.fleet import Role, WorkerState
from headrace.core.generation import GenerateRequest
from headrace.core.resume import ResumePoint, prompt_digest
from headrace.core.sampling import SamplingParams
from headrace.router.answer import Answer
from headrace.router.models import ServedModel
from headrace.router.reading import Reading
from headrace.router.view import WorkerView


def context_of(model: ServedModel, states: Iterable[WorkerState]) -> int:
    """Tokens that prompt and answer may have together: what the roomiest attached worker that decodes can hold."""
    room = [
        WorkerView(state).max_tokens
        for state in states
        if state.attached and state.info.model == model.name and state.info.role is not Role.PREFILL
    ]
    return max(room, default=model.max_model_len)


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
        raise InvalidRequest(f"seed is {sampling.seed}, but resume belongs to seed {point.seed}.", param="seed")
    seed = secrets.randbits(63) if point is None else point.seed
    return sampling.resolved(seed, context - prompt_tokens)


def resume_point(data: bytes, prompt: tuple[int, ...], vocabulary_size: int) -> ResumePoint | None:
    """The point to go on from; None for a fresh request. Raises InvalidRequest if it is not this prompt's."""
    if not data:
        return None
    point = ResumePoint.decode(data)
    if point.prompt != prompt_digest(prompt):
        raise InvalidRequest(
            "resume belongs to another prompt.", remedy="Send the same prompt as before.", param="resume"
        )
    if any(token >= vocabulary_size for token in point.tokens):
        raise InvalidRequest("resume holds token ids that the model does not have.", param="resume")
    return point


def opening(
    model: ServedModel, request: GenerateRequest, reading: Reading, context: int
) -> tuple[SamplingParams, Answer]:
    """Resolved sampling, and the answer as far as an earlier try brought it."""
    prompt = reading.tokens
    point = resume_point(request.resume, prompt, model.text.vocabulary.size)
    sampling = resolve(reading.sampling, len(prompt), context, point)
    answer = Answer(model.text, reading, prompt_digest(prompt), sampling, echo=request.echo)
    if point is not None:
        answer.replay(tuple(point.tokens))
    return sampling, answer
