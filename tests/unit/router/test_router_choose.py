"""Choosing: properties over random fleets, and the cases that have names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_worker import MODEL, worker_info
from toy_cluster import ByteText

from headrace.core.fleet import Load, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.route import Route
from headrace.router.choose import NoRoute, choose
from headrace.router.models import ServedModel
from headrace.router.policy import Disaggregation, Policy
from headrace.router.ready import unready
from headrace.router.view import Ask, Inflight, WorkerView


def view(name: str, role: Role, *, attached: bool = True, draining: bool = False, **load: int) -> WorkerView:
    return view_of(worker_info(name, role), attached=attached, draining=draining, **load)


def view_of(info: WorkerInfo, *, attached: bool = True, draining: bool = False, **load: int) -> WorkerView:
    return WorkerView(WorkerState(info, Load(**{"credits": 4, **load}), attached, draining))


def laid_out(name: str, role: Role, **changes: object) -> WorkerInfo:
    info = worker_info(name, role)
    return replace(info, layout=replace(info.layout, **changes))  # type: ignore[arg-type]


P, D, L = Role.PREFILL, Role.DECODE, Role.LOCAL
STALLED = WorkerView(
    WorkerState(worker_info("d1", Role.DECODE), Load(credits=0, unready="its engine stands still"), attached=True)
)
ALWAYS = Policy()
AUTO = Policy(disaggregation=Disaggregation.AUTO)
NEVER = Policy(disaggregation=Disaggregation.NEVER)
ASK = Ask(MODEL, tokens=160, total_tokens=200)


@st.composite
def views(draw: st.DrawFn) -> tuple[WorkerView, ...]:
    fleet = []
    for number in range(draw(st.integers(0, 7))):
        info = worker_info(f"w{number}", draw(st.sampled_from(list(Role))))
        info = replace(
            info,
            model=draw(st.sampled_from([MODEL, MODEL, MODEL, "other"])),
            model_digest=draw(st.sampled_from([b"d" * 16, b"d" * 16, b"e" * 16])),
            link=draw(st.sampled_from(["ucx", "ucx", "tcp"])),
            max_model_len=draw(st.sampled_from([512, 512, 180, 100])),
        )
        load = Load(running=draw(st.integers(0, 5)), waiting=draw(st.integers(0, 2)), credits=draw(st.integers(0, 3)))
        state = WorkerState(
            info, load, draw(st.sampled_from([True, True, False])), draw(st.sampled_from([False] * 3 + [True]))
        )
        inflight = Inflight(draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(st.integers(0, 300)))
        fleet.append(WorkerView(state, inflight, draw(st.sampled_from([False] * 3 + [True]))))
    return tuple(fleet)


refs = st.integers(0, 6).map(lambda number: WorkerRef(f"w{number}", "1"))
asks = st.builds(
    Ask,
    model=st.just(MODEL),
    tokens=st.integers(1, 160),
    total_tokens=st.integers(161, 400),
    excluded=st.frozensets(refs, max_size=3),
    avoided=st.frozensets(refs, max_size=3),
)
hits = st.dictionaries(refs, st.integers(0, 12))
policies = st.sampled_from([ALWAYS, AUTO, NEVER])


@given(asks, views(), hits, policies)
def test_only_those_that_can_are_chosen(
    ask: Ask, fleet: tuple[WorkerView, ...], held: dict[WorkerRef, int], policy: Policy
) -> None:
    route = choose(ask, fleet, held, policy)
    if isinstance(route, NoRoute):
        assert route.reason
        assert route.retry_after_s > 0
        return
    by_ref = {one.state.info.ref: one for one in fleet}
    legs = [route.decode] if route.prefill is None else [route.decode, route.prefill]
    for ref in legs:
        chosen = by_ref[ref]
        assert chosen.state.attached
        assert not chosen.state.draining
        assert not chosen.cooling
        assert chosen.credits > 0
        assert chosen.state.info.model == ask.model
        assert ref not in ask.excluded
    roles = [by_ref[ref].state.info.role for ref in legs]
    assert roles == [D, P] if route.prefill else roles[0] in {D, L}
    assert len({(by_ref[ref].state.info.model_digest, by_ref[ref].state.info.link) for ref in legs}) == 1
    assert by_ref[route.decode].max_tokens >= ask.total_tokens
    candidates = {candidate.worker: candidate for candidate in route.candidates}
    assert set(candidates) == {one.state.info.ref for one in fleet if one.state.info.model == ask.model}
    assert {ref for ref, candidate in candidates.items() if candidate.chosen} == set(legs)


@given(asks, views(), hits, policies)
def test_the_same_question_has_the_same_answer_in_any_order(
    ask: Ask, fleet: tuple[WorkerView, ...], held: dict[WorkerRef, int], policy: Policy
) -> None:
    one, other = choose(ask, fleet, held, policy), choose(ask, fleet[::-1], held, policy)
    assert type(one) is type(other)
    if isinstance(one, Route) and isinstance(other, Route):
        assert (one.decode, one.prefill, one.cached_tokens) == (other.decode, other.prefill, other.cached_tokens)


@given(asks, views(), hits, policies, st.integers(1, 6))
def test_more_cached_tokens_never_lose_a_worker_its_request(
    ask: Ask, fleet: tuple[WorkerView, ...], held: dict[WorkerRef, int], policy: Policy, more: int
) -> None:
    route = choose(ask, fleet, held, policy)
    if isinstance(route, NoRoute):
        return
    favoured = route.prefill or route.decode
    again = choose(ask, fleet, {**held, favoured: held.get(favoured, 0) + more}, policy)
    assert isinstance(again, Route)
    assert favoured in {again.prefill, again.decode}
    assert again.cached_tokens >= route.cached_tokens


def chosen(route: Route | NoRoute) -> tuple[str | None, str]:
    assert isinstance(route, Route), route
    return (None if route.prefill is None else route.prefill.worker), route.decode.worker


def test_the_longest_prefix_wins_over_a_little_load() -> None:
    fleet = (view("p1", P), view("p2", P, running=2), view("d1", D))
    assert chosen(choose(ASK, fleet, {WorkerRef("p2", "1"): 9}, ALWAYS)) == ("p2", "d1")


def test_a_long_queue_wins_over_a_prefix() -> None:
    busy = replace(view("p1", P), inflight=Inflight(jobs=2, uncomputed_tokens=800))
    fleet = (busy, view("p2", P), view("d1", D))
    assert chosen(choose(ASK, fleet, {WorkerRef("p1", "1"): 9}, ALWAYS)) == ("p2", "d1")


def test_ties_go_to_the_least_loaded_then_by_name() -> None:
    fleet = (view("l2", L), view("l1", L), view("l3", L))
    assert chosen(choose(ASK, fleet, {}, ALWAYS)) == (None, "l1")


def test_a_whole_hit_still_computes_the_last_block() -> None:
    route = choose(ASK, (view("l1", L),), {WorkerRef("l1", "1"): 10}, ALWAYS)
    assert isinstance(route, Route)
    assert route.cached_tokens == 144


def test_avoided_workers_serve_only_when_nothing_else_is_left() -> None:
    ask = replace(ASK, avoided=frozenset({WorkerRef("l1", "1")}))
    assert chosen(choose(ask, (view("l1", L), view("l2", L, running=4)), {}, ALWAYS)) == (None, "l2")
    assert chosen(choose(ask, (view("l1", L),), {}, ALWAYS)) == (None, "l1")


@pytest.mark.parametrize(
    ("fleet", "served", "says"),
    [
        ((), False, "No worker serves toy"),
        ((view("p1", P),), False, "no decode or local worker"),
        ((view("p1", P, attached=False), view("d1", D)), False, "p1@1 (prefill) is not attached"),
        ((view("p1", P), view("d1", D, credits=0)), True, "d1@1 (decode) has no dispatch credit"),
        ((view("p1", P), view("d1", D, draining=True)), False, "is draining"),
        ((view("p1", P), STALLED), False, "d1@1 (decode) is not ready: its engine stands still"),
        (
            (view("p1", P), view_of(replace(worker_info("d1", D), link="tcp"))),
            False,
            "exchange pages (disaggregation always): p1@1 and d1@1 do not fit: their links are loopback and tcp",
        ),
        (
            (view("p1", P), view_of(laid_out("d1", D, dtype="bfloat16"))),
            False,
            "p1@1 and d1@1 do not fit: their KV pages are of float32 and bfloat16",
        ),
        (
            (view("p1", P), view_of(replace(worker_info("d1", D), model_digest=b"n" * 16))),
            False,
            "p1@1 and d1@1 do not fit: their model digests are 646464646464 and 6e6e6e6e6e6e",
        ),
        ((view_of(replace(worker_info("l1", L), num_blocks=12)),), False, "holds 192 tokens of 200"),
    ],
)
def test_no_route_says_why(fleet: tuple[WorkerView, ...], served: bool, says: str) -> None:
    refusal = choose(ASK, fleet, {}, ALWAYS)
    assert isinstance(refusal, NoRoute)
    assert refusal.served is served
    assert says in refusal.reason


def test_a_rolled_out_model_never_mixes_with_the_old_one() -> None:
    new = b"n" * 16
    fleet = (
        view("p1", P),
        view_of(replace(worker_info("p2", P), model_digest=new)),
        view_of(replace(worker_info("d2", D), model_digest=new)),
    )
    assert chosen(choose(ASK, fleet, {}, ALWAYS)) == ("p2", "d2")


def test_workers_with_pages_of_different_sizes_are_a_pair() -> None:
    fleet = (view_of(laid_out("p1", P, block_tokens=48)), view_of(laid_out("d1", D, block_tokens=32)))
    assert chosen(choose(ASK, fleet, {}, ALWAYS)) == ("p1", "d1")
    scaled = tuple(
        view_of(laid_out(name, role, dtype="int8", scale_bytes=4, block_tokens=size))
        for name, role, size in (("p1", P, 48), ("d1", D, 32))
    )
    refusal = choose(ASK, scaled, {}, ALWAYS)
    assert isinstance(refusal, NoRoute)
    assert "their pages have 48 and 32 tokens, and pages with scales are not cut" in refusal.reason


def test_what_a_decode_worker_holds_counts_in_its_whole_pages() -> None:
    """A hit of 48 tokens is one page of 32: the other worker, with more of it in pages of 16, has less to receive."""
    fleet = (view("p1", P), view_of(laid_out("d1", D, block_tokens=32)), view("d2", D))
    held = {WorkerRef("d1", "1"): 3, WorkerRef("d2", "1"): 3}
    assert chosen(choose(ASK, fleet, held, ALWAYS)) == ("p1", "d2")
    assert chosen(choose(ASK, fleet, {**held, WorkerRef("d1", "1"): 4}, ALWAYS)) == ("p1", "d1")


def test_a_local_route_says_why_no_pair_was_weighed() -> None:
    fleet = (view("p1", P), view_of(laid_out("d1", D, dtype="bfloat16")))
    route = choose(ASK, fleet, {}, AUTO)
    assert isinstance(route, Route)
    assert route.prefill is None
    assert "no pair could have taken it: p1@1 and d1@1 do not fit" in route.reasons[-1]
    paired = choose(ASK, (view("p1", P), view("d1", D)), {}, NEVER)
    assert isinstance(paired, Route)
    assert not any("no pair" in reason for reason in paired.reasons)


def test_auto_prefills_few_tokens_where_they_decode() -> None:
    fleet = (view("p1", P), view("d1", D))
    few = replace(ASK, tokens=64)
    assert chosen(choose(few, fleet, {}, AUTO)) == (None, "d1")
    assert chosen(choose(ASK, fleet, {}, AUTO)) == ("p1", "d1")
    assert chosen(choose(ASK, fleet, {WorkerRef("d1", "1"): 9}, AUTO)) == (None, "d1")


def test_ready_looks_past_a_full_fleet_but_not_past_an_absent_one() -> None:
    models = [ServedModel(MODEL, ByteText(), 512, 0)]
    full = (view("p1", P, credits=0), view("d1", D, credits=0))
    assert unready(models, full, (), ALWAYS) == ""
    assert "d1" in unready(models, (view("p1", P), view("d1", D, attached=False)), (), ALWAYS)
    assert "its engine stands still" in unready(models, (view("p1", P), STALLED), (), ALWAYS)
