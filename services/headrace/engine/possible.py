"""Whether an engine could ever serve a job, whatever else it has to do: what a job says, and the room it needs.

Pure. Knows nothing of what runs.
"""

from collections.abc import Callable

from headrace.core.errors import ContextLengthExceeded, InvalidRequest
from headrace.core.jobs import Job, JobKind
from headrace.engine.engine import EngineInfo


def require_possible(job: Job, info: EngineInfo, vocabulary_size: int, pages_for: Callable[[int], int]) -> None:
    """Raises InvalidRequest or ContextLengthExceeded for a job that could not. pages_for: pages that so many tokens
    take."""
    sampling = job.sampling
    if not 1 <= job.prompt_len <= len(job.tokens):
        raise InvalidRequest("A job needs one prompt token or more.")
    if min(job.tokens) < 0 or max(job.tokens) >= vocabulary_size:
        raise InvalidRequest(f"A token id is outside the vocabulary of {vocabulary_size}.")
    if sampling.max_tokens is not None and job.generated >= sampling.max_tokens:
        raise InvalidRequest(f"All {sampling.max_tokens} tokens of max_tokens are generated already.")
    if len(job.tokens) >= info.max_model_len:
        raise ContextLengthExceeded(
            f"{len(job.tokens)} tokens leave no room for an answer in a context of {info.max_model_len}.",
            remedy="Shorten the prompt.",
        )
    _require_pages(job, info, pages_for)


def _require_pages(job: Job, info: EngineInfo, pages_for: Callable[[int], int]) -> None:
    """The whole pool must be able to hold it up to its end.

    The last token of an answer has no KV; a prefill job ends before it computes its first, an export computes none.
    """
    longest = info.max_model_len
    if job.sampling.max_tokens is not None:
        longest = min(longest, job.prompt_len + job.sampling.max_tokens)
    needed = len(job.tokens) if job.kind in (JobKind.PREFILL, JobKind.EXPORT) else max(longest - 1, len(job.tokens))
    pages, size = pages_for(needed), info.layout.block_tokens
    if pages > info.num_blocks:
        raise ContextLengthExceeded(
            f"Prompt and answer may need {pages} KV pages of {size} tokens and this worker has {info.num_blocks}.",
            remedy="Shorten the prompt, lower max_tokens, or give the worker more KV memory.",
        )
