"""Shipping: whether a running request's pages are sent to another worker or computed again there. Pure.

Seconds are compared: bytes that the taker lacks by the rate at which pages travel, against tokens that nobody has
cached by the rate at which prompts are computed, behind those that wait there. Workers report both rates; what no
worker has measured yet is the policy's guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.fleet import Role, WorkerRef
from headrace.core.route import Route
from headrace.router.choose import choose
from headrace.router.policy import Disaggregation, Policy
from headrace.router.view import Ask, WorkerView


def ship(
    ask: Ask, source: WorkerView, fleet: Sequence[WorkerView], hits: Mapping[WorkerRef, int], policy: Policy
) -> Route | None:
    """The route by which the pages of a job on `source` go along with it: its prefill worker is the source.

    None if no worker can take them now, or if computing them again on the way that `choose` knows is cheaper.
    ask: of the tokens that have KV; excludes the source.
    """
    takers = [view for view in fleet if view.state.info.role is not Role.PREFILL and fit(view, source)]
    there = choose(ask, takers, hits, replace(policy, disaggregation=Disaggregation.NEVER))
    if not isinstance(there, Route):
        return None
    costs = Costs(fleet, policy)
    sent_s = costs.sending_s(ask.tokens - there.cached_tokens, source.state.info.ref, there.decode)
    again = choose(ask, fleet, hits, policy)
    again_s = costs.again_s(ask, again, hits) if isinstance(again, Route) else float("inf")
    if sent_s >= again_s:
        return None
    reason = (
        f"its pages come from {source.state.info.ref}: {1000 * sent_s:.0f} ms to send them, "
        f"{1000 * again_s:.0f} ms to compute them again"
    )
    return replace(there, prefill=source.state.info.ref, expected_ttft_ms=1000 * sent_s, reasons=(reason,))


def fit(view: WorkerView, source: WorkerView) -> bool:
    """Whether pages can move between the two."""
    one, other = view.state.info, source.state.info
    return (one.kv.fit, one.link) == (other.kv.fit, other.link)


@dataclass(frozen=True, slots=True)
class Costs:
    """What things take in this fleet, in seconds."""

    fleet: Sequence[WorkerView]
    policy: Policy

    def sending_s(self, tokens: int, source: WorkerRef, target: WorkerRef) -> float:
        """To move the pages of so many tokens from one to the other."""
        layout = self._view(source).state.info.layout
        speed = self._transfer_bytes_s(source, target)
        if not speed:
            return tokens * self.policy.transfer_ms_per_token / 1000
        return tokens * layout.block_bytes / layout.block_tokens / speed

    def again_s(self, ask: Ask, route: Route, hits: Mapping[WorkerRef, int]) -> float:
        """To compute on `route` what is not cached there, and to move the pages where it is not one worker."""
        view = self._view(route.prefill or route.decode)
        speed = view.state.load.prefill_tokens_s or 1000 / self.policy.prefill_ms_per_token
        tokens = view.inflight.uncomputed_tokens + ask.tokens - route.cached_tokens
        if route.prefill is None:
            return tokens / speed
        cached = min(ask.tokens, hits.get(route.decode, 0) * BLOCK_TOKENS)
        return tokens / speed + self.sending_s(ask.tokens - cached, route.prefill, route.decode)

    def _transfer_bytes_s(self, source: WorkerRef, target: WorkerRef) -> float:
        """The slower of the two ends, as far as they measured it, else the slowest of those with the same link."""
        ends = [self._view(worker).state.load.transfer_bytes_s for worker in (source, target)]
        link = self._view(source).state.info.link
        others = [view.state.load.transfer_bytes_s for view in self.fleet if view.state.info.link == link]
        measured = [speed for speed in ends if speed] or [speed for speed in others if speed]
        return min(measured, default=0.0)

    def _view(self, worker: WorkerRef) -> WorkerView:
        return next(view for view in self.fleet if view.state.info.ref == worker)
