"""One standing `Attach` stream to one worker incarnation: commands out, reports to the legs they are about.

When the stream breaks, every job on it is lost at once; whether the worker is, is known later. Where the worker stands
still for long, its jobs are cut as well. Knows no routes and does not reconnect.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, cast

import structlog

from headrace.core.errors import Unavailable, WorkerLost
from headrace.core.fleet import Load, WorkerInfo, WorkerRef, WorkerState
from headrace.core.jobs import (
    Activate,
    Busy,
    Committed,
    Drain,
    Ending,
    Events,
    Freeze,
    Frozen,
    Granted,
    Hello,
    Job,
    JobKey,
    Meet,
    Met,
    Report,
    Submit,
    TokenEvent,
    Welcome,
)
from headrace.router.absence import Absence
from headrace.router.commands import CommandQueue
from headrace.router.ledger import Ledger
from headrace.router.leg import Inbox, Left, Leg, Lost, Stalled, Unsent, Word
from headrace.router.stall import Stall
from headrace.rpc.contracts import WorkerService

log = structlog.get_logger()


class Connection(WorkerService, Protocol):
    """A worker over something that must be closed."""

    async def close(self) -> None: ...


class Attachment:
    """One worker incarnation.

    was_welcomed: the last stream got as far as a welcome.
    on_load: called when the worker's load changed, on_change: when it was attached or lost, on_met: when it has met a
    peer, or failed to, on_plight: when it wants to be rid of jobs, because it leaves or is crowded.
    back_s: how long it may be away before it counts as dead. unready_s: how long it may be there and not ready before
    its jobs go on elsewhere.
    """

    def __init__(
        self,
        info: WorkerInfo,
        ledger: Ledger,
        *,
        on_load: Callable[[], None],
        on_change: Callable[[], None],
        on_met: Callable[[Met], None],
        on_plight: Callable[[WorkerRef], None],
        contact: Callable[[], float],
        back_s: float,
        unready_s: float,
    ) -> None:
        self.info = info
        self._ledger = ledger
        self._on_load = on_load
        self._on_change = on_change
        self._on_met = on_met
        self._on_plight = on_plight
        self._load = Load()
        self._draining = False
        self._legs: dict[JobKey, Leg] = {}
        self._commands: CommandQueue | None = None
        self._connection: Connection | None = None
        self._contact = contact
        self._back_s = back_s
        self._absence: Absence | None = None
        self._stall = Stall(unready_s, self._stalled)
        self._left = False
        self._retired = False
        self.was_welcomed = False

    @property
    def attached(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> Connection | None:
        """The live connection, for the worker's other calls."""
        return self._connection

    @property
    def leaving(self) -> bool:
        """It has said so, or has a successor; it stays true of one that has left."""
        return self._draining or self._retired

    @property
    def state(self) -> WorkerState:
        return WorkerState(self.info, self._load, self.attached, self.leaving)

    def submit(self, job: Job, inbox: Inbox, others: "Sequence[Attachment]" = ()) -> Leg:
        """Send a job; words about it arrive in `inbox`. others: the workers at its other end. Raises WorkerLost if the
        worker is not attached."""
        if self._commands is None or not self.attached:
            raise WorkerLost(f"Worker {self.info.ref} is not attached any more.")
        leg = Leg(
            job.key,
            self.info.ref,
            inbox,
            self._activate,
            self._abort,
            on_freeze=self._freeze,
            leaving=lambda: any(one.leaving for one in (self, *others)),
        )
        self._legs[job.key] = leg
        self._commands.put(Submit(job))
        return leg

    def meet(self, meet: Meet) -> None:
        """Have the worker call a peer, if it is attached."""
        if self._commands is not None:
            self._commands.put(meet)

    def drain(self, grace_s: float) -> None:
        """Have the worker leave. Raises WorkerLost if it is not attached."""
        if self._commands is None or not self.attached:
            raise WorkerLost(f"Worker {self.info.ref} is not attached any more.")
        self._commands.put(Drain(grace_s))

    def retire(self) -> None:
        """It has a successor: whatever it says from now on, it is draining."""
        self._retired = True

    def gone(self) -> None:
        """It will not be attached again."""
        self._left = True
        if self._absence is not None:
            self._absence.gone()

    async def run(self, connection: Connection, hello: Hello, welcome_s: float) -> None:
        """Attach and serve reports until the stream breaks. Always raises; WorkerLost where the worker left."""
        self.was_welcomed = False
        self._commands = commands = CommandQueue(hello)
        reports = cast("AsyncGenerator[Report, None]", connection.attach(commands.stream()))
        try:
            async with aclosing(reports):
                self._welcomed(await _first(reports, welcome_s), connection)
                async for report in reports:
                    self._take(report)
            raise WorkerLost(f"Worker {self.info.ref} ended its stream.")
        finally:
            commands.close()
            self._break()

    def _welcomed(self, welcome: Welcome, connection: Connection) -> None:
        if welcome.info.ref != self.info.ref:
            if self._absence is not None:
                self._absence.gone()
            raise Unavailable(f"{self.info.address} answers as {welcome.info.ref}, not as {self.info.ref}.")
        self.info = welcome.info
        self._load, self._draining, self._connection = welcome.load, False, connection
        self.was_welcomed = True
        self._stall.see(welcome.load.unready)
        if self._absence is not None:
            self._absence.back()
            self._absence = None
        log.info("worker.attached", worker=str(self.info.ref), role=self.info.role.value, credits=welcome.load.credits)
        self._on_change()

    def _take(self, report: Report) -> None:
        match report:
            case Granted(key) | Committed(key) | Busy(key) | Frozen(key):
                self._tell(key, report)
            case Events(tokens, endings, load, draining):
                news: tuple[TokenEvent | Ending, ...] = (*tokens, *endings)
                self._ledger.reflect(self.info.ref, self._load, load, [event.key for event in news])
                self._load, self._draining = load, draining
                self._stall.see(load.unready)
                for event in news:
                    self._tell(event.key, event)
                self._on_load()
                if draining or load.crowded:
                    self._on_plight(self.info.ref)
            case Met() as met:
                self._on_met(met)
            case Welcome(info):
                self._take_address(info)

    def _take_address(self, info: WorkerInfo) -> None:
        """The worker's link was opened again elsewhere: its peers must meet it anew."""
        if info.ref != self.info.ref:
            log.warning("report.unexpected", worker=str(self.info.ref), report="welcome")
        elif info.data_address != self.info.data_address:
            log.info("worker.moved", worker=str(info.ref), data_address=info.data_address)
            self.info = replace(self.info, data_address=info.data_address)
            self._on_change()

    def _tell(self, key: JobKey, word: Word) -> None:
        leg = self._legs.get(key)
        if leg is None:
            log.debug("report.stale", worker=str(self.info.ref), job=str(key))
            return
        leg.tell(word)
        if leg.ended.is_set():
            del self._legs[key]

    def _activate(self, key: JobKey, first_token: int) -> None:
        if self._commands is not None:
            self._commands.put(Activate(key, first_token))

    def _abort(self, key: JobKey, lost: bool) -> None:
        """lost: the job's peer is dead."""
        if self._commands is not None and self._commands.abort(key, lost=lost):
            self._legs.pop(key).ended.set()

    def _freeze(self, key: JobKey) -> None:
        if self._commands is not None:
            self._commands.put(Freeze(key))

    def _stalled(self, unready: str) -> None:
        """The jobs stay here until the worker, aborting them, has let go of them."""
        log.warning("worker.stalled", worker=str(self.info.ref), jobs=len(self._legs), reason=unready)
        stalled = Stalled(WorkerLost(f"Worker {self.info.ref} does not get on: {unready}."))
        for leg in self._legs.values():
            leg.tell(stalled)

    def _break(self) -> None:
        commands, self._commands = self._commands, None
        self._load = Load()
        self._stall.see("")
        if not self.attached:
            return
        self._connection = None
        legs, self._legs = self._legs, {}
        absence = self._away()
        lost: Lost | Left = Lost(WorkerLost(f"Worker {self.info.ref} was lost while it held the request."), absence)
        if self._draining:
            lost = Left(Unavailable(f"Worker {self.info.ref} has left."))
        unsent = Unsent(WorkerLost(f"Worker {self.info.ref} was lost before it got the request."))
        kept_back: frozenset[JobKey] = frozenset() if commands is None else commands.unsent
        for key, leg in legs.items():
            leg.tell(unsent if key in kept_back else lost)
        log.info("worker.detached", worker=str(self.info.ref), jobs=len(legs))
        self._on_change()

    def _away(self) -> Absence:
        self._absence = absence = Absence(self.info.ref)
        if self._left:
            absence.gone()
        else:
            absence.expect(self._back_s, self._contact)
        return absence


async def _first(reports: AsyncIterator[Report], welcome_s: float) -> Welcome:
    try:
        async with asyncio.timeout(welcome_s):
            report = await anext(reports, None)
    except TimeoutError:
        raise WorkerLost(f"The worker did not answer within {welcome_s:g} s.") from None
    if not isinstance(report, Welcome):
        raise WorkerLost("The worker did not open its stream with a welcome.")
    return report
