"""Choosing workers: a pure function from request, fleet and prefix hits to a route and its reasons.

Longest expected prefix against load, in expected milliseconds. Costs of the prefill and the decode side are
independent of each other, so the best pair is the best of each side within a group that can exchange pages, unless
these two are only just being introduced.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.fleet import Role, WorkerRef
from headrace.core.layout import KvLayout, difference
from headrace.core.route import Candidate, Route
from headrace.router.policy import Disaggregation, Policy
from headrace.router.view import Ask, WorkerView

_NAMED_BARS = 4


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No worker can take the request now. served: some could once they have room, so waiting helps."""

    reason: str
    retry_after_s: float
    served: bool


@dataclass(frozen=True, slots=True)
class _Weighed:
    """One worker's share in any route. absent: why it cannot serve the request at all; full: why not now.

    fit: pages can move between two workers if and only if this is equal; else `_apart` says why not.
    """

    view: WorkerView
    fit: tuple[tuple[bytes, KvLayout], str]
    cached: int
    uncached: int
    prefill_ms: float
    decode_ms: float
    local_ms: float
    absent: str
    full: str

    @property
    def ref(self) -> WorkerRef:
        return self.view.state.info.ref

    @property
    def role(self) -> Role:
        return self.view.state.info.role

    def order(self, cost_ms: float) -> tuple[float, int, WorkerRef]:
        return cost_ms, self.view.running + self.view.state.load.waiting, self.ref


@dataclass(frozen=True, slots=True)
class _Option:
    """prefill is None for a local request. cold_ms: what it costs that the two do not know each other yet."""

    decode: _Weighed
    prefill: _Weighed | None
    cold_ms: float = 0.0

    @property
    def order(self) -> tuple[float, int, tuple[WorkerRef, ...]]:
        legs = (self.decode,) if self.prefill is None else (self.prefill, self.decode)
        cost = self.decode.local_ms if self.prefill is None else self.prefill.prefill_ms + self.decode.decode_ms
        return cost + self.cold_ms, sum(leg.order(0.0)[1] for leg in legs), tuple(leg.ref for leg in legs)


def choose(ask: Ask, fleet: Sequence[WorkerView], hits: Mapping[WorkerRef, int], policy: Policy) -> Route | NoRoute:
    """The cheapest route that is possible now.

    hits: leading blocks (of BLOCK_TOKENS) of the request that each worker is believed to hold.
    """
    weighed = [
        _weigh(view, ask, hits.get(view.state.info.ref, 0), policy)
        for view in fleet
        if view.state.info.model == ask.model
    ]
    option = _pick([worker for worker in weighed if not worker.absent and not worker.full], weighed, policy)
    if option is None:
        return _no_route(ask, weighed, policy)
    return _route(option, weighed, policy)


def _weigh(view: WorkerView, ask: Ask, hit_blocks: int, policy: Policy) -> _Weighed:
    info = view.state.info
    # Even a whole hit leaves one token to compute, so its block is computed.
    cached = min(hit_blocks, max(ask.tokens - 1, 0) // BLOCK_TOKENS) * BLOCK_TOKENS
    uncached = ask.tokens - cached
    # A transfer fills whole pages: a hit that ends inside one is of no use to it.
    page = info.layout.block_tokens
    resident = cached // page * page
    avoided = policy.avoid_ms if view.state.info.ref in ask.avoided else 0.0
    load_ms = view.running * policy.running_ms + view.state.load.waiting * policy.waiting_ms + avoided
    prefill_ms = (view.inflight.uncomputed_tokens + uncached) * policy.prefill_ms_per_token + load_ms
    return _Weighed(
        view=view,
        fit=(info.kv.fit, info.link),
        cached=cached,
        uncached=uncached,
        prefill_ms=prefill_ms,
        decode_ms=(ask.tokens - resident) * policy.transfer_ms_per_token + load_ms,
        local_ms=prefill_ms,
        absent=_absent(view, ask),
        full=_full(view),
    )


def _needed(view: WorkerView, ask: Ask) -> int:
    return ask.tokens + 1 if view.state.info.role is Role.PREFILL else ask.total_tokens


def _absent(view: WorkerView, ask: Ask) -> str:
    if not view.state.attached:
        return "is not attached"
    if view.state.draining:
        return "is draining"
    if view.state.load.unready:
        return f"is not ready: {view.state.load.unready}"
    if view.state.info.ref in ask.excluded:
        return "was lost by this request"
    if _needed(view, ask) > view.max_tokens:
        return f"holds {view.max_tokens} tokens of {_needed(view, ask)}"
    return ""


def _full(view: WorkerView) -> str:
    if view.cooling:
        return "lately answered busy"
    return "" if view.credits else "has no dispatch credit"


def _pick(able: Sequence[_Weighed], fleet: Sequence[_Weighed], policy: Policy) -> _Option | None:
    """The best option among the able; the whole fleet says whether `always` has a prefill worker to wait for."""
    pair = _best(_pairs(able, policy))
    alone = _best(_Option(worker, None) for worker in able if worker.role is not Role.PREFILL)
    match policy.disaggregation:
        case Disaggregation.NEVER:
            return alone
        case Disaggregation.ALWAYS:
            roles = {worker.role for worker in fleet}
            return pair if {Role.PREFILL, Role.DECODE} <= roles else alone
        case Disaggregation.AUTO:
            few = alone is not None and alone.decode.uncached <= policy.auto_local_tokens
            return alone if few or pair is None else pair


def _pairs(able: Sequence[_Weighed], policy: Policy) -> Iterable[_Option]:
    """For each group that can exchange pages, its best prefill with its best decode worker; all its pairs, if these two
    do not know each other yet."""
    for fit in dict.fromkeys(worker.fit for worker in able):
        group = [worker for worker in able if worker.fit == fit]
        prefills = [worker for worker in group if worker.role is Role.PREFILL]
        decodes = [worker for worker in group if worker.role is Role.DECODE]
        if prefills and decodes:
            prefill = min(prefills, key=lambda worker: worker.order(worker.prefill_ms))
            decode = min(decodes, key=lambda worker: worker.order(worker.decode_ms))
            known = decode.ref not in prefill.view.new_to
            for one, other in [(prefill, decode)] if known else product(prefills, decodes):
                yield _Option(other, one, policy.cold_ms if other.ref in one.view.new_to else 0.0)


def _best(options: Iterable[_Option]) -> _Option | None:
    return min(options, key=lambda option: option.order, default=None)


def _route(option: _Option, weighed: Sequence[_Weighed], policy: Policy) -> Route:
    first = option.prefill or option.decode
    chosen = {option.decode.ref, first.ref}
    total = first.cached + first.uncached
    where = f"prefill on {first.ref}, decode on {option.decode.ref}" if option.prefill else f"local on {first.ref}"
    return Route(
        decode=option.decode.ref,
        prefill=None if option.prefill is None else option.prefill.ref,
        cached_tokens=first.cached,
        expected_ttft_ms=first.prefill_ms,
        candidates=tuple(_candidate(worker, option, worker.ref in chosen) for worker in weighed),
        reasons=(
            f"disaggregation is {policy.disaggregation.value}",
            f"{where}: {first.cached} of {total} tokens expected in its cache, lowest expected cost",
            *_unpaired(option, weighed),
        ),
    )


def _unpaired(option: _Option, weighed: Sequence[_Weighed]) -> tuple[str, ...]:
    """Why a local request had no pair to weigh against, where the fleet has both roles and none that fit."""
    if option.prefill is not None:
        return ()
    prefill, decode = ({one.fit for one in weighed if one.role is role} for role in (Role.PREFILL, Role.DECODE))
    apart = "" if prefill & decode else _apart(weighed)
    return (f"no pair could have taken it: {apart}",) if apart else ()


def _candidate(worker: _Weighed, option: _Option, chosen: bool) -> Candidate:
    local_score = worker.local_ms if option.prefill is None else worker.decode_ms
    score = worker.prefill_ms if worker.role is Role.PREFILL else local_score
    bar = worker.absent or worker.full
    state = worker.view.state
    return Candidate(
        worker=worker.ref,
        role=worker.role,
        cached_tokens=worker.cached,
        running=state.load.running,
        waiting=state.load.waiting,
        credits=worker.view.credits,
        score=score,
        chosen=chosen,
        why=_why(worker, bar, chosen),
    )


def _why(worker: _Weighed, bar: str, chosen: bool) -> str:
    if bar:
        return bar
    held = f"holds {worker.cached} of {worker.cached + worker.uncached} tokens"
    return f"{held}, chosen" if chosen else f"{held}, costs more or is not needed"


def _no_route(ask: Ask, weighed: Sequence[_Weighed], policy: Policy) -> NoRoute:
    served = _pick([worker for worker in weighed if not worker.absent], weighed, policy) is not None
    if not weighed:
        return NoRoute(f"No worker serves {ask.model}.", policy.retry_after_s, served=False)
    bars = [f"{worker.ref} ({worker.role.value}) {worker.absent or worker.full}" for worker in weighed if _bar(worker)]
    missing = _missing_role(weighed, policy)
    named = "; ".join(bars[:_NAMED_BARS]) or missing
    more = f"; and {len(bars) - _NAMED_BARS} more" if len(bars) > _NAMED_BARS else ""
    state = "Every worker that could take the request is busy" if served else "No worker can take the request"
    return NoRoute(f"{state}: {named}{more}.", policy.retry_after_s, served)


def _bar(worker: _Weighed) -> str:
    return worker.absent or worker.full


def _missing_role(weighed: Sequence[_Weighed], policy: Policy) -> str:
    roles = {worker.role for worker in weighed}
    if not roles & {Role.DECODE, Role.LOCAL}:
        return "there is no decode or local worker"
    apart = _apart(weighed) or "there is none"
    return f"no prefill and decode worker can exchange pages (disaggregation {policy.disaggregation.value}): {apart}"


def _apart(weighed: Sequence[_Weighed]) -> str:
    """What keeps the first prefill and the first decode worker apart; "" if there are not both, or nothing does."""
    first = {role: next((worker for worker in weighed if worker.role is role), None) for role in Role}
    prefill, decode = first[Role.PREFILL], first[Role.DECODE]
    if prefill is None or decode is None:
        return ""
    here, there = prefill.view.state.info, decode.view.state.info
    links = f"their links are {here.link} and {there.link}" if here.link != there.link else ""
    differs = difference(here.kv, there.kv) or links
    return f"{here.ref} and {there.ref} do not fit: {differs}" if differs else ""
