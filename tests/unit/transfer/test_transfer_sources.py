"""Who was heard of last, for as long as anybody waits for it."""

from headrace.core.fleet import WorkerRef
from headrace.transfer.peers import NEVER
from headrace.transfer.sources import Sources

ONE, OTHER = WorkerRef("prefill-0", "a1"), WorkerRef("prefill-0", "a2")


def test_transfers_of_one_life_of_a_worker_share_what_was_heard() -> None:
    sources = Sources()
    first, second, other = sources.of(ONE), sources.of(ONE), sources.of(OTHER)
    first.heard_at = 7.0
    assert (second.heard_at, other.heard_at) == (7.0, -NEVER)


def test_nothing_is_kept_of_who_is_not_waited_for() -> None:
    sources = Sources()
    first = sources.of(ONE)
    second = sources.of(ONE)
    first.heard_at = 7.0
    del first
    assert sources.of(ONE).heard_at == 7.0
    del second
    assert sources.of(ONE).heard_at == -NEVER
    assert not sources._known
