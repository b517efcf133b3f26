"""Which transfer a job had, for those who ask later."""

from headrace.core.jobs import JobKey
from headrace.worker.traces import Traces

A, B, C = (JobKey(name, 1) for name in "abc")


def test_a_trace_is_its_routers_and_the_last_one_counts() -> None:
    traces = Traces()
    traces.leave("one", A, b"1")
    traces.leave("two", A, b"2")
    assert (traces.find("one", A), traces.find("two", A), traces.find("one", B)) == (b"1", b"2", None)
    traces.leave("one", A, b"3")
    assert traces.find("one", A) == b"3"


def test_the_oldest_are_forgotten() -> None:
    traces = Traces(most=2)
    traces.leave("one", A, b"1")
    traces.leave("one", B, b"2")
    traces.leave("one", A, b"3")
    traces.leave("one", C, b"4")
    assert [traces.find("one", key) for key in (A, B, C)] == [b"3", None, b"4"]
