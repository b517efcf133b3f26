"""Pulling: whether the worker that is to read a prompt fetches a prefix of it from another's cache. Pure.

Milliseconds are compared, by the rates that the workers report: bytes that the reader lacks against tokens that it
would compute. While the reader has measured nothing there is nothing to compare, so nothing is fetched.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from math import lcm

from headrace.core.blocks import BLOCK_TOKENS, blocks_for
from headrace.core.fleet import WorkerRef
from headrace.core.route import Pull, Route
from headrace.router.policy import Policy
from headrace.router.shipping import Costs, fit
from headrace.router.view import Ask, WorkerView
from headrace.rpc.contracts import IMPORTS_SINCE


def pulling(
    ask: Ask,
    route: Route,
    fleet: Sequence[WorkerView],
    hits: Mapping[WorkerRef, int],
    policy: Policy,
    *,
    shunned: Container[WorkerRef] = (),
) -> Route:
    """`route` with the pull that makes it quickest, or with the reason why there is none though another worker holds
    more of the prompt. shunned: workers at which a pull lately failed."""
    if not policy.pull:
        return route
    reader = next(view for view in fleet if view.state.info.ref == route.reader)
    held = {view: tokens for view in fleet if (tokens := _gain(ask, route, reader, view, hits))}
    if not held:
        return route
    able = {view: tokens for view, tokens in held.items() if not _bar(view, ask, shunned)}
    if not able:
        longest = max(held, key=lambda view: held[view])
        return _not(route, longest, held[longest], f"it {_bar(longest, ask, shunned)}")
    longest = max(able, key=lambda view: able[view])
    if bar := _unfit(reader, ask, shunned):
        return _not(route, longest, able[longest], f"{reader.state.info.ref} {bar}")
    pull = _quickest(_pulls(route, reader, able, Costs(fleet, policy), policy))
    if pull.fetch_ms >= pull.compute_ms:
        return _not(route, longest, able[longest], _times(pull))
    return _with(route, pull, policy)


def _gain(ask: Ask, route: Route, reader: WorkerView, view: WorkerView, hits: Mapping[WorkerRef, int]) -> int:
    """The tokens of the prefix that `view` could bring, 0 where that is no more than the reader has.

    Whole pages at both ends move, and at least one token is left to compute.
    """
    if view is reader or not fit(view, reader):
        return 0
    whole = lcm(view.state.info.layout.block_tokens, reader.state.info.layout.block_tokens)
    tokens = min(hits.get(view.state.info.ref, 0) * BLOCK_TOKENS, ask.tokens - 1) // whole * whole
    return tokens if tokens > route.cached_tokens else 0


def _bar(holder: WorkerView, ask: Ask, shunned: Container[WorkerRef]) -> str:
    """Why nothing is fetched from it, as the end of a sentence; "" for one that would bring what it has."""
    state, ref = holder.state, holder.state.info.ref
    if not state.attached:
        return "is not attached"
    if state.draining:
        return "is draining"
    if state.load.unready:
        return f"is not ready: {state.load.unready}"
    if ref in ask.excluded or ref in ask.avoided or ref in shunned:
        return "lately failed"
    if state.load.crowded or not state.load.free_blocks:
        return "has no page to spare"
    return ""


def _unfit(reader: WorkerView, ask: Ask, shunned: Container[WorkerRef]) -> str:
    """Why the reader fetches nothing, as the end of a sentence; "" if it could."""
    if reader.state.info.ref in shunned:
        return "lately failed"
    if reader.state.info.protocol < IMPORTS_SINCE:
        return "is of a version that cannot import"
    if not reader.state.load.prefill_tokens_s:
        return "has not measured yet how fast it computes"
    if reader.state.load.free_blocks <= blocks_for(ask.tokens, reader.state.info.layout.block_tokens):
        return "has no pages to take them"
    return ""


def _pulls(
    route: Route, reader: WorkerView, able: Mapping[WorkerView, int], costs: Costs, policy: Policy
) -> Iterable[Pull]:
    ref, page = reader.state.info.ref, reader.state.info.layout.block_tokens
    # Pages that the reader has come from nowhere; what it has of one that is not whole comes along.
    resident = route.cached_tokens // page * page
    for holder, tokens in able.items():
        fetch_ms = policy.pull_ms + 1000 * costs.sending_s(tokens - resident, holder.state.info.ref, ref)
        compute_ms = 1000 * (tokens - route.cached_tokens) / reader.state.load.prefill_tokens_s
        yield Pull(holder.state.info.ref, tokens, fetch_ms, compute_ms)


def _quickest(pulls: Iterable[Pull]) -> Pull:
    return min(pulls, key=lambda pull: (pull.fetch_ms - pull.compute_ms, pull.holder))


def _with(route: Route, pull: Pull, policy: Policy) -> Route:
    saved_ms = (pull.tokens - route.cached_tokens) * policy.prefill_ms_per_token - pull.fetch_ms
    return replace(
        route,
        pull=pull,
        cached_tokens=pull.tokens,
        expected_ttft_ms=max(pull.fetch_ms, route.expected_ttft_ms - saved_ms),
        reasons=(*route.reasons, f"{route.reader} fetches {pull.tokens} tokens from {pull.holder}: {_times(pull)}"),
    )


def _not(route: Route, holder: WorkerView, tokens: int, why: str) -> Route:
    reason = f"{holder.state.info.ref} holds {tokens} tokens, which are not fetched: {why}"
    return replace(route, reasons=(*route.reasons, reason))


def _times(pull: Pull) -> str:
    return f"{pull.fetch_ms:.0f} ms to fetch what is missing, {pull.compute_ms:.0f} ms to compute it"
