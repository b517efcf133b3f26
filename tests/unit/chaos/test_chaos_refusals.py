"""That a damaged frame was refused is read off the decode workers' counts, in the cases that have one."""

import httpx

from headrace.chaos.cells import FRAMES, Fault, Target, ci_subset, matrix
from headrace.chaos.members import Kind, Member
from headrace.chaos.refusals import must_be_refused, refused

PAGES = {
    9101: 'headrace_kv_units_refused_total{reason="secret"} 2\nheadrace_kv_units_refused_total{reason="checksum"} 1\n',
    9102: 'headrace_kv_units_refused_total{reason="secret"} 40\n',
    9103: 'headrace_kv_slabs{state="free"} 128\n',
}
MEMBERS = (
    Member("decode-0", Kind.DECODE, "127.0.0.1", 1, 9101),
    Member("prefill-0", Kind.PREFILL, "127.0.0.1", 1, 9102),
    Member("decode-1", Kind.DECODE, "127.0.0.1", 1, 9103),
    Member("decode-2", Kind.DECODE, "127.0.0.1", 1, 9104),
)


def answer(request: httpx.Request) -> httpx.Response:
    if request.url.port not in PAGES:
        raise httpx.ConnectError("nobody is there")
    return httpx.Response(200, text=PAGES[request.url.port])


async def test_all_reasons_of_all_decode_workers_that_answer_are_counted() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        assert await refused(client, MEMBERS) == 3


def test_a_frame_with_wrong_bytes_must_be_refused() -> None:
    meant = [cell for cell in matrix() if must_be_refused(cell)]
    assert {cell.fault for cell in meant} == {Fault.TRUNCATED, Fault.CORRUPTED, Fault.CORRUPTED_HEADER}
    assert {cell.target for cell in meant} == {Target.WIRE}
    assert {cell.moment for cell in meant} == set(FRAMES)
    assert any(cell.fault is Fault.CORRUPTED_HEADER for cell in ci_subset() if must_be_refused(cell))
