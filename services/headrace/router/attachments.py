"""Keeps one attachment per member of the roster, through reconnects and replacements; owns the tasks that do.

A live attachment outranks a missing lease. A newer incarnation replaces an older one, which may end what it has begun
if it is draining: then it gets nothing new anyway.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import structlog

from headrace.core.errors import HeadraceError, InvalidRequest, NotFound, WorkerLost
from headrace.core.fleet import RefusedWorker, WorkerInfo, WorkerRef, WorkerState
from headrace.core.jobs import Hello, Job, Report
from headrace.router.attachment import Attachment, Connection
from headrace.router.commands import CommandQueue
from headrace.router.contact import Contact
from headrace.router.ledger import Ledger
from headrace.router.leg import Inbox, Leg
from headrace.router.meetings import Meetings
from headrace.router.refused import Refused

log = structlog.get_logger()

Connect = Callable[[WorkerInfo], Connection]


class Membership(Protocol):
    """What is asked of the roster."""

    def watch(self) -> AsyncIterator[tuple[WorkerInfo, ...]]:
        """All members now, then all members again whenever they changed."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. welcome_s: for connecting and the welcome. Waits between tries double from first_s to most_s.

    back_s: after which a worker whose stream broke, and that is not attached again, counts as dead. unready_s: after
    which the jobs of one that is attached and not ready go on elsewhere; it has taken long to say so itself. meet_s:
    for how long a prefill worker that has not met a decode worker yet is sent there last.
    """

    welcome_s: float = 5.0
    first_s: float = 0.1
    most_s: float = 2.0
    back_s: float = 2.0
    unready_s: float = 5.0
    meet_s: float = 2.0


@dataclass(slots=True)
class _Kept:
    attachment: Attachment
    task: asyncio.Task[None]
    leased: bool = True


class Attachments:
    """hello: what to say to a worker first. fits: why a worker cannot belong to this router's fleet, or "".

    on_load: called when some worker's load changed, on_change: when a worker came, left, was attached or lost,
    on_plight: when one wants to be rid of jobs.
    """

    def __init__(
        self,
        *,
        roster: Membership,
        connect: Connect,
        hello: Callable[[WorkerInfo], Hello],
        fits: Callable[[WorkerInfo], str],
        ledger: Ledger,
        on_load: Callable[[], None],
        on_change: Callable[[], None],
        on_plight: Callable[[WorkerRef], None],
        patience: Patience,
    ) -> None:
        self._roster = roster
        self._connect = connect
        self._hello = hello
        self._ledger = ledger
        self._on_load = on_load
        self._on_change = on_change
        self._on_plight = on_plight
        self._patience = patience
        self._kept: dict[WorkerRef, _Kept] = {}
        self._meetings = Meetings(patience.meet_s, time.monotonic)
        self._contact = Contact(time.monotonic)
        self._refused = Refused(fits, self._turn_away)
        self._leaving: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._follower = asyncio.create_task(self._follow(), name="router.roster")

    async def stop(self) -> None:
        """Detach from every worker, which aborts what this router still has there."""
        tasks = [kept.task for kept in self._kept.values()] + list(self._leaving)
        if self._follower is not None:
            tasks.append(self._follower)
        for kept in self._kept.values():
            kept.attachment.gone()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._refused.stop(), return_exceptions=True)
        self._kept.clear()

    @property
    def states(self) -> tuple[WorkerState, ...]:
        """Every member that fits, attached or not, by name."""
        return tuple(self._kept[ref].attachment.state for ref in sorted(self._kept))

    @property
    def refused(self) -> tuple[RefusedWorker, ...]:
        """Every member that does not fit, by name."""
        return self._refused.workers

    @property
    def connections(self) -> tuple[tuple[WorkerInfo, Connection], ...]:
        """Every attached worker with its live connection."""
        kept = (self._kept[ref].attachment for ref in sorted(self._kept))
        return tuple((one.info, one.connection) for one in kept if one.connection is not None)

    def new_to(self, worker: WorkerRef) -> frozenset[WorkerRef]:
        """Decode workers that a prefill worker was asked to meet lately and has not."""
        return self._meetings.new_to(worker)

    def submit(self, worker: WorkerRef, job: Job, inbox: Inbox) -> Leg:
        """Send a job to a worker. Raises WorkerLost if it is not attached."""
        kept = self._kept.get(worker)
        if kept is None:
            raise WorkerLost(f"Worker {worker} has left the fleet.")
        target = None if job.ticket is None else job.ticket.target
        others = [self._kept[ref].attachment for ref in (job.peer, target) if ref in self._kept]
        return kept.attachment.submit(job, inbox, others)

    def drain(self, worker: str, grace_s: float) -> WorkerState:
        """Have a worker leave; its state as it is now. worker: name, or name@incarnation, of which the beginning is
        enough. Raises NotFound if it is not attached."""
        name, _, incarnation = worker.partition("@")
        found = [
            kept.attachment
            for ref, kept in sorted(self._kept.items())
            if ref.worker == name and ref.incarnation.startswith(incarnation) and kept.attachment.attached
        ]
        if not found:
            raise NotFound(f"No worker {worker} is attached.", remedy="`headrace status` lists the workers.")
        # Of two incarnations, one of which is leaving already, the other is meant.
        attachment = min(found, key=lambda one: one.state.draining)
        attachment.drain(grace_s)
        log.info("worker.drain", worker=str(attachment.info.ref), grace_s=grace_s)
        return attachment.state

    async def _follow(self) -> None:
        """The roster's word, for as long as the router lives; without it the last word stands."""
        delay = self._patience.first_s
        while True:
            try:
                async for members in self._roster.watch():
                    delay = self._patience.first_s
                    self._reconcile(members)
            except HeadraceError as error:
                log.warning("roster.unavailable", error=str(error), retry_s=delay)
            except Exception:
                # A router that no longer hears who comes and goes would look well and slowly go blind.
                log.exception("roster.failed", retry_s=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._patience.most_s)

    def _reconcile(self, members: Iterable[WorkerInfo]) -> None:
        fitting = {info.ref: info for info in self._refused.sort_out(members)}
        current = {ref.worker for ref in fitting}
        for ref, kept in list(self._kept.items()):
            kept.leased = ref in fitting
            replaced = not kept.leased and ref.worker in current
            state = kept.attachment.state
            # One that is replaced unasked has most likely died, and its stream does not know it yet.
            ending = state.attached and (state.draining or not replaced)
            if replaced and ending:
                kept.attachment.retire()
            elif not (kept.leased or ending):
                self._drop(ref, "replaced" if replaced else "lease ended")
        for ref, info in fitting.items():
            if ref not in self._kept:
                task = asyncio.create_task(self._keep(ref), name=f"attach.{ref}")
                self._kept[ref] = _Kept(self._attachment(info), task)
        self._on_change()

    def _attachment(self, info: WorkerInfo) -> Attachment:
        patience = self._patience
        return Attachment(
            info,
            self._ledger,
            on_load=self._on_load,
            on_change=partial(self._came_or_left, info.ref),
            on_met=partial(self._meetings.over, info.ref),
            on_plight=self._on_plight,
            contact=self._contact.seconds,
            back_s=patience.back_s,
            unready_s=patience.unready_s,
        )

    def _came_or_left(self, ref: WorkerRef) -> None:
        kept = self._kept.get(ref)
        if kept is not None and kept.attachment.attached:
            self._contact.begin(ref)
            attached = (info for info, _ in self.connections)
            for prefill, meet in self._meetings.begin(kept.attachment.info, attached):
                self._kept[prefill].attachment.meet(meet)
        else:
            self._contact.end(ref)
            self._meetings.left(ref)
        self._on_change()

    def _drop(self, ref: WorkerRef, why: str) -> None:
        kept = self._kept.pop(ref)
        log.info("worker.dropped", worker=str(ref), why=why)
        kept.attachment.gone()
        self._leaving.add(kept.task)
        kept.task.add_done_callback(self._leaving.discard)
        kept.task.cancel()
        self._ledger.forget(ref)

    async def _keep(self, ref: WorkerRef) -> None:
        """Attach again and again while the lease lives."""
        kept = self._kept[ref]
        delay = self._patience.first_s
        while True:
            await self._attach_once(kept.attachment)
            if kept.attachment.was_welcomed:
                delay = self._patience.first_s
            if not kept.leased:
                break
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._patience.most_s)
        kept.attachment.gone()
        if self._kept.get(ref) is kept:
            del self._kept[ref]
            self._ledger.forget(ref)
            log.info("worker.dropped", worker=str(ref), why="lease ended")
            self._on_change()

    async def _attach_once(self, attachment: Attachment) -> None:
        """One stream from opening to break."""
        try:
            connection = self._connect(attachment.info)
            try:
                await attachment.run(connection, self._hello(attachment.info), self._patience.welcome_s)
            finally:
                await connection.close()
        except HeadraceError as error:
            log.warning("attachment.ended", worker=str(attachment.info.ref), error=str(error))
        except Exception:
            # Whatever a worker or its connection does costs that worker only; its lease decides what is next.
            log.exception("attachment.failed", worker=str(attachment.info.ref))

    async def _turn_away(self, info: WorkerInfo) -> None:
        """Say Hello to a worker that does not fit, until it has heard who cannot use it, and says so itself."""
        hello, delay = self._hello(info), self._patience.first_s
        if not hello.weights:
            return  # it may well be another router's, and nothing keeps it from being ready
        while not await self._said(info, hello):
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._patience.most_s)

    async def _said(self, info: WorkerInfo, hello: Hello) -> bool:
        """Whether a worker heard it. Hangs up on one that would take this router."""
        commands, connection = CommandQueue(hello), self._connect(info)
        reports = cast("AsyncGenerator[Report, None]", connection.attach(commands.stream()))
        try:
            async with asyncio.timeout(self._patience.welcome_s), aclosing(reports):
                await anext(reports)
        except InvalidRequest:
            return True
        except (HeadraceError, TimeoutError, StopAsyncIteration) as error:
            log.info("worker.not_told", worker=str(info.ref), error=str(error) or type(error).__name__)
            return False
        except Exception:
            log.exception("worker.not_told", worker=str(info.ref))
            return False
        finally:
            commands.close()
            await connection.close()
        return True
