"""TransferThread: the Carrier. One thread owns the link and drives every transfer of a worker.

Owns the thread, its queue of commands and its wake-up. It knows no frames, units or slabs' fates.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from headrace.core.errors import HeadraceError, StartupError, Unavailable
from headrace.core.pages import PagePort
from headrace.core.ticket import Ticket
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import CarrierHealth, Told, TransferReport
from headrace.transfer.link import LinkFactory
from headrace.transfer.readable import wait_readable
from headrace.transfer.site import TransferOptions
from headrace.transfer.tenure import Tenure
from headrace.transfer.transfers import Transfers

_log = structlog.get_logger()
_LONGEST_WAIT_S = 60.0
_START_S = 30.0
_JOIN_S = 5.0
_HOUR_S = 3600.0


class TransferThread:
    """Implements Carrier. Make it, `start` it, `close` it; between those all methods may be called from any thread.

    link_factory: opened on the transfer thread, again when the link broke or peers hold too many slabs: transfers
    fail then, and `address` changes. report: called on the transfer thread; it must return at once and not raise.
    on_broken: called once, likewise, when there is no link any more and will not be: the worker must be restarted.
    """

    def __init__(
        self,
        link_factory: LinkFactory,
        pages: PagePort,
        report: Callable[[TransferReport], None],
        metrics: TransferMetrics,
        options: TransferOptions | None = None,
        *,
        on_broken: Callable[[HeadraceError], None] | None = None,
    ) -> None:
        self._link_factory = link_factory
        self._pages = pages
        self._report = report
        self._metrics = metrics
        self._options = options or TransferOptions()
        self._on_broken = on_broken
        self._commands: queue.SimpleQueue[Callable[[Transfers], None]] = queue.SimpleQueue()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready = threading.Event()
        self._start_error: Exception | None = None
        self._tenure: Tenure | None = None
        self._rebuilds = 0
        self._rebuilt_at: deque[float] = deque()
        # Tenures whose link could not be closed: it may use their slabs as long as the process lives.
        self._parked: list[Tenure] = []
        self._broken = False
        self._close_by: float | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="transfer", daemon=True)

    @property
    def address(self) -> str:
        tenure = self._tenure
        return "" if tenure is None else tenure.address

    @property
    def health(self) -> CarrierHealth:
        tenure = self._tenure
        if tenure is None or self._broken:
            return CarrierHealth(0, 0, self._rebuilds)
        return CarrierHealth(tenure.free_slabs, tenure.quarantined_slabs, self._rebuilds, tenure.bytes_s)

    def start(self) -> None:
        """Returns when the link is up and `address` known. Raises StartupError if it cannot be."""
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise StartupError(f"The {self._link_factory.name} link did not come up within {_START_S:.0f} s.")
        if self._start_error is not None:
            raise self._start_error

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel every transfer, wait up to `timeout_s` for peers to let go of slabs, close the link, end the thread.
        What is called afterwards is ignored: there is nothing left that it could concern. A thread that a link does
        not let go of is left behind, and ends with the process."""
        with self._lock:
            if self._closed:
                return
            self._queue(lambda transfers: self._begin_close(transfers, timeout_s))
            self._closed = True
        if self._thread.ident is not None:
            self._thread.join(timeout_s + _JOIN_S)
        if self._thread.is_alive():
            _log.error("transfer.stuck", link=self._link_factory.name, waited_s=timeout_s + _JOIN_S)
        else:
            os.close(self._wake_fd)

    def receive(self, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        self._accept(lambda transfers: transfers.receive(ticket, blocks, timeout_s))

    def send(self, ticket: Ticket, timeout_s: float) -> None:
        self._accept(lambda transfers: transfers.send(ticket, timeout_s))

    def advance(self, transfer: bytes, blocks: tuple[int, ...]) -> None:
        self._accept(lambda transfers: transfers.advance(transfer, blocks))

    def cancel(self, transfer: bytes, *, lost: bool = False) -> None:
        self._accept(lambda transfers: transfers.cancel(transfer, lost=lost))

    def meet(self, address: str, told: Told) -> None:
        self._accept(lambda transfers: transfers.meet(address, told))

    def _accept(self, command: Callable[[Transfers], None]) -> None:
        with self._lock:
            if not self._closed:
                self._queue(command)

    def _queue(self, command: Callable[[Transfers], None]) -> None:
        """Under the lock."""
        self._commands.put(command)
        os.eventfd_write(self._wake_fd, 1)

    # Everything below runs on the transfer thread.

    def _run(self) -> None:
        try:
            tenure = self._open()
        except Exception as error:
            self._start_error = error
            self._ready.set()
            return
        self._tenure = tenure
        self._ready.set()
        try:
            self._serve(tenure)
        finally:
            self._end(Unavailable("The worker stops."))

    def _open(self) -> Tenure:
        tenure = Tenure(
            self._link_factory, self._pages, self._options, self._metrics, report=self._report, clock=time.monotonic
        )
        _log.info("link.opened", link=self._link_factory.name, address=tenure.address)
        return tenure

    def _serve(self, tenure: Tenure) -> None:
        """Nothing ends this but `close`: every transfer that anybody begins here is owed its report."""
        while True:
            try:
                self._obey(tenure.transfers)
                wrong = None if self._broken else tenure.step()
                if wrong is None:
                    if self._finished(tenure.transfers):
                        return
                    self._wait(tenure)
            except Exception as error:
                _log.exception("transfer.crashed")
                wrong = error
            if wrong is not None and not self._broken:
                tenure = self._replace(tenure, wrong)

    def _replace(self, tenure: Tenure, wrong: Exception) -> Tenure:
        """Fail what the link carried and open another, unless that happens too often."""
        _log.error("link.broke", link=self._link_factory.name, reason=str(wrong), exc_info=wrong)
        for_good = not self._may_rebuild()
        self._end(_broke(wrong, for_good=for_good))
        if not for_good:
            try:
                self._tenure = self._open()
            except Exception as error:
                _log.exception("link.not_opened", link=self._link_factory.name)
                wrong, for_good = error, True
            else:
                self._rebuilds += 1
                self._metrics.rebuilds.inc()
                return self._tenure
        self._break(tenure, _broke(wrong, for_good=True))
        return tenure

    def _may_rebuild(self) -> bool:
        """Whether one more link is due, after those of the last hour. Each that broke may hold memory for good."""
        now = time.monotonic()
        while self._rebuilt_at and self._rebuilt_at[0] <= now - _HOUR_S:
            self._rebuilt_at.popleft()
        self._rebuilt_at.append(now)
        return self._close_by is None and len(self._rebuilt_at) <= self._options.rebuilds

    def _break(self, tenure: Tenure, error: HeadraceError) -> None:
        """From now on every transfer fails at once."""
        self._broken = True
        tenure.transfers.break_down(error)
        if self._on_broken is not None and self._close_by is None:
            try:
                self._on_broken(error)
            except Exception:
                _log.exception("transfer.nobody_told")

    def _end(self, error: HeadraceError) -> None:
        """End the tenure, unless it ended when the link broke for good."""
        tenure = self._tenure
        if tenure is None or self._broken:
            return
        try:
            tenure.end(error)
        except Exception:
            _log.exception("link.not_closed", link=self._link_factory.name, address=tenure.address)
            self._parked.append(tenure)

    def _obey(self, transfers: Transfers) -> None:
        for command in self._called():
            try:
                command(transfers)
            except Exception:
                _log.exception("transfer.command_failed")

    def _called(self) -> list[Callable[[Transfers], None]]:
        """Take the commands that wait. Both are set under the lock: the wake-up is, if and only if a command is."""
        if self._commands.empty():
            return []
        with self._lock:
            os.eventfd_read(self._wake_fd)
            return [self._commands.get_nowait() for _ in range(self._commands.qsize())]

    def _wait(self, tenure: Tenure) -> None:
        until = min(tenure.due, self._close_by if self._close_by is not None else float("inf"))
        timeout_s = min(max(until - time.monotonic(), 0.0), _LONGEST_WAIT_S)
        if self._broken:
            wait_readable((self._wake_fd,), timeout_s)
        else:
            tenure.link.progress(timeout_s, self._wake_fd)

    def _begin_close(self, transfers: Transfers, timeout_s: float) -> None:
        self._close_by = time.monotonic() + timeout_s
        transfers.wind_up()

    def _finished(self, transfers: Transfers) -> bool:
        """True when closing and nothing is under way, or time is up."""
        if self._close_by is None:
            return False
        if transfers.empty:
            return True
        if time.monotonic() < self._close_by:
            return False
        transfers.give_up_all()
        return True


def _broke(why: Exception, *, for_good: bool) -> HeadraceError:
    """What the transfers of a link hear that was given up."""
    remedy = "The worker must be restarted." if for_good else "The request is retried."
    return Unavailable(f"The worker's transfer link broke ({why}).", remedy=remedy)
