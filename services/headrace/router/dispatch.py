"""Dispatch: finds a route for a request's tokens, spends its credits, and sends the attempt's first job.

The meeting point of prefix index, fleet view, `choose` and admission. Knows no text and no retries.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.core.fleet import Role, WorkerRef, WorkerState
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.lifecycle import Phase
from headrace.core.route import Route
from headrace.core.sampling import SamplingParams
from headrace.core.waterfall import Stage
from headrace.router.admission import Admission
from headrace.router.attachments import Attachments
from headrace.router.attempt import Attempt, Footing, Shipment
from headrace.router.attempt_numbers import attempt_numbers
from headrace.router.choose import NoRoute, choose
from headrace.router.fetching import FetchingAttempt, importing
from headrace.router.ledger import Ledger
from headrace.router.leg import Move
from headrace.router.policy import Policy
from headrace.router.pull import pulling
from headrace.router.pulls import Pulls
from headrace.router.relocation import Relocation
from headrace.router.run import Names, Run
from headrace.router.shipping import ship
from headrace.router.view import Ask, WorkerView

Match = Callable[[Sequence[bytes]], Mapping[WorkerRef, int]]
"""How many leading blocks, named by hash, each worker is believed to hold."""


class Dispatch:
    """Numbers attempts without repetition, so that no report of an earlier or of another router's is taken for news."""

    def __init__(
        self,
        attachments: Attachments,
        admission: Admission,
        ledger: Ledger,
        *,
        match: Match,
        policy: Policy,
        pulls: Pulls,
    ) -> None:
        self._attachments = attachments
        self._admission = admission
        self._ledger = ledger
        self._match = match
        self._policy = policy
        self._pulls = pulls
        self._attempts = attempt_numbers()

    @property
    def views(self) -> tuple[WorkerView, ...]:
        """Every member of the fleet as this router sees it now."""
        return tuple(self._view(state) for state in self._attachments.states)

    async def open(self, run: Run) -> Attempt:
        """Wait for a route and start an attempt on it. Raises what Admission raises, and AttemptFailed."""
        assert run.answer is not None
        if not run.routes:
            run.life.enter(Stage.QUEUE)
        tokens = (*run.prompt, *run.answer.tokens)
        names = Names(tokens, run.request.cache_salt)
        key = run.key = self._key(run)
        ask = self._ask(run, len(tokens))
        # What was told of the prompt is not asked for again.
        sampling = replace(run.sampling, prompt_logprobs=None) if run.answer.tokens else run.sampling
        cache = sampling.prompt_logprobs is None
        asked_at = run.life.begun

        def choose_now() -> Route | NoRoute:
            nonlocal asked_at
            asked_at = time.monotonic()
            return self._route(key, ask, names, cache)

        route = await self._admission.admit(
            choose_now,
            group=(ask.model, ask.excluded),
            need=(ask.tokens, ask.total_tokens),
            deadline=run.deadline,
            ahead=bool(run.routes),
            priority=run.request.priority,
        )
        run.life.enter(Stage.ROUTE, asked_at)
        run.life.to(Phase.ROUTED)
        run.routes.append(route)
        job = self._job(run, key, tokens, sampling, names.under(self._digest(route.decode)))
        return self._attempt(run, replace(job, peer_block_tokens=self._block_tokens(route.prefill)), route)

    def _attempt(self, run: Run, job: Job, route: Route) -> Attempt:
        footing = self._footing(run)
        if route.pull is None:
            return Attempt(job, route, footing)
        imports = importing(job, self._key(run), route.pull, self._block_tokens(route.pull.holder))
        return FetchingAttempt(job, route, footing, imports=imports, pulls=self._pulls)

    def _footing(self, run: Run) -> Footing:
        return Footing(self._attachments.submit, self._ledger, run.inbox, run.life, run.deadline)

    def can_leave(self, run: Run, move: Move) -> bool:
        """Whether the request could do now as it would be asked: take its pages to where there is room, or find a route
        without the worker."""
        decoding = run.attempt is not None and run.attempt.decoding
        if move.with_pages and decoding and self._way(run, move.worker) is not None:
            return True
        return self.has_route(run, move.worker, move.room)

    def has_route(self, run: Run, worker: WorkerRef, room: int) -> bool:
        """Whether the request would find a route without `worker` now, to one that has `room` credits."""
        assert run.answer is not None
        ask = self._without(worker, self._ask(run, len(run.prompt) + len(run.answer.tokens)))
        able = [view for view in self.views if view.credits >= room or view.state.info.role is Role.PREFILL]
        return isinstance(choose(ask, able, {}, self._policy), Route)

    def shipment(self, run: Run, source: WorkerRef) -> Shipment | None:
        """The way by which the answer, which is written on `source`, goes on elsewhere with its pages, its credit
        spent; None where that cannot be now or costs more than computing them again."""
        route = self._way(run, source)
        if route is None:
            return None
        key = self._key(run)
        self._ledger.spend(key, route.decode, 0)
        return Shipment(key, route)

    def _way(self, run: Run, source: WorkerRef) -> Route | None:
        tokens = _with_kv(run)
        ask = self._without(source, self._ask(run, len(tokens)))
        views = self.views
        hits = self._hits(ask, Names(tokens, run.request.cache_salt))
        found = [view for view in views if view.state.info.ref == source]
        return ship(ask, found[0], views, hits, self._policy) if found else None

    def relocate(self, run: Run, source: Attempt) -> Relocation:
        """The attempt by which the answer of `source`, which stands still, takes its shipment."""
        assert run.answer is not None
        assert source.shipment is not None
        tokens, key, route = _with_kv(run), source.shipment.key, source.shipment.route
        run.key, source.shipment = key, None
        run.life.to(Phase.ROUTED)
        run.life.again()
        run.routes.append(route)
        names = Names(tokens, run.request.cache_salt).under(self._digest(route.decode))
        job = self._job(run, key, tokens, replace(run.sampling, prompt_logprobs=None), names)
        job = replace(job, peer_block_tokens=self._block_tokens(route.prefill))
        return Relocation(job, route, self._footing(run), source=source, last_token=run.answer.tokens[-1])

    def _key(self, run: Run) -> JobKey:
        return JobKey(run.request.id, next(self._attempts))

    def _without(self, worker: WorkerRef, ask: Ask) -> Ask:
        return replace(ask, excluded=ask.excluded | {worker})

    def _ask(self, run: Run, tokens: int) -> Ask:
        # A caller without a limit wants what there is: the worker's context then ends the answer.
        limit = run.request.sampling.max_tokens
        return Ask(
            model=run.model.name,
            tokens=tokens,
            total_tokens=tokens + 1 if limit is None else len(run.prompt) + limit,
            excluded=run.retries.excluded,
            avoided=run.retries.avoided,
        )

    def _route(self, key: JobKey, ask: Ask, names: Names, cache: bool) -> Route | NoRoute:
        """cache: the job will use cached prefixes."""
        views, hits = self.views, self._hits(ask, names) if cache else {}
        route = choose(ask, views, hits, self._policy)
        if isinstance(route, Route):
            route = pulling(ask, route, views, hits, self._policy, shunned=self._pulls.shunned)
            self._spend(key, ask, route)
        return route

    def _hits(self, ask: Ask, names: Names) -> dict[WorkerRef, int]:
        states = self._attachments.states
        hits: dict[WorkerRef, int] = {}
        for digest in {state.info.model_digest for state in states if state.info.model == ask.model}:
            hits.update(self._match(names.under(digest)[1]))
        return hits

    def _spend(self, key: JobKey, ask: Ask, route: Route) -> None:
        self._ledger.spend(key, route.reader, ask.tokens - route.cached_tokens)
        if route.prefill is not None:
            self._ledger.spend(key, route.decode, 0)

    def _job(
        self,
        run: Run,
        key: JobKey,
        tokens: tuple[int, ...],
        sampling: SamplingParams,
        names: tuple[bytes, tuple[bytes, ...]],
    ) -> Job:
        root, hashes = names
        remaining = run.deadline - asyncio.get_running_loop().time()
        return Job(
            key=key,
            kind=JobKind.LOCAL,
            tokens=tokens,
            prompt_len=len(run.prompt),
            sampling=sampling,
            root=root,
            hashes=hashes,
            timeout_s=max(0.0, remaining),
            priority=run.request.priority,
        )

    def _digest(self, worker: WorkerRef) -> bytes:
        found = [state.info.model_digest for state in self._attachments.states if state.info.ref == worker]
        return found[0] if found else b""

    def _block_tokens(self, worker: WorkerRef | None) -> int:
        found = [state.info.layout.block_tokens for state in self._attachments.states if state.info.ref == worker]
        return found[0] if found else 0

    def _view(self, state: WorkerState) -> WorkerView:
        ref = state.info.ref
        return WorkerView(state, self._ledger.inflight(ref), self._ledger.cooling(ref), self._attachments.new_to(ref))


def _with_kv(run: Run) -> tuple[int, ...]:
    """The tokens that have KV where the answer is written: all but its last."""
    assert run.answer is not None
    return (*run.prompt, *run.answer.tokens[:-1])
