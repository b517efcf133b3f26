"""The Engine border: one model replica that turns jobs into tokens, step by step.

Owns nothing itself. An engine knows tokens, pages and sampling; it knows no router, transfer, clock or text.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.core.fleet import Load
from headrace.core.jobs import Job, JobKey, Outcome
from headrace.core.layout import KvLayout
from headrace.core.logprobs import TokenLogprob
from headrace.core.pages import PagePort


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What does not change while an engine lives. weights, recipe, tensor_parallel: as in WorkerInfo."""

    model_digest: bytes
    layout: KvLayout
    num_blocks: int
    max_model_len: int
    max_jobs: int
    weights: bytes = b""
    recipe: str = ""
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Admission:
    """What `add` did. resident_tokens: found in the prefix cache in whole pages, a multiple of their size.

    blocks: for a decode job, the ids of all its blocks (the first resident_tokens // block_tokens are cached and
    read-only, the rest are to be written). For an export, those in which the KV of its first resident_tokens tokens
    stands, whole pages unless that is all of them; they are read-only. Empty for the other kinds, whose blocks come
    with their progress.
    """

    resident_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token of one job. position: index among the request's generated tokens.

    logprob: set where sampling.logprobs asks for it. prompt_logprobs: with a request's first token where
    sampling.prompt_logprobs asks for them, one for each prompt token but the first.
    """

    key: JobKey
    position: int
    token: int
    cached_tokens: int
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prefill job is: KV of the first `computed_tokens` tokens stands in `blocks` (ids, in order)."""

    key: JobKey
    computed_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that ended by itself. error is set if and only if outcome is FAILED."""

    key: JobKey
    outcome: Outcome
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class KvUse:
    """Token slots of the KV pages that jobs hold, shared ones counted once. used: those that known tokens fill or are
    about to; the rest are beyond their sequence's last token."""

    allocated: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """All that one step brought. idle: there was nothing to run, and there will not be before the next command.

    stuck: of an idle step, how many jobs have tokens to compute and wait for pages that others hold.
    stored, evicted: hashes of blocks the prefix cache gained and lost since the last step, in no overlap.
    preempted: how many sequences lost their pages in it and wait to be recomputed. displaced: all that do after it.
    prompt_tokens: how many tokens it computed of sequences that lacked the KV of more than one.
    """

    sampled: tuple[Sampled, ...]
    progress: tuple[Progress, ...]
    finished: tuple[Finished, ...]
    stored: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    load: Load
    idle: bool
    stuck: int = 0
    preempted: int = 0
    displaced: tuple[JobKey, ...] = ()
    prompt_tokens: int = 0
    kv: KvUse = KvUse()


class Engine(Protocol):
    """One replica, driven by one thread: every method is called on that thread, PagePort's excepted.

    A job's life:
      local    add -> [step ... Sampled ... Finished] (its pages are free when Finished is returned)
      prefill  add -> [step ... Progress, Sampled] -> held -> remove. Whole pages that it finds in the prefix cache
               come as Progress in the step that begins it, which computes nothing and is not idle, so that they can
               leave before its first tokens are computed. After its one token the job holds its pages,
               whether or not that token ended the request (then Finished STOP or LENGTH comes with it), until remove.
               One that is Finished FAILED holds them until remove too: a transfer may be reading them.
               All its pages are reserved before its first Progress and never preempted.
      decode   add (slot, pages and headroom reserved, cached prefix matched) -> pages written through PagePort ->
               activate -> [step ... Sampled ... Finished]. `activate` makes the first token known; it is not
               sampled again and does not appear in Sampled. A first token that already ends the request
               (stop id or max_tokens) is Finished at the next step.
      export   add (the pages of its tokens that are here are held: all of those that a held job has, else the whole
               ones in the prefix cache, maybe none) -> remove. It computes nothing, no step tells of it, and it takes
               none of the max_jobs slots: there are as many exports at once.
    A local or decode job may be held instead of going on: it keeps slot and pages until remove, and nothing of it
    appears in later steps.
    Any job may be removed at any time; unknown keys are ignored. Nothing of it appears in later steps.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def pages(self) -> PagePort: ...

    def add(self, job: Job) -> Admission:
        """Take a job. Raises Overloaded (no slot, or no pages for a decode job), ContextLengthExceeded (the context
        or the whole pool can never hold it to its end), InvalidRequest (token ids out of range); then nothing is
        left behind."""
        ...

    def activate(self, key: JobKey, first_token: int) -> None:
        """Start a decode job whose pages are all written. Publishes its full prompt blocks to the prefix cache."""
        ...

    def hold(self, key: JobKey) -> Progress | None:
        """Stop a local or decode job for good where it stands: what of its tokens has KV, in which blocks. A stream
        lacks that of its last token alone; one that waits for pages has none. None for a job that is over.

        Telling it again changes nothing. Raises InvalidRequest for a job of another kind and for a decode job that is
        not activated."""
        ...

    def remove(self, key: JobKey, verified_tokens: int = 0) -> None:
        """End a job and free its pages. verified_tokens: for a decode job that was never activated, how many
        leading tokens' pages hold verified data; their full blocks go to the prefix cache."""
        ...

    def step(self) -> StepOutput:
        """Run one batch. A failure inside one job finishes that job FAILED; an exception is a dead engine."""
        ...

    def check(self) -> None:
        """Recount the pool from the live jobs. Raises InternalError if a page is lost, shared wrongly or freed
        twice; with no job alive every page must be free (cached pages count as free)."""
        ...
