"""How leases are written, and what is made of those that another program wrote."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.layout import DTYPE_BYTES, KvLayout
from headrace.roster.record import decode, encode

counts = st.integers(0, 2**53)
infos = st.builds(
    WorkerInfo,
    ref=st.builds(WorkerRef, st.text(), st.text()),
    role=st.sampled_from(Role),
    address=st.text(),
    model=st.text(),
    model_digest=st.binary(max_size=16),
    layout=st.builds(KvLayout, counts, counts, counts, counts, st.sampled_from(sorted(DTYPE_BYTES)), counts),
    max_model_len=counts,
    num_blocks=counts,
    max_jobs=counts,
    link=st.text(),
    data_address=st.text(),
    protocol=counts,
    pid=counts,
    weights=st.binary(max_size=16),
    tensor_parallel=counts,
    recipe=st.text(),
    oldest_protocol=counts,
)
LATER = {"weights", "tensor_parallel", "recipe", "oldest_protocol"}
INFO = WorkerInfo(
    WorkerRef("w", "1"), Role.LOCAL, "h:1", "m", b"\x01", KvLayout(1, 1, 8, 16, "float32"), 64, 4, 1, "tcp", "", 1, 9
)


@given(info=infos)
def test_what_is_written_is_read(info: WorkerInfo) -> None:
    assert decode(encode(info)) == info


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(encode(INFO)) | fields).encode()


def test_fields_of_a_newer_program_are_ignored() -> None:
    layout = json.loads(encode(INFO))["layout"] | {"scales": 4}
    assert decode(changed(zone="eu-1", layout=layout)) == INFO


def test_a_lease_of_a_program_that_did_not_know_of_descriptors_is_read() -> None:
    fields = {name: value for name, value in json.loads(encode(INFO)).items() if name not in LATER}
    del fields["layout"]["scale_bytes"]
    assert decode(json.dumps(fields).encode()) == INFO


@pytest.mark.parametrize("field", sorted(json.loads(encode(INFO)).keys() - LATER))
def test_every_other_field_is_needed(field: str) -> None:
    fields = json.loads(encode(INFO))
    del fields[field]
    with pytest.raises(InvalidRequest, match=field):
        decode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"\xff",
        b"null",
        changed(version=2),
        changed(role="conductor"),
        changed(pid="9"),
        changed(pid=True),
        changed(pid=1.5),
        changed(address=1),
        changed(model_digest="xy"),
        changed(layout=[]),
        changed(layout={"layers": 1, "kv_heads": 1, "head_dim": 8, "block_tokens": 16, "dtype": "int3"}),
    ],
)
def test_what_cannot_be_read_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(record)
