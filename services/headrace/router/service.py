"""The Router: `Inference` and `Fleet` over a fleet of workers. Puts the parts together and owns their lives."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import structlog

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.commons import Commons
from headrace.core.errors import HeadraceError
from headrace.core.fleet import FleetStatus, Role, WorkerInfo, WorkerRef, WorkerState
from headrace.core.generation import Chunk, GenerateRequest, ModelCard, Prompt, Tokenized
from headrace.core.jobs import Hello
from headrace.core.route import Explanation
from headrace.router.account import Account
from headrace.router.admission import Admission
from headrace.router.attachment import Connection
from headrace.router.attachments import Attachments, Connect, Membership
from headrace.router.conductor import Conductor
from headrace.router.dispatch import Dispatch, Match
from headrace.router.history import History
from headrace.router.ledger import Ledger
from headrace.router.merge import Exposition, merge
from headrace.router.models import Models, ServedModel
from headrace.router.move import Mover
from headrace.router.options import RouterOptions
from headrace.router.prepare import context_of
from headrace.router.pulls import Pulls
from headrace.router.ready import unready
from headrace.router.standing import Standing
from headrace.rpc.contracts import OLDEST_PROTOCOL, PROTOCOL_VERSION, agreed, spoken
from headrace.telemetry.metrics import RouterMetrics

log = structlog.get_logger()


class Router:
    """roster: who the workers are. connect: how to reach one. match: the prefix index's local replica.
    commons: what it shares with the fleet's other routers."""

    def __init__(
        self,
        *,
        models: Sequence[ServedModel],
        roster: Membership,
        connect: Connect,
        match: Match,
        commons: Commons,
        metrics: RouterMetrics,
        options: RouterOptions,
    ) -> None:
        self._models = Models(models)
        self._metrics = metrics
        self._options = options
        self._history = History(options.history)
        self._ledger = Ledger(time.monotonic)
        self._admission = Admission(
            options.queue_limit, options.grace_s, metrics.queued.set, comeback_s=options.comeback_s
        )
        self._attachments = Attachments(
            roster=roster,
            connect=connect,
            hello=self._hello,
            fits=self._misfit,
            ledger=self._ledger,
            on_load=self._room_changed,
            on_change=self._fleet_changed,
            on_plight=self._wants_rid,
            patience=options.patience,
        )
        self._dispatch = self._dispatcher(match)
        self._standing = Standing(commons, options.name, refuse_s=options.refuse_s)
        self._mover = Mover(
            runs=lambda: self._conductor.runs,
            views=lambda: self._dispatch.views,
            can_leave=self._dispatch.can_leave,
            move_s=options.move_s,
            relief_s=options.relief_s,
        )
        self._conductor = Conductor(
            models=self._models,
            states=lambda: self._attachments.states,
            dispatch=self._dispatch,
            admission=self._admission,
            ledger=self._ledger,
            account=Account(metrics, self._history),
            standing=self._standing,
            mover=self._mover,
            options=options,
        )

    def _dispatcher(self, match: Match) -> Dispatch:
        pulls = Pulls(self._metrics, time.monotonic)
        return Dispatch(
            self._attachments, self._admission, self._ledger, match=match, policy=self._options.policy, pulls=pulls
        )

    async def start(self) -> None:
        """Begin to attach to the fleet's workers; `status` says when there are enough."""
        self._attachments.start()
        self._standing.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, let running ones finish within `grace_s`, end the others, detach from all workers."""
        await self._conductor.stop(grace_s)
        await self._attachments.stop()
        await self._standing.stop()

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """See `Inference`."""
        return self._conductor.conduct(request)

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized:
        """See `Inference`."""
        served = self._models.get(model)
        ids = await asyncio.to_thread(served.text.encode, prompt)
        return Tokenized(ids, context_of(served, self._attachments.states))

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str:
        """See `Inference`."""
        return await asyncio.to_thread(self._models.get(model).text.decode, token_ids)

    async def list_models(self) -> tuple[ModelCard, ...]:
        """See `Inference`."""
        states = self._attachments.states
        return tuple(ModelCard(model.name, context_of(model, states), model.created) for model in self._models)

    async def status(self) -> FleetStatus:
        """See `Fleet`."""
        reason = unready(self._models, self._dispatch.views, self._attachments.refused, self._options.policy)
        if self._conductor.draining:
            reason = "The router is stopping."
        waiting = self._admission.waiting
        return FleetStatus(
            ready=not reason,
            reason=reason,
            workers=self._attachments.states,
            requests_running=self._conductor.running - waiting,
            requests_waiting=waiting,
            refused=self._attachments.refused,
        )

    async def explain(self, request: str) -> Explanation:
        """See `Fleet`; a running request's life so far is told too."""
        return self._conductor.explanation(request) or self._history.get(request)

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        """See `Fleet`."""
        return self._attachments.drain(worker, grace_s)

    async def metrics(self) -> str:
        """See `Fleet`. A worker that does not answer in time, or not in Prometheus's format, is left out."""
        workers = await asyncio.gather(*(self._ask(*worker) for worker in self._attachments.connections))
        own = Exposition(self._metrics.exposition(), {})
        return merge([own, *(exposition for exposition in workers if exposition is not None)])

    async def _ask(self, info: WorkerInfo, connection: Connection) -> Exposition | None:
        try:
            async with asyncio.timeout(self._options.metrics_s):
                text = await connection.metrics()
            merge([Exposition(text, {})])
        except (HeadraceError, TimeoutError, ValueError) as error:
            log.warning("worker.metrics_missing", worker=str(info.ref), error=str(error) or "no answer in time")
            return None
        labels = {"worker": info.ref.worker, "role": info.role.value, "incarnation": info.ref.incarnation}
        return Exposition(text, labels)

    def _hello(self, info: WorkerInfo) -> Hello:
        name, token = self._options.name, self._options.worker_token
        return Hello(name, token, PROTOCOL_VERSION, OLDEST_PROTOCOL, self._models.weights(info.model))

    def _misfit(self, info: WorkerInfo) -> str:
        if agreed(info.protocol, info.oldest_protocol) is None:
            return f"speaks {spoken(info.protocol, info.oldest_protocol)} and this router {spoken()}"
        if info.layout.block_tokens % BLOCK_TOKENS:
            return f"its blocks of {info.layout.block_tokens} tokens are no multiple of {BLOCK_TOKENS}"
        return self._models.misfit(info)

    def _wants_rid(self, worker: WorkerRef) -> None:
        self._mover.see(worker)

    def _room_changed(self) -> None:
        self._admission.wake()
        self._mover.wake()

    def _fleet_changed(self) -> None:
        attached = Counter(state.info.role for state in self._attachments.states if state.attached)
        for role in Role:
            self._metrics.workers.labels(role.value).set(attached[role])
        self._room_changed()
