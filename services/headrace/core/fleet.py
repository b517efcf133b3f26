"""The fleet: who serves, in which role and incarnation, and under what load."""

from dataclasses import dataclass
from enum import Enum

from headrace.core.layout import Descriptor, KvLayout


class Role(Enum):
    """Which jobs a worker is offered. The program is the same for all three."""

    PREFILL = "prefill"
    DECODE = "decode"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, order=True)
class WorkerRef:
    """One life of one worker. A restart is a new incarnation (decision 12), never the same ref."""

    worker: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.worker}@{self.incarnation[:8]}"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What does not change during an incarnation: stands in the lease and in the Attach welcome.

    address: `host:port` of the worker's gRPC service. data_address: opaque to all but its link.
    num_blocks: usable KV blocks. max_jobs: sequences it runs at once. protocol, oldest_protocol: the versions of the
    Worker service that it speaks; 0 for the oldest: no other than `protocol`.
    weights: digest of the model's files; model_digest follows from it, the KV dtype and `recipe`, which is how keys
    and values are computed and kept. tensor_parallel: ranks; pages are the same whatever their number.
    """

    ref: WorkerRef
    role: Role
    address: str
    model: str
    model_digest: bytes
    layout: KvLayout
    max_model_len: int
    num_blocks: int
    max_jobs: int
    link: str
    data_address: str
    protocol: int
    pid: int
    weights: bytes = b""
    tensor_parallel: int = 1
    recipe: str = ""
    oldest_protocol: int = 0

    @property
    def kv(self) -> Descriptor:
        return Descriptor(self.model_digest, self.layout, self.weights, self.recipe)


@dataclass(frozen=True, slots=True)
class Load:
    """A worker's load after an engine step. credits: jobs it will still accept right now.

    unready: why it takes no jobs though it is attached, as "its engine ..."; "" if it does.
    prefill_tokens_s: tokens of prompts that it computed a second lately, beside all that it runs. transfer_bytes_s:
    bytes of KV pages that its peers took a second lately, while it had any under way. 0: not measured.
    crowded: ids of the requests whose jobs lost their pages here and wait for room, if that has lasted.
    """

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    cached_blocks: int = 0
    credits: int = 0
    quarantined_slabs: int = 0
    unready: str = ""
    prefill_tokens_s: float = 0.0
    transfer_bytes_s: float = 0.0
    crowded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as one router sees it. A live attachment outranks a missing lease."""

    info: WorkerInfo
    load: Load
    attached: bool
    draining: bool = False


@dataclass(frozen=True, slots=True)
class RefusedWorker:
    """A worker that the router does not attach to. reason: the end of a sentence about it, as "speaks ..."."""

    info: WorkerInfo
    reason: str


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """What `headrace status` shows. ready: a chat sent now would be answered; else `reason` says why not.

    requests_running, requests_waiting: at the router that says so, or, where a gateway does, at all routers that it
    asks; what came by other ways stands in the workers' load only. refused: by any of these routers.
    """

    ready: bool
    reason: str
    workers: tuple[WorkerState, ...]
    requests_running: int
    requests_waiting: int
    refused: tuple[RefusedWorker, ...] = ()
