"""What travels on `Worker.Attach`: commands from a router, reports from a worker.

A job is always *tokens + where the prompt ended + parameters*, so resuming is the same operation as starting.
"""

from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import HeadraceError
from headrace.core.fleet import Load, WorkerInfo, WorkerRef
from headrace.core.logprobs import TokenLogprob
from headrace.core.sampling import SamplingParams
from headrace.core.ticket import Ticket
from headrace.core.waterfall import TransferNote


class JobKind(Enum):
    """prefill: compute tokens, sample one, hand the pages over. decode: take pages, go on. local: both here.

    export: hand over the pages of its tokens that are here, and compute nothing. import: take pages into the prefix
    cache, and compute nothing.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    LOCAL = "local"
    EXPORT = "export"
    IMPORT = "import"


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """One attempt at one request. Events of an older attempt are stale and dropped."""

    request: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.request}#{self.attempt}"


@dataclass(frozen=True, slots=True)
class Job:
    """One leg of a request, as a worker receives it.

    tokens: the prompt and what has been generated so far; the first `prompt_len` are the prompt.
    sampling: resolved (seed and max_tokens set); max_tokens counts all generated tokens, those in `tokens` too.
    root, hashes: chained block hashes of the full blocks of `tokens` (core.blocks), made once by the router.
    timeout_s: seconds the job may still take. ticket: for a prefill or an export job. peer: the worker that sends
    the pages of a decode or an import job. peer_block_tokens: tokens of a KV page there; 0: as many as here.
    priority: see GenerateRequest.
    """

    key: JobKey
    kind: JobKind
    tokens: tuple[int, ...]
    prompt_len: int
    sampling: SamplingParams
    root: bytes
    hashes: tuple[bytes, ...]
    timeout_s: float
    choice: int = 0
    ticket: Ticket | None = None
    peer: WorkerRef | None = None
    priority: int = 0
    peer_block_tokens: int = 0

    @property
    def generated(self) -> int:
        """How many of `tokens` were generated before this job."""
        return len(self.tokens) - self.prompt_len


@dataclass(frozen=True, slots=True)
class Hello:
    """First command of an attachment. token: the fleet's worker token, empty where none is set.

    protocol, oldest: the versions of the Worker service that the router speaks; 0 for the oldest: no other than
    `protocol`. weights: digest of the files of the model that it serves under the worker's name for it; empty: any.
    """

    router: str
    token: str
    protocol: int
    oldest: int = 0
    weights: bytes = b""


@dataclass(frozen=True, slots=True)
class Submit:
    job: Job


@dataclass(frozen=True, slots=True)
class Activate:
    """Starts a granted decode job once its pages are verified. first_token: the one prefill sampled."""

    key: JobKey
    first_token: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a job of any kind; unknown keys are ignored. Overtakes queued submits.

    lost: the job's peer is dead, so nothing that is under way between them is waited for. May follow an abort without.
    """

    key: JobKey
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Meet:
    """Has a prefill worker call the link of a decode worker, so that the first transfer finds the way open.

    link, address: the peer's link and its data address.
    """

    peer: WorkerRef
    link: str
    address: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Leave: take no more jobs, let those that are here end or move, then end the process. grace_s: 0 for what the
    worker was configured with."""

    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stops a job that writes its answer for good where it stands. It keeps its pages until it is aborted."""

    key: JobKey


Command = Hello | Submit | Activate | Abort | Meet | Drain | Freeze


class Outcome(Enum):
    """How a job ended. handed_over: a prefill or export job whose pages all left, an import whose pages are all here;
    the others end requests or attempts."""

    STOP = "stop"
    LENGTH = "length"
    HANDED_OVER = "handed_over"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Welcome:
    """First report of an attachment. Comes again when the worker's data address has changed, and means only that."""

    info: WorkerInfo
    load: Load


@dataclass(frozen=True, slots=True)
class Granted:
    """A decode or import job has its slot and pages; `ticket` goes into the job that sends them. resident_tokens:
    already here."""

    key: JobKey
    ticket: Ticket
    resident_tokens: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A decode job has all its pages, verified, and its first token: it needs its prefill worker no more."""

    key: JobKey
    note: TransferNote


@dataclass(frozen=True, slots=True)
class Busy:
    """A job was not taken: no room. It left nothing behind."""

    key: JobKey
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Met:
    """What came of a Meet. reason: why the peer did not answer, "" if it did. ms: from the Meet to its outcome."""

    peer: WorkerRef
    reason: str
    ms: float


@dataclass(frozen=True, slots=True)
class Frozen:
    """A job stands still; all its tokens were told before. tokens: how many of them, from the first on, have KV here;
    0 if it lost its pages."""

    key: JobKey
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens of one job from one step. position: index of the first of them among the generated tokens, from 0.

    cached_tokens: prompt tokens that were not computed; meaningful in a job's first event, 0 after it.
    logprobs: one for each of token_ids, or none at all. prompt_logprobs: in the event of a request's first token,
    one for each prompt token but the first, where they were asked for.
    """

    key: JobKey
    choice: int
    position: int
    token_ids: tuple[int, ...]
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """A job's last word, exactly one a job. error is set if and only if the outcome is FAILED.

    note: what a job that handed over saw of its transfer; a worker that does not know of notes sends none.
    """

    key: JobKey
    outcome: Outcome
    error: HeadraceError | None = None
    note: TransferNote | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """One engine step's news for one router: its tokens, its endings, and the worker's load."""

    tokens: tuple[TokenEvent, ...]
    endings: tuple[Ending, ...]
    load: Load
    draining: bool = False


Report = Welcome | Granted | Committed | Busy | Events | Met | Frozen
