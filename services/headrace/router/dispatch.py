"""Dispatch: finds a route for a request's tokens, spends its credits, and sends the attempt's first job.

The meeting point of prefix index, fleet view, `choose` and admission. Knows no text and no retries.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.core.fleet import WorkerRef, WorkerState
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.lifecycle import Phase
from headrace.core.route import Route
from headrace.core.sampling import SamplingParams
from headrace.core.waterfall import Stage
from headrace.router.admission import Admission
from headrace.router.attachments import Attachments
from headrace.router.attempt import Attempt
from headrace.router.attempt_numbers import attempt_numbers
from headrace.router.choose import NoRoute, choose
from headrace.router.ledger import Ledger
from headrace.router.policy import Policy
from headrace.router.run import Names, Run
from headrace.router.view import Ask, WorkerView

Match = Callable[[Sequence[bytes]], Mapping[WorkerRef, int]]
"""How many leading blocks, named by hash, each worker is believed to hold."""


class Dispatch:
    """Numbers attempts without repetition, so that no report of an earlier or of another router's is taken for news."""

    def __init__(
        self, attachments: Attachments, admission: Admission, ledger: Ledger, match: Match, policy: Policy
    ) -> None:
        self._attachments = attachments
        self._admission = admission
        self._ledger = ledger
        self._match = match
        self._policy = policy
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
        key = run.key = JobKey(run.request.id, next(self._attempts))
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
        return Attempt(
            job,
            route,
            submit=self._attachments.submit,
            ledger=self._ledger,
            inbox=run.inbox,
            life=run.life,
            deadline=run.deadline,
        )

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
        views = self.views
        digests = {view.state.info.model_digest for view in views if view.state.info.model == ask.model}
        hits: dict[WorkerRef, int] = {}
        for digest in digests if cache else ():
            hits.update(self._match(names.under(digest)[1]))
        route = choose(ask, views, hits, self._policy)
        if isinstance(route, Route):
            self._spend(key, ask, route)
        return route

    def _spend(self, key: JobKey, ask: Ask, route: Route) -> None:
        first = route.prefill or route.decode
        self._ledger.spend(key, first, ask.tokens - route.cached_tokens)
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

    def _view(self, state: WorkerState) -> WorkerView:
        ref = state.info.ref
        return WorkerView(state, self._ledger.inflight(ref), self._ledger.cooling(ref), self._attachments.new_to(ref))
