"""Everybody who called a peer is told what came of it, whatever the link does."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.link import Link, Receipt
from headrace.transfer.loopback import LoopbackLink, Switchboard
from headrace.transfer.meetings import Meetings


def refuse(_: Receipt) -> None:
    raise RuntimeError("The link is broken.")


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    """Nobody answers on it, and nothing can be taken back."""
    made = LoopbackLink(Switchboard())
    monkeypatch.setattr(made, "send", lambda *_: Receipt(refuse))
    return made


def teller(heard: list[str], name: str) -> Callable[[str, float], None]:
    return lambda reason, seconds: heard.append(f"{name}: {reason}")


def test_a_link_that_takes_nothing_back_leaves_no_caller_without_an_answer(link: Link) -> None:
    meetings, heard = Meetings(link, TransferMetrics(CollectorRegistry()), 2.0), list[str]()
    for name in ("a", "b"):
        meetings.begin("peer:1", teller(heard, name), 0.0)
    with pytest.raises(RuntimeError, match="broken"):
        meetings.step(2.0)
    assert heard == [f"{name}: peer:1 did not answer within 2 s" for name in ("a", "b")]
    assert meetings.due == float("inf")
