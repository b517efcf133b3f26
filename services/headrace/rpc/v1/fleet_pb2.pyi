from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_LOCAL: _ClassVar[Role]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_RECEIVED: _ClassVar[Phase]
    PHASE_ROUTED: _ClassVar[Phase]
    PHASE_GRANTED: _ClassVar[Phase]
    PHASE_PREFILLING: _ClassVar[Phase]
    PHASE_TRANSFERRING: _ClassVar[Phase]
    PHASE_DECODING: _ClassVar[Phase]
    PHASE_DRAINING: _ClassVar[Phase]
    PHASE_DONE: _ClassVar[Phase]
    PHASE_FAILED: _ClassVar[Phase]
    PHASE_CANCELLED: _ClassVar[Phase]

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_PREPARE: _ClassVar[Stage]
    STAGE_QUEUE: _ClassVar[Stage]
    STAGE_ROUTE: _ClassVar[Stage]
    STAGE_GRANT: _ClassVar[Stage]
    STAGE_PREFILL: _ClassVar[Stage]
    STAGE_COMMIT: _ClassVar[Stage]
    STAGE_FIRST_DECODE: _ClassVar[Stage]
    STAGE_DECODE: _ClassVar[Stage]
    STAGE_DRAIN: _ClassVar[Stage]
    STAGE_PULL: _ClassVar[Stage]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_LOCAL: Role
PHASE_UNSPECIFIED: Phase
PHASE_RECEIVED: Phase
PHASE_ROUTED: Phase
PHASE_GRANTED: Phase
PHASE_PREFILLING: Phase
PHASE_TRANSFERRING: Phase
PHASE_DECODING: Phase
PHASE_DRAINING: Phase
PHASE_DONE: Phase
PHASE_FAILED: Phase
PHASE_CANCELLED: Phase
STAGE_UNSPECIFIED: Stage
STAGE_PREPARE: Stage
STAGE_QUEUE: Stage
STAGE_ROUTE: Stage
STAGE_GRANT: Stage
STAGE_PREFILL: Stage
STAGE_COMMIT: Stage
STAGE_FIRST_DECODE: Stage
STAGE_DECODE: Stage
STAGE_DRAIN: Stage
STAGE_PULL: Stage

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: str
    def __init__(self, request: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker", "grace_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    worker: str
    grace_s: float
    def __init__(self, worker: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsText(_message.Message):
    __slots__ = ("exposition",)
    EXPOSITION_FIELD_NUMBER: _ClassVar[int]
    exposition: str
    def __init__(self, exposition: _Optional[str] = ...) -> None: ...

class WorkerRef(_message.Message):
    __slots__ = ("worker", "incarnation")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class KvLayout(_message.Message):
    __slots__ = ("layers", "kv_heads", "head_dim", "block_tokens", "dtype", "scale_bytes")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SCALE_BYTES_FIELD_NUMBER: _ClassVar[int]
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str
    scale_bytes: int
    def __init__(self, layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., block_tokens: _Optional[int] = ..., dtype: _Optional[str] = ..., scale_bytes: _Optional[int] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("ref", "role", "address", "model", "model_digest", "layout", "max_model_len", "num_blocks", "max_jobs", "link", "data_address", "protocol", "pid", "weights", "tensor_parallel", "recipe", "oldest_protocol")
    REF_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_JOBS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
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
    weights: bytes
    tensor_parallel: int
    recipe: str
    oldest_protocol: int
    def __init__(self, ref: _Optional[_Union[WorkerRef, _Mapping]] = ..., role: _Optional[_Union[Role, str]] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., model_digest: _Optional[bytes] = ..., layout: _Optional[_Union[KvLayout, _Mapping]] = ..., max_model_len: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_jobs: _Optional[int] = ..., link: _Optional[str] = ..., data_address: _Optional[str] = ..., protocol: _Optional[int] = ..., pid: _Optional[int] = ..., weights: _Optional[bytes] = ..., tensor_parallel: _Optional[int] = ..., recipe: _Optional[str] = ..., oldest_protocol: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "waiting", "free_blocks", "total_blocks", "cached_blocks", "credits", "quarantined_slabs", "unready", "prefill_tokens_s", "transfer_bytes_s", "crowded")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_SLABS_FIELD_NUMBER: _ClassVar[int]
    UNREADY_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    CROWDED_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    cached_blocks: int
    credits: int
    quarantined_slabs: int
    unready: str
    prefill_tokens_s: float
    transfer_bytes_s: float
    crowded: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., free_blocks: _Optional[int] = ..., total_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., credits: _Optional[int] = ..., quarantined_slabs: _Optional[int] = ..., unready: _Optional[str] = ..., prefill_tokens_s: _Optional[float] = ..., transfer_bytes_s: _Optional[float] = ..., crowded: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("info", "load", "attached", "draining")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    info: WorkerInfo
    load: Load
    attached: bool
    draining: bool
    def __init__(self, info: _Optional[_Union[WorkerInfo, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., attached: _Optional[bool] = ..., draining: _Optional[bool] = ...) -> None: ...

class RefusedWorker(_message.Message):
    __slots__ = ("info", "reason")
    INFO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    info: WorkerInfo
    reason: str
    def __init__(self, info: _Optional[_Union[WorkerInfo, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class FleetStatus(_message.Message):
    __slots__ = ("ready", "reason", "workers", "requests_running", "requests_waiting", "refused")
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    reason: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    requests_running: int
    requests_waiting: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedWorker]
    def __init__(self, ready: _Optional[bool] = ..., reason: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., requests_running: _Optional[int] = ..., requests_waiting: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedWorker, _Mapping]]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("worker", "role", "cached_tokens", "running", "waiting", "credits", "score", "chosen", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerRef
    role: Role
    cached_tokens: int
    running: int
    waiting: int
    credits: int
    score: float
    chosen: bool
    why: str
    def __init__(self, worker: _Optional[_Union[WorkerRef, _Mapping]] = ..., role: _Optional[_Union[Role, str]] = ..., cached_tokens: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., credits: _Optional[int] = ..., score: _Optional[float] = ..., chosen: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("decode", "prefill", "cached_tokens", "expected_ttft_ms", "candidates", "reasons", "pull")
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    decode: WorkerRef
    prefill: WorkerRef
    cached_tokens: int
    expected_ttft_ms: float
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    pull: Pull
    def __init__(self, decode: _Optional[_Union[WorkerRef, _Mapping]] = ..., prefill: _Optional[_Union[WorkerRef, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., expected_ttft_ms: _Optional[float] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., reasons: _Optional[_Iterable[str]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("holder", "tokens", "fetch_ms", "compute_ms")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FETCH_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    holder: WorkerRef
    tokens: int
    fetch_ms: float
    compute_ms: float
    def __init__(self, holder: _Optional[_Union[WorkerRef, _Mapping]] = ..., tokens: _Optional[int] = ..., fetch_ms: _Optional[float] = ..., compute_ms: _Optional[float] = ...) -> None: ...

class Transition(_message.Message):
    __slots__ = ("before", "after", "at")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    before: Phase
    after: Phase
    at: float
    def __init__(self, before: _Optional[_Union[Phase, str]] = ..., after: _Optional[_Union[Phase, str]] = ..., at: _Optional[float] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("request", "model", "prompt_tokens", "routes", "transitions", "outcome", "actual_cached_tokens", "actual_ttft_ms", "notes", "waterfall")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    WATERFALL_FIELD_NUMBER: _ClassVar[int]
    request: str
    model: str
    prompt_tokens: int
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    transitions: _containers.RepeatedCompositeFieldContainer[Transition]
    outcome: str
    actual_cached_tokens: int
    actual_ttft_ms: float
    notes: _containers.RepeatedCompositeFieldContainer[AttemptNote]
    waterfall: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, request: _Optional[str] = ..., model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., transitions: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ..., outcome: _Optional[str] = ..., actual_cached_tokens: _Optional[int] = ..., actual_ttft_ms: _Optional[float] = ..., notes: _Optional[_Iterable[_Union[AttemptNote, _Mapping]]] = ..., waterfall: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("stage", "attempt", "seconds")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    attempt: int
    seconds: float
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., attempt: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class TransferNote(_message.Message):
    __slots__ = ("worker", "payload_bytes", "messages", "seconds", "exposed_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerRef
    payload_bytes: int
    messages: int
    seconds: float
    exposed_s: float
    def __init__(self, worker: _Optional[_Union[WorkerRef, _Mapping]] = ..., payload_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., seconds: _Optional[float] = ..., exposed_s: _Optional[float] = ...) -> None: ...

class AttemptNote(_message.Message):
    __slots__ = ("attempt", "role", "note")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    role: Role
    note: TransferNote
    def __init__(self, attempt: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., note: _Optional[_Union[TransferNote, _Mapping]] = ...) -> None: ...
