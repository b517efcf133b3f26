"""Worker: one model replica in service. Puts engine, carrier and routers' streams together.

Owns the worker's life (start, ready, draining, failed, stopped), its attachments and its load. It knows no Redis,
no HTTP and no other worker beyond a ticket. What routers say is done in `reception`; what becomes of a job is in
`jobs` and the four kinds beside it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

import structlog

from headrace.core.errors import HeadraceError, Unavailable, WorkerLost
from headrace.core.fleet import Load, WorkerInfo
from headrace.core.jobs import Command, JobKey, Outcome, Report, Welcome
from headrace.core.layout import Descriptor
from headrace.engine.engine import Engine, StepOutput
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import MakeCarrier, TransferReport
from headrace.worker.crowding import Crowding
from headrace.worker.greeting import greet
from headrace.worker.identity import Identity
from headrace.worker.jobs import Leg, Station
from headrace.worker.legs import Legs
from headrace.worker.load import JobSize, observe, with_credits
from headrace.worker.loop import EngineLoop
from headrace.worker.mismatch import Mismatch
from headrace.worker.outbox import Outbox
from headrace.worker.reception import Reception
from headrace.worker.retirement import Retirement
from headrace.worker.tickets import TicketOffice
from headrace.worker.watchdog import Watchdog

log = structlog.get_logger()

_CLOSE_S = 10.0

Publish = Callable[[tuple[bytes, ...], tuple[bytes, ...]], None]


class Worker:
    """Implements `rpc.contracts.WorkerService`.

    make_carrier: called once, by `start`. token: what routers must say, empty for none. publish: told on the event
    loop which hashes the prefix cache gained and lost; returns at once. check_after_s, stall_s: EngineLoop, Watchdog.
    Life: start -> announce -> attach ... -> [drain] -> [retire] -> stop. When `failed` resolves the worker is of no
    more use: stop it and end the process. When `leaving` does a router asked it to retire within so many seconds (0:
    within what is usual), and to end the process then.
    """

    def __init__(
        self,
        engine: Engine,
        make_carrier: MakeCarrier,
        identity: Identity,
        *,
        metrics: WorkerMetrics,
        publish: Publish,
        token: str = "",
        check_after_s: float = 0.2,
        stall_s: float = 60.0,
    ) -> None:
        self._engine = engine
        self._make_carrier = make_carrier
        self._identity = identity
        self._token = token
        self._metrics = metrics
        self._publish = publish
        self._check_after_s = check_after_s
        self._watchdog = Watchdog(stall_s, metrics.stalled)
        self._mismatch = Mismatch(identity.model, engine.info.weights)
        self._crowding = Crowding()
        self._size = JobSize()
        self._engine_load = Load(free_blocks=engine.info.num_blocks, total_blocks=engine.info.num_blocks)
        self._outboxes: set[Outbox] = set()
        self._draining = False
        self._fatal: HeadraceError | None = None
        self._info: WorkerInfo | None = None

    async def start(self) -> None:
        """Open the carrier, then run the engine. Raises what opening the carrier raises; nothing is left then."""
        self._event_loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[BaseException] = self._event_loop.create_future()
        self.leaving: asyncio.Future[float] = self._event_loop.create_future()
        self._carrier = self._make_carrier(self._engine.pages, self._on_report)
        await asyncio.to_thread(self._carrier.start)
        self._data_address = self._carrier.address
        self._slabs = self._carrier.health.free_slabs  # nothing is under way yet
        self._engine_loop = EngineLoop(
            self._engine,
            on_step=self._on_step,
            on_failure=self._on_failure,
            step_seconds=self._metrics.step_seconds,
            pool_checks=self._metrics.pool_checks,
            check_after_s=self._check_after_s,
        )
        info, who = self._engine.info, self._identity
        kv = Descriptor(info.model_digest, info.layout, info.weights, info.recipe)
        tickets = TicketOffice(who.ref, kv, who.link, lambda: self._carrier.address)
        self._legs = Legs()
        self._retirement = Retirement(self._legs, Unavailable("The worker stopped before the job was done."))
        self._metrics.live.set_function(lambda: float(len(self._legs)))
        self._reception = Reception(
            Station(self._engine_loop, self._carrier, tickets, self._metrics, self._legs),
            self._size,
            info.layout.block_tokens,
            taking=lambda: not (self._draining or self._watchdog.obstacle),
            fatal=lambda: self._fatal,
            leave=self._leave,
        )
        self._engine_loop.start()

    def announce(self, address: str) -> WorkerInfo:
        """Routers reach this worker at `address`; attachments are taken from now on. Returns what the lease says."""
        who = self._identity
        self._info = who.info(self._engine.info, address, self._carrier.address)
        log.info("worker.serving", worker=str(who.ref), role=who.role.value, address=address)
        return self._info

    @property
    def ready(self) -> bool:
        """It takes new jobs."""
        return self._info is not None and not (self._draining or self.failed.done() or self.obstacle)

    @property
    def obstacle(self) -> str:
        """Why it takes no jobs though it could be asked for some, as "its engine ..."; "" if it does."""
        return self._watchdog.obstacle or self._mismatch.obstacle

    async def watch(self, tell: Callable[[bool], Awaitable[None]]) -> None:
        """Until cancelled, notice when the engine stands still or goes on and when no router can use this worker, and
        `tell` whether it is ready."""

        async def changed() -> None:
            self._tell_load(settled=True)
            await tell(self.ready)

        def busy_s() -> float:
            self._tell_load(settled=False)  # peers let go of slabs without a step here
            return self._engine_loop.busy_s

        async with asyncio.TaskGroup() as watching:
            watching.create_task(self._watchdog.run(busy_s, changed))
            watching.create_task(self._mismatch.watch(changed))

    @property
    def load(self) -> Load:
        health = self._carrier.health
        quarantined = health.quarantined_slabs
        load = replace(
            self._engine_load,
            quarantined_slabs=quarantined,
            unready=self.obstacle,
            prefill_tokens_s=self._engine_loop.pace.prompt_tokens_s,
            transfer_bytes_s=health.bytes_s,
            crowded=self._crowding.crowded(self._event_loop.time()),
        )
        return with_credits(
            load,
            live=len(self._legs),
            max_jobs=self._engine.info.max_jobs,
            blocks_per_job=self._size.blocks,
            free_slabs=self._slabs - quarantined - self._legs.transfers,
            open=self.ready,
        )

    def link_broke(self, error: Exception) -> None:
        """The carrier cannot repair its link: the worker has failed. Called on any thread."""
        self._event_loop.call_soon_threadsafe(self._on_broken_link, error)

    def drain(self) -> None:
        """Take no new jobs; those that run go on."""
        if not self._draining:
            self._draining = True
            log.info("worker.drain", jobs=len(self._legs))
            self._tell_load(settled=True)

    def _leave(self, grace_s: float) -> None:
        if not self.leaving.done():
            self.leaving.set_result(grace_s)

    async def drained(self) -> None:
        """Return once no job holds anything here."""
        await self._legs.empty()

    async def retire(self, grace_s: float) -> None:
        """Drain for at most `grace_s`, then end what runs; routers stay attached and hear it. Again: Retirement."""
        self.drain()
        await self._retirement.run(grace_s)

    async def stop(self, grace_s: float) -> None:
        """Retire, as far as that is not over, and close everything that `start` opened."""
        try:
            await self.retire(grace_s)
        finally:
            self._retirement.end_rest()
            for outbox in tuple(self._outboxes):
                outbox.close()
            await self._engine_loop.stop()
            await asyncio.to_thread(self._carrier.close, _CLOSE_S)
        log.info("worker.stop", worker=str(self._identity.ref))

    async def attach(self, commands: AsyncIterator[Command]) -> AsyncIterator[Report]:
        info = self._known_info()
        hello = await greet(commands, self._token)
        self._mismatch.require_fit(hello, alone=not self._outboxes)
        outbox = Outbox(hello.router, self.load)
        self._outboxes.add(outbox)
        self._tell_load(settled=False)  # one that comes late hears, too, that the worker is leaving
        log.info("router.attach", router=outbox.router)
        reader = asyncio.create_task(self._reception.serve(commands, outbox), name=f"attachment of {outbox.router}")
        try:
            # A link that had to be opened again is elsewhere than the lease says.
            yield Welcome(replace(info, data_address=self._carrier.address), self.load)
            while reports := await outbox.take():
                for report in reports:
                    yield report
            if reader.done():
                reader.result()
        finally:
            self._outboxes.discard(outbox)
            if not self._outboxes:
                self._mismatch.left_alone()
            reader.cancel()
            await asyncio.wait({reader})
            log.info("router.detach", router=outbox.router)

    async def metrics(self) -> str:
        return self._metrics.exposition()

    def _known_info(self) -> WorkerInfo:
        if self._info is None:
            raise Unavailable("The worker is still starting.")
        return self._info

    def _on_step(self, output: StepOutput) -> None:
        for sampled in output.sampled:
            if leg := self._unended(sampled.key):
                leg.sampled(sampled)
        for finished in output.finished:
            if leg := self._unended(finished.key):
                leg.finished(finished)
        for progress in output.progress:
            if leg := self._unended(progress.key):
                leg.progressed(progress)
        if output.stored or output.evicted:
            self._publish(output.stored, output.evicted)
        self._engine_load = output.load
        self._watchdog.see(output)
        self._crowding.see(output.displaced, self._event_loop.time())
        observe(self._metrics, output)
        self._tell_load(settled=output.idle)

    def _unended(self, key: JobKey) -> Leg | None:
        leg = self._legs.find(key)
        return leg if leg is not None and leg.outcome is None else None

    def _tell_load(self, *, settled: bool) -> None:
        self._tell_address()
        load = self.load
        for outbox in self._outboxes:
            outbox.update(load, draining=self._draining or self.failed.done(), settled=settled)

    def _tell_address(self) -> None:
        """A link that had to be opened again is elsewhere: routers have prefill workers call that place."""
        address = self._carrier.address
        if address == self._data_address or self._info is None:
            return
        self._data_address = address
        log.info("link.moved", address=address)
        for outbox in self._outboxes:
            outbox.reply(Welcome(replace(self._info, data_address=address), self.load))

    def _on_report(self, report: TransferReport) -> None:
        """On the transfer thread."""
        self._event_loop.call_soon_threadsafe(self._close_transfer, report)

    def _close_transfer(self, report: TransferReport) -> None:
        if leg := self._legs.sending_or_receiving(report.transfer):
            leg.transfer_closed(report)
            self._tell_load(settled=False)

    def _on_failure(self, error: BaseException) -> None:
        self._fail(error, WorkerLost("The worker's engine died.", remedy="The worker restarts; try again."), self._legs)

    def _on_broken_link(self, error: Exception) -> None:
        """Jobs that need no transfer any more are still the engine's to finish."""
        if self._fatal is None:
            fatal = Unavailable("The worker's transfer link broke.", remedy="The worker restarts; try again.")
            self._fail(error, fatal, [leg for leg in self._legs if leg.needs_link])

    def _fail(self, cause: BaseException, fatal: HeadraceError, hit: Iterable[Leg]) -> None:
        """Take nothing more, and end the jobs that cannot go on."""
        self._fatal = fatal
        if not self.failed.done():
            self.failed.set_result(cause)
        for leg in hit:
            leg.end(Outcome.FAILED, fatal)
        self._tell_load(settled=True)
