"""Which jobs a crowded worker names, and from when on."""

from headrace.core.jobs import JobKey
from headrace.worker.crowding import Crowding

A, B, C = (JobKey(name, 1) for name in "abc")


def test_jobs_are_named_once_some_have_waited_for_long() -> None:
    crowding = Crowding(after_s=1.0)
    crowding.see((A,), 10.0)
    assert crowding.crowded(10.9) == ()
    assert crowding.crowded(11.0) == ("a",)


def test_it_lasts_while_anybody_waits_whoever_it_is() -> None:
    """The one that is first served again is the last to be named."""
    crowding = Crowding(after_s=1.0)
    crowding.see((A,), 10.0)
    crowding.see((B, C), 10.5)
    assert crowding.crowded(11.2) == ("c", "b")


def test_when_nobody_waited_it_begins_anew() -> None:
    crowding = Crowding(after_s=1.0)
    crowding.see((A,), 10.0)
    crowding.see((), 10.5)
    assert crowding.crowded(12.0) == ()
    crowding.see((A,), 12.0)
    assert crowding.crowded(12.9) == ()
    assert crowding.crowded(13.1) == ("a",)
