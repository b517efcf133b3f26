"""Where a request's time went: its parts one after the other, and what each end saw of the pages that moved.

Everything here is a duration, taken by one machine's clock: instants of two machines are never compared.
"""

from dataclasses import dataclass
from enum import Enum

from headrace.core.fleet import Role, WorkerRef


class Stage(Enum):
    """What a request is at, as its router sees it, in this order; a new attempt begins with its queue again.

    A local request has no grant and no commit, and few pull. One whose caller left drains last.
    """

    PREPARE = "prepare"  # template and tokens
    QUEUE = "queue"  # waits for a worker with room
    ROUTE = "route"  # block hashes, and the choice itself
    PULL = "pull"  # a prefix comes from another worker's cache
    GRANT = "grant"  # the decode worker reserves pages and answers
    PREFILL = "prefill"  # until the first token is here
    COMMIT = "commit"  # until the decode worker has all pages and has been told the first token
    FIRST_DECODE = "first_decode"  # until the second token is here
    DECODE = "decode"  # until the last
    DRAIN = "drain"  # until both workers have let go of its pages


@dataclass(frozen=True, slots=True)
class Part:
    """How long a request was at a stage. attempt: counted from 1; what comes before the first belongs to it."""

    stage: Stage
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TransferNote:
    """What one end of a transfer that completed saw of it.

    worker: whose note it is. messages: units, and the End. seconds: the sender's from when its first pages could
    leave, the receiver's from its ticket, both until all were there. exposed_s: the part of them in which somebody
    waited: the sender's after it had computed the last page, the receiver's after it was told the first token.
    """

    worker: WorkerRef
    payload_bytes: int
    messages: int
    seconds: float
    exposed_s: float

    @property
    def overlap_share(self) -> float:
        """How much of the time was hidden behind computing, 0 to 1."""
        return 1 - min(1.0, self.exposed_s / self.seconds) if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """A transfer note in a request's account. role: prefill sent, decode received, whatever the workers' own roles.
    attempt: as in Part."""

    attempt: int
    role: Role
    worker: WorkerRef
    payload_bytes: int
    messages: int
    seconds: float
    exposed_s: float
    overlap_share: float


def noted(attempt: int, role: Role, note: TransferNote) -> AttemptNote:
    """`note` as it stands in a request's account."""
    return AttemptNote(
        attempt,
        role,
        note.worker,
        note.payload_bytes,
        note.messages,
        note.seconds,
        note.exposed_s,
        note.overlap_share,
    )
