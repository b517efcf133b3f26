"""Whether a prefix is fetched from another worker's cache, which one's, and what the route says of it."""

from dataclasses import replace
from typing import Any

import pytest
from scripted_worker import LAYOUT, MODEL, worker_info

from headrace.core.fleet import Load, Role, WorkerInfo, WorkerState
from headrace.core.route import Route
from headrace.router.choose import choose
from headrace.router.policy import Disaggregation, Policy
from headrace.router.pull import pulling
from headrace.router.view import Ask, WorkerView

P, D, L = Role.PREFILL, Role.DECODE, Role.LOCAL
TOKENS = 165
POLICY = Policy(pull_ms=0.0)
BYTES_A_TOKEN = LAYOUT.block_bytes / LAYOUT.block_tokens
READS_S = 100.0


def view(info: WorkerInfo, *, draining: bool = False, attached: bool = True, **load: Any) -> WorkerView:
    told = Load(**{"credits": 4, "free_blocks": 64, **load})
    return WorkerView(WorkerState(info, told, attached=attached, draining=draining))


def reader(role: Role = L, **load: Any) -> WorkerView:
    """Empty, and takes 10 ms a token."""
    return view(worker_info("reader", role), **{"prefill_tokens_s": READS_S, **load})


def holder(name: str = "holder", role: Role = L, *, ratio: float = 0.5, **more: Any) -> WorkerView:
    """Busy. ratio: what it takes to fetch a token, against computing it."""
    changes = {key: more.pop(key) for key in ("layout", "model_digest", "link") if key in more}
    speed = BYTES_A_TOKEN * READS_S / ratio
    return view(worker_info(name, role, **changes), **{"credits": 0, "transfer_bytes_s": speed, **more})


def routed(*fleet: WorkerView, hits: dict[str, int], policy: Policy = POLICY, shun: str = "", **ask: Any) -> Route:
    asked = Ask(MODEL, TOKENS, TOKENS + 40, **ask)
    by_ref = {one.state.info.ref: hits.get(one.state.info.ref.worker, 0) for one in fleet}
    route = choose(asked, fleet, by_ref, policy)
    assert isinstance(route, Route)
    shunned = [one.state.info.ref for one in fleet if one.state.info.ref.worker == shun]
    return pulling(asked, route, fleet, by_ref, policy, shunned=shunned)


def test_what_is_cheaper_to_fetch_is_fetched() -> None:
    route = routed(reader(), holder(), hits={"holder": 10})
    assert route.pull is not None
    assert (route.decode.worker, route.pull.holder.worker, route.pull.tokens) == ("reader", "holder", 160)
    assert (route.pull.fetch_ms, route.pull.compute_ms) == pytest.approx((800.0, 1600.0))
    assert route.cached_tokens == 160
    assert "fetches 160 tokens from holder" in route.reasons[-1]
    assert "800 ms to fetch what is missing, 1600 ms to compute it" in route.reasons[-1]


def test_what_is_cheaper_to_compute_is_computed() -> None:
    route = routed(reader(), holder(ratio=1.1), hits={"holder": 10})
    assert route.pull is None
    assert route.cached_tokens == 0
    assert "holder@1 holds 160 tokens, which are not fetched: 1760 ms to fetch" in route.reasons[-1]


def test_what_a_pull_takes_beside_its_bytes_counts() -> None:
    fleet = (reader(), holder())
    assert routed(*fleet, hits={"holder": 1}, policy=replace(POLICY, pull_ms=79.0)).pull is not None
    assert routed(*fleet, hits={"holder": 1}, policy=replace(POLICY, pull_ms=81.0)).pull is None


def test_a_reader_of_an_older_version_is_sent_no_job_that_it_does_not_know() -> None:
    """It would end the stream, and with it every job that the router has there."""
    older = view(worker_info("reader", L, protocol=2), prefill_tokens_s=READS_S)
    route = routed(older, holder(), hits={"holder": 10})
    assert route.pull is None
    assert "reader@1 is of a version that cannot import" in route.reasons[-1]
    assert routed(reader(), view(worker_info("holder", L, protocol=2), credits=0), hits={"holder": 10}).pull is not None


def test_only_what_is_missing_counts() -> None:
    """It has eight blocks: two are fetched or computed."""
    route = routed(reader(), holder(), hits={"reader": 8, "holder": 10})
    assert route.pull is not None
    assert route.pull.tokens == 160
    assert (route.pull.fetch_ms, route.pull.compute_ms) == pytest.approx((160.0, 320.0))


def test_nobody_is_asked_for_what_the_reader_has() -> None:
    for hits in ({"reader": 10, "holder": 10}, {"reader": 8, "holder": 7}, {}):
        route = routed(reader(), holder(), hits=hits)
        assert route.pull is None
        assert len(route.reasons) == 2


def test_whoever_saves_most_is_asked() -> None:
    near, far = holder("near", ratio=0.2), holder("far", ratio=0.9)
    assert _asked(routed(reader(), near, far, hits={"near": 6, "far": 10})) == "near"
    assert _asked(routed(reader(), near, far, hits={"near": 6, "far": 6})) == "near"
    assert _asked(routed(reader(), near, holder("far", ratio=0.3), hits={"near": 6, "far": 10})) == "far"


def test_one_token_is_left_to_compute() -> None:
    """A prompt of ten whole blocks and five tokens; of one that is all whole blocks the last one is computed."""
    fleet, hits = (reader(), holder()), {"holder": 10}
    by_ref = {one.state.info.ref: hits.get(one.state.info.ref.worker, 0) for one in fleet}
    ask = Ask(MODEL, 160, 200)
    route = choose(ask, fleet, by_ref, POLICY)
    assert isinstance(route, Route)
    pull = pulling(ask, route, fleet, by_ref, POLICY).pull
    assert pull is not None
    assert pull.tokens == 144


def test_whole_pages_of_both_ends_move() -> None:
    thick = replace(LAYOUT, block_tokens=48)
    speed = {"transfer_bytes_s": BYTES_A_TOKEN * READS_S * 2}
    route = routed(reader(), holder(layout=thick, **speed), hits={"holder": 9})
    assert route.pull is not None
    assert route.pull.tokens == 144
    assert routed(reader(), holder(layout=thick, **speed), hits={"holder": 2}).pull is None


def test_a_prefill_worker_fetches_for_a_pair() -> None:
    """From whoever has it: a decode worker too."""
    fleet = (reader(P), view(worker_info("other", D)), holder("holder", D))
    route = routed(*fleet, hits={"holder": 10})
    assert (route.reader.worker, route.decode.worker) == ("reader", "other")
    assert _asked(route) == "holder"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"draining": True}, "it is draining"),
        ({"attached": False}, "it is not attached"),
        ({"unready": "its engine stands still"}, "it is not ready: its engine stands still"),
        ({"crowded": ("r9",)}, "it has no page to spare"),
        ({"free_blocks": 0}, "it has no page to spare"),
    ],
)
def test_who_would_refuse_is_not_asked(changes: dict[str, Any], why: str) -> None:
    route = routed(reader(), holder(**changes), hits={"holder": 10})
    assert route.pull is None
    assert route.reasons[-1] == f"holder@1 holds 160 tokens, which are not fetched: {why}"


def test_who_failed_is_not_asked() -> None:
    ref = worker_info("holder", L).ref
    for ask in ({"excluded": frozenset({ref})}, {"avoided": frozenset({ref})}):
        assert "it lately failed" in routed(reader(), holder(), hits={"holder": 10}, **ask).reasons[-1]
    assert "it lately failed" in routed(reader(), holder(), hits={"holder": 10}, shun="holder").reasons[-1]
    assert "reader@1 lately failed" in routed(reader(), holder(), hits={"holder": 10}, shun="reader").reasons[-1]
    second = holder("second", ratio=0.9)
    assert _asked(routed(reader(), holder(), second, hits={"holder": 10, "second": 4}, shun="holder")) == "second"


@pytest.mark.parametrize(
    "changes",
    [{"layout": replace(LAYOUT, dtype="bfloat16")}, {"model_digest": b"e" * 16}, {"link": "other"}],
)
def test_pages_that_do_not_fit_are_none(changes: dict[str, Any]) -> None:
    route = routed(reader(), holder(**changes), hits={"holder": 10})
    assert route.pull is None
    assert len(route.reasons) == 2


def test_who_has_not_measured_fetches_nothing() -> None:
    route = routed(reader(prefill_tokens_s=0.0), holder(), hits={"holder": 10})
    assert route.pull is None
    assert "reader@1 has not measured yet how fast it computes" in route.reasons[-1]


def test_who_has_no_pages_fetches_nothing() -> None:
    route = routed(reader(free_blocks=11), holder(), hits={"holder": 10})
    assert "reader@1 has no pages to take them" in route.reasons[-1]
    assert routed(reader(free_blocks=12), holder(), hits={"holder": 10}).pull is not None


def test_a_link_that_nobody_has_measured_is_guessed() -> None:
    """As for pages that go along with a request: without a first pull nobody would ever measure it."""
    fleet = (reader(), holder(transfer_bytes_s=0.0))
    slow = replace(POLICY, transfer_ms_per_token=10.1)
    assert routed(*fleet, hits={"holder": 10}).pull is not None
    assert routed(*fleet, hits={"holder": 10}, policy=slow).pull is None


def test_it_can_be_turned_off() -> None:
    off = replace(POLICY, pull=False, disaggregation=Disaggregation.AUTO)
    route = routed(reader(), holder(), hits={"holder": 10}, policy=off)
    assert route.pull is None
    assert len(route.reasons) == 2


def _asked(route: Route) -> str:
    assert route.pull is not None
    return route.pull.holder.worker
