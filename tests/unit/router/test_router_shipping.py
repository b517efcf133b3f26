"""Whether pages are sent or computed again, and where to."""

from dataclasses import replace
from typing import Any

import pytest
from scripted_worker import LAYOUT, MODEL, worker_info

from headrace.core.fleet import Load, Role, WorkerInfo, WorkerState
from headrace.core.route import Route
from headrace.router.policy import Policy
from headrace.router.shipping import ship
from headrace.router.view import Ask, Inflight, WorkerView

P, D, L = Role.PREFILL, Role.DECODE, Role.LOCAL
TOKENS = 160
BYTES = TOKENS * LAYOUT.block_bytes / LAYOUT.block_tokens


def view(info: WorkerInfo, *, uncomputed: int = 0, draining: bool = False, **load: Any) -> WorkerView:
    state = WorkerState(info, Load(**{"credits": 4, **load}), attached=True, draining=draining)
    return WorkerView(state, Inflight(uncomputed_tokens=uncomputed))


OLD = worker_info("d1", D)


def shipped(*others: WorkerView, hits: dict[str, int] | None = None, **old: Any) -> Route | None:
    source = view(OLD, draining=True, **old)
    ask = Ask(MODEL, TOKENS, TOKENS + 40, excluded=frozenset({OLD.ref}))
    fleet = (source, *others)
    by_ref = {one.state.info.ref: (hits or {}).get(one.state.info.ref.worker, 0) for one in fleet}
    return ship(ask, source, fleet, by_ref, Policy())


def test_pages_go_where_they_fit() -> None:
    """Not to a prefill worker, not to one whose pages are others, not to one without a credit."""
    route = shipped(
        view(worker_info("p1", P)),
        view(worker_info("d2", D), credits=0),
        view(replace(worker_info("d3", D), layout=replace(LAYOUT, dtype="bfloat16"))),
        view(worker_info("d4", D, model_digest=b"e" * 16)),
        view(worker_info("d5", D, link="other")),
        view(worker_info("d6", D)),
    )
    assert route is not None
    assert (route.prefill, route.decode.worker) == (OLD.ref, "d6")
    assert "its pages come from d1" in route.reasons[0]


def test_there_may_be_nowhere_to_send_them() -> None:
    assert shipped(view(worker_info("p1", P))) is None
    assert shipped(view(worker_info("l1", L), credits=0)) is None


@pytest.mark.parametrize(("prefill_s", "transfer_s", "sent"), [(2.0, 1.0, True), (1.0, 2.0, False)])
def test_rates_decide(prefill_s: float, transfer_s: float, sent: bool) -> None:
    """What everything takes, at the rates that the workers report: sent if that is quicker."""
    local = view(worker_info("l1", L), prefill_tokens_s=TOKENS / prefill_s, transfer_bytes_s=BYTES / transfer_s)
    assert (shipped(local) is not None) is sent


def test_the_slower_end_says_how_fast_pages_travel() -> None:
    local = view(worker_info("l1", L), prefill_tokens_s=TOKENS, transfer_bytes_s=BYTES * 10)
    assert shipped(local, transfer_bytes_s=BYTES * 2) is not None
    assert shipped(local, transfer_bytes_s=BYTES / 2) is None


def test_ends_that_measured_nothing_are_taken_for_like_the_others() -> None:
    local = view(worker_info("l1", L), prefill_tokens_s=TOKENS)
    for speed, sent in ((2.0, True), (0.5, False)):
        other = view(worker_info("l2", L), transfer_bytes_s=BYTES * speed, credits=0)
        assert (shipped(local, other) is not None) is sent


def test_what_is_cached_there_is_not_sent_and_not_computed() -> None:
    local = view(worker_info("l1", L), prefill_tokens_s=TOKENS, transfer_bytes_s=BYTES * 0.9)
    assert shipped(local) is None
    # Nine of ten blocks are there either way, and the policy computes the last one.
    assert shipped(local, hits={"l1": 9}) is None
    # They are at the worker that would read the prompt, and not where the answer goes on.
    pair = (view(worker_info("p1", P), prefill_tokens_s=TOKENS), view(worker_info("d2", D), transfer_bytes_s=BYTES))
    assert shipped(*pair, hits={"p1": 9}) is not None


def test_who_computes_again_waits_behind_others() -> None:
    fast = {"prefill_tokens_s": TOKENS * 2.0, "transfer_bytes_s": BYTES}
    assert shipped(view(worker_info("l1", L), **fast)) is None
    assert shipped(view(worker_info("l1", L), uncomputed=4 * TOKENS, **fast)) is not None
