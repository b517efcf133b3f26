from headrace.rpc.v1 import fleet_pb2 as _fleet_pb2
from headrace.rpc.v1 import inference_pb2 as _inference_pb2
from headrace.rpc.v1 import ticket_pb2 as _ticket_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_KIND_UNSPECIFIED: _ClassVar[JobKind]
    JOB_KIND_PREFILL: _ClassVar[JobKind]
    JOB_KIND_DECODE: _ClassVar[JobKind]
    JOB_KIND_LOCAL: _ClassVar[JobKind]
    JOB_KIND_EXPORT: _ClassVar[JobKind]
    JOB_KIND_IMPORT: _ClassVar[JobKind]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_STOP: _ClassVar[Outcome]
    OUTCOME_LENGTH: _ClassVar[Outcome]
    OUTCOME_HANDED_OVER: _ClassVar[Outcome]
    OUTCOME_ABORTED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
JOB_KIND_UNSPECIFIED: JobKind
JOB_KIND_PREFILL: JobKind
JOB_KIND_DECODE: JobKind
JOB_KIND_LOCAL: JobKind
JOB_KIND_EXPORT: JobKind
JOB_KIND_IMPORT: JobKind
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_STOP: Outcome
OUTCOME_LENGTH: Outcome
OUTCOME_HANDED_OVER: Outcome
OUTCOME_ABORTED: Outcome
OUTCOME_FAILED: Outcome

class Command(_message.Message):
    __slots__ = ("hello", "submit", "activate", "abort", "drain", "freeze", "meet")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FREEZE_FIELD_NUMBER: _ClassVar[int]
    MEET_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    submit: Submit
    activate: Activate
    abort: Abort
    drain: Drain
    freeze: Freeze
    meet: Meet
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., activate: _Optional[_Union[Activate, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., freeze: _Optional[_Union[Freeze, _Mapping]] = ..., meet: _Optional[_Union[Meet, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("welcome", "granted", "busy", "events", "frozen", "committed", "met")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    granted: Granted
    busy: Busy
    events: Events
    frozen: Frozen
    committed: Committed
    met: Met
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., busy: _Optional[_Union[Busy, _Mapping]] = ..., events: _Optional[_Union[Events, _Mapping]] = ..., frozen: _Optional[_Union[Frozen, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., met: _Optional[_Union[Met, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("router", "token", "protocol", "oldest", "weights")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    router: str
    token: str
    protocol: int
    oldest: int
    weights: bytes
    def __init__(self, router: _Optional[str] = ..., token: _Optional[str] = ..., protocol: _Optional[int] = ..., oldest: _Optional[int] = ..., weights: _Optional[bytes] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Activate(_message.Message):
    __slots__ = ("key", "first_token")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    first_token: int
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., first_token: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("key", "lost")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    lost: bool
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., lost: _Optional[bool] = ...) -> None: ...

class Meet(_message.Message):
    __slots__ = ("peer", "link", "address")
    PEER_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer: _fleet_pb2.WorkerRef
    link: str
    address: str
    def __init__(self, peer: _Optional[_Union[_fleet_pb2.WorkerRef, _Mapping]] = ..., link: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class Freeze(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ...) -> None: ...

class JobKey(_message.Message):
    __slots__ = ("request", "attempt")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("key", "kind", "tokens", "prompt_len", "sampling", "root", "hashes", "timeout_s", "choice", "ticket", "peer", "priority", "peer_block_tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PEER_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    kind: JobKind
    tokens: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    sampling: _inference_pb2.SamplingParams
    root: bytes
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    timeout_s: float
    choice: int
    ticket: _ticket_pb2.Ticket
    peer: _fleet_pb2.WorkerRef
    priority: int
    peer_block_tokens: int
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., kind: _Optional[_Union[JobKind, str]] = ..., tokens: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[_inference_pb2.SamplingParams, _Mapping]] = ..., root: _Optional[bytes] = ..., hashes: _Optional[_Iterable[bytes]] = ..., timeout_s: _Optional[float] = ..., choice: _Optional[int] = ..., ticket: _Optional[_Union[_ticket_pb2.Ticket, _Mapping]] = ..., peer: _Optional[_Union[_fleet_pb2.WorkerRef, _Mapping]] = ..., priority: _Optional[int] = ..., peer_block_tokens: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("info", "load")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    info: _fleet_pb2.WorkerInfo
    load: _fleet_pb2.Load
    def __init__(self, info: _Optional[_Union[_fleet_pb2.WorkerInfo, _Mapping]] = ..., load: _Optional[_Union[_fleet_pb2.Load, _Mapping]] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("key", "ticket", "resident_tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    ticket: _ticket_pb2.Ticket
    resident_tokens: int
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., ticket: _Optional[_Union[_ticket_pb2.Ticket, _Mapping]] = ..., resident_tokens: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("key", "note")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    note: _fleet_pb2.TransferNote
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., note: _Optional[_Union[_fleet_pb2.TransferNote, _Mapping]] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("key", "retry_after_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    retry_after_s: float
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class Met(_message.Message):
    __slots__ = ("peer", "reason", "ms")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    peer: _fleet_pb2.WorkerRef
    reason: str
    ms: float
    def __init__(self, peer: _Optional[_Union[_fleet_pb2.WorkerRef, _Mapping]] = ..., reason: _Optional[str] = ..., ms: _Optional[float] = ...) -> None: ...

class Frozen(_message.Message):
    __slots__ = ("key", "tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    tokens: int
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., tokens: _Optional[int] = ...) -> None: ...

class TokenEvent(_message.Message):
    __slots__ = ("key", "choice", "position", "token_ids", "cached_tokens", "logprobs", "prompt_logprobs")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    choice: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_inference_pb2.TokenLogprob]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_inference_pb2.TokenLogprob]
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., choice: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_inference_pb2.TokenLogprob, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_inference_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ("key", "outcome", "error", "note")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    key: JobKey
    outcome: Outcome
    error: _inference_pb2.Error
    note: _fleet_pb2.TransferNote
    def __init__(self, key: _Optional[_Union[JobKey, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., error: _Optional[_Union[_inference_pb2.Error, _Mapping]] = ..., note: _Optional[_Union[_fleet_pb2.TransferNote, _Mapping]] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("tokens", "endings", "load", "draining")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDINGS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenEvent]
    endings: _containers.RepeatedCompositeFieldContainer[Ending]
    load: _fleet_pb2.Load
    draining: bool
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenEvent, _Mapping]]] = ..., endings: _Optional[_Iterable[_Union[Ending, _Mapping]]] = ..., load: _Optional[_Union[_fleet_pb2.Load, _Mapping]] = ..., draining: _Optional[bool] = ...) -> None: ...
