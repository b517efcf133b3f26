"""Tenure: one link from its opening to its end, with the slabs and the transfers that depend on it.

Owns what is thrown away together when a link is replaced. It knows no threads and never opens a second link.
"""

import itertools
from collections.abc import Callable
from functools import partial

from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.pages import PagePort
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import Side, TransferReport, TransferStatus
from headrace.transfer.guarded import GuardedLink
from headrace.transfer.link import LinkFactory
from headrace.transfer.peers import NEVER, Peers
from headrace.transfer.site import Site, TransferOptions
from headrace.transfer.slabs import SlabPool, SlabState
from headrace.transfer.sources import Sources
from headrace.transfer.throughput import Throughput
from headrace.transfer.transfers import Transfers
from headrace.transfer.wire import HEADER_BYTES, Refusal


class Tenure:
    """Opens the link when it is made. Raises what the factory raises."""

    def __init__(
        self,
        factory: LinkFactory,
        pages: PagePort,
        options: TransferOptions,
        metrics: TransferMetrics,
        *,
        report: Callable[[TransferReport], None],
        clock: Callable[[], float],
    ) -> None:
        self.link = GuardedLink(factory.open())
        self.address = self.link.address
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._doubtful_since = NEVER
        size = HEADER_BYTES + options.unit_blocks * pages.layout.block_bytes
        sending, receiving = (SlabPool(count, size) for count in (options.send_slabs, options.receive_slabs))
        self._pools = (sending, receiving)
        peers = Peers(options.send_slabs // 2, options.peer_bytes)
        self._show_slabs()
        self._show_zeros()
        metrics.inflight.set_function(lambda: float(peers.nbytes))
        self._throughput = Throughput()
        self.transfers = Transfers(
            Site(
                link=self.link,
                link_name=factory.name,
                pages=pages,
                send_slabs=sending,
                receive_slabs=receiving,
                peers=peers,
                sources=Sources(),
                throughput=self._throughput,
                options=options,
                metrics=metrics,
                report=report,
                clock=clock,
            )
        )

    @property
    def due(self) -> float:
        """When `step` must run next even if nothing happens."""
        return min(self.transfers.due, self._doubtful_since + self._options.quarantine_s)

    @property
    def free_slabs(self) -> int:
        """Of the side that has fewer. May be read on any thread."""
        sending, receiving = self._pools
        return min(sending.free, receiving.free)

    @property
    def quarantined_slabs(self) -> int:
        """Of both sides. May be read on any thread."""
        sending, receiving = self._pools
        return sending.quarantined + receiving.quarantined

    @property
    def bytes_s(self) -> float:
        """What peers took a second lately. May be read on any thread."""
        return self._throughput.bytes_s

    def step(self) -> Exception | None:
        """Move every transfer on. Returns why the link must be replaced, if it must."""
        if self.link.broke is None:
            self.transfers.step()
        return self.link.broke or self._doubt()

    def end(self, error: HeadraceError) -> None:
        """Fail what is open, and close the link. Raises what the link raises: then it still has its buffers."""
        try:
            self.transfers.break_down(error)
        finally:
            self.link.close()

    def _doubt(self) -> Exception | None:
        """Peers that hold many slabs and do not let go: memory that is theirs until the link is gone."""
        if self.quarantined_slabs <= self._options.quarantine_limit:
            self._doubtful_since = NEVER
            return None
        now = self._clock()
        self._doubtful_since = min(self._doubtful_since, now)
        if now < self._doubtful_since + self._options.quarantine_s:
            return None
        return Unavailable(f"Peers hold {self.quarantined_slabs} slabs and do not let go.")

    def _show_slabs(self) -> None:
        """Counted when somebody looks: slabs move more often than that."""
        for state in SlabState:
            self._metrics.slabs.labels(state.value).set_function(partial(_slabs_in, self._pools, state))

    def _show_zeros(self) -> None:
        """An alert on the first of a kind needs to have seen none before."""
        for refusal in Refusal:
            self._metrics.refused.labels(refusal.value)
        for side, status in itertools.product(Side, TransferStatus):
            self._metrics.transfers.labels(side.value, status.value)


def _slabs_in(pools: tuple[SlabPool, ...], state: SlabState) -> int:
    return sum(pool.counts[state] for pool in pools)
