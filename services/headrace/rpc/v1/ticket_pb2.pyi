from headrace.rpc.v1 import fleet_pb2 as _fleet_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ticket(_message.Message):
    __slots__ = ("transfer", "secret", "job", "attempt", "source", "target", "model_digest", "layout", "first_block", "block_count", "unit_blocks", "link", "address", "wire_tokens")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WIRE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    transfer: bytes
    secret: bytes
    job: str
    attempt: int
    source: _fleet_pb2.WorkerRef
    target: _fleet_pb2.WorkerRef
    model_digest: bytes
    layout: _fleet_pb2.KvLayout
    first_block: int
    block_count: int
    unit_blocks: int
    link: str
    address: str
    wire_tokens: int
    def __init__(self, transfer: _Optional[bytes] = ..., secret: _Optional[bytes] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., source: _Optional[_Union[_fleet_pb2.WorkerRef, _Mapping]] = ..., target: _Optional[_Union[_fleet_pb2.WorkerRef, _Mapping]] = ..., model_digest: _Optional[bytes] = ..., layout: _Optional[_Union[_fleet_pb2.KvLayout, _Mapping]] = ..., first_block: _Optional[int] = ..., block_count: _Optional[int] = ..., unit_blocks: _Optional[int] = ..., link: _Optional[str] = ..., address: _Optional[str] = ..., wire_tokens: _Optional[int] = ...) -> None: ...
