"""TransferThread: the Carrier. One thread owns the link and drives every transfer of a worker.

Owns the thread, its queue of commands and its wake-up. It knows no frames, units or slabs' fates.
"""

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable

import structlog

from headrace.core.errors import StartupError, Unavailable
from headrace.core.pages import PagePort
from headrace.core.ticket import Ticket
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import CarrierHealth, Side, TransferReport, TransferStatus
from headrace.transfer.link import Link, LinkFactory
from headrace.transfer.readable import wait_readable
from headrace.transfer.site import Site, TransferOptions
from headrace.transfer.slabs import SlabPool, SlabState
from headrace.transfer.transfers import Transfers
from headrace.transfer.wire import HEADER_BYTES, Refusal

_log = structlog.get_logger()
_LONGEST_WAIT_S = 60.0
_START_S = 30.0


class TransferThread:
    """Implements Carrier. Make it, `start` it, `close` it; between those all methods may be called from any thread.

    link_factory: opened on the transfer thread. report: called on the transfer thread; it must return at once and not
    raise. on_broken: called there, once, when the link is of no use any more.
    """

    def __init__(
        self,
        link_factory: LinkFactory,
        pages: PagePort,
        report: Callable[[TransferReport], None],
        metrics: TransferMetrics,
        options: TransferOptions | None = None,
        *,
        on_broken: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._link_factory = link_factory
        self._pages = pages
        self._report = report
        self._metrics = metrics
        self._options = options or TransferOptions()
        self._on_broken = on_broken
        self._pools: tuple[SlabPool, ...] = ()
        self._commands: queue.SimpleQueue[Callable[[Transfers], None]] = queue.SimpleQueue()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready = threading.Event()
        self._start_error: Exception | None = None
        self._address = ""
        self._broken = False
        self._close_by: float | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="transfer", daemon=True)

    @property
    def address(self) -> str:
        return self._address

    @property
    def health(self) -> CarrierHealth:
        counts = [pool.counts for pool in self._pools]
        free = min((each[SlabState.FREE] for each in counts), default=0)
        return CarrierHealth(free, sum(each[SlabState.QUARANTINED] for each in counts), rebuilds=0)

    def start(self) -> None:
        """Returns when the link is up and `address` known. Raises StartupError if it cannot be."""
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise StartupError(f"The {self._link_factory.name} link did not come up within {_START_S:.0f} s.")
        if self._start_error is not None:
            raise self._start_error

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel every transfer, wait up to `timeout_s` for peers to let go of slabs, close the link, end the thread.
        What is called afterwards is ignored: there is nothing left that it could concern."""
        with self._lock:
            if self._closed:
                return
            self._queue(lambda transfers: self._begin_close(transfers, timeout_s))
            self._closed = True
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake_fd)

    def receive(self, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        self._accept(lambda transfers: transfers.receive(ticket, blocks, timeout_s))

    def send(self, ticket: Ticket, timeout_s: float) -> None:
        self._accept(lambda transfers: transfers.send(ticket, timeout_s))

    def advance(self, transfer: bytes, blocks: tuple[int, ...]) -> None:
        self._accept(lambda transfers: transfers.advance(transfer, blocks))

    def cancel(self, transfer: bytes) -> None:
        self._accept(lambda transfers: transfers.cancel(transfer))

    def _accept(self, command: Callable[[Transfers], None]) -> None:
        with self._lock:
            if not self._closed:
                self._queue(command)

    def _queue(self, command: Callable[[Transfers], None]) -> None:
        self._commands.put(command)
        os.eventfd_write(self._wake_fd, 1)

    # Everything below runs on the transfer thread.

    def _run(self) -> None:
        try:
            link = self._link_factory.open()
        except Exception as error:
            self._start_error = error
            self._ready.set()
            return
        try:
            transfers = Transfers(self._site(link))
            self._address = link.address
            self._ready.set()
            _log.info("link.opened", link=self._link_factory.name, address=link.address)
            self._serve(link, transfers)
        finally:
            link.close()

    def _serve(self, link: Link, transfers: Transfers) -> None:
        while True:
            try:
                self._obey(transfers)
                transfers.step()
                if self._finished(transfers):
                    return
                self._wait(link, transfers)
            except Exception as error:
                if self._broken:
                    raise
                self._broken = True
                _log.exception("link.broke", link=self._link_factory.name)
                transfers.break_down(
                    Unavailable(f"The worker's transfer link broke ({error}).", remedy="The worker must be restarted.")
                )
                self._on_broken(error)

    def _obey(self, transfers: Transfers) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command(transfers)

    def _wait(self, link: Link, transfers: Transfers) -> None:
        until = min(transfers.due, self._close_by if self._close_by is not None else float("inf"))
        timeout_s = min(max(until - time.monotonic(), 0.0), _LONGEST_WAIT_S)
        if self._broken:
            wait_readable((self._wake_fd,), timeout_s)
        else:
            link.progress(timeout_s, self._wake_fd)
        # Cleared before the queue is read: a command queued meanwhile wakes again.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

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

    def _show_zeros(self) -> None:
        """An alert on the first of a kind needs to have seen none before."""
        for refusal in Refusal:
            self._metrics.refused.labels(refusal.value)
        for side, status in itertools.product(Side, TransferStatus):
            self._metrics.transfers.labels(side.value, status.value)

    def _site(self, link: Link) -> Site:
        size = HEADER_BYTES + self._options.unit_blocks * self._pages.layout.block_bytes

        def gauge() -> None:
            for state in SlabState:
                self._metrics.slabs.labels(state.value).set(sum(pool.counts[state] for pool in self._pools))

        counts = (self._options.send_slabs, self._options.receive_slabs)
        self._pools = tuple(SlabPool(count, size, gauge) for count in counts)
        gauge()
        self._show_zeros()
        return Site(
            link=link,
            link_name=self._link_factory.name,
            pages=self._pages,
            send_slabs=self._pools[0],
            receive_slabs=self._pools[1],
            options=self._options,
            metrics=self._metrics,
            report=self._report,
            clock=time.monotonic,
        )
