"""One end of a hand-off: a transfer thread over pages, and beside it the bare link of the same kind.

Owns both for as long as one link is measured. It does not know whether its peer is another process.
"""

import os
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.bench.handoff_bare import BareLink
from headrace.core.errors import TransferFailed
from headrace.core.fleet import WorkerRef
from headrace.core.layout import KvLayout
from headrace.core.pages import PagePort
from headrace.core.ticket import Ticket
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import TransferReport, TransferStatus
from headrace.transfer.factory import make_link
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions
from headrace.transfer.thread import TransferThread
from headrace.transfer.wire import HEADER_BYTES

# Of one measurement; none takes a tenth of it.
LIMIT_S = 60.0
# Nothing is under way where all went well; where not, the process ends soon.
_CLOSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Wiring:
    """A way between two workers. name: for people. link: as --link has it. tls: UCX's transports, where it is ucx.

    leaves_host: whether it does anything of its own between hosts. receiver, sender: the addresses of the hosts, at
    which each reaches the other."""

    name: str
    link: str
    tls: str = "tcp,self"
    leaves_host: bool = True
    receiver: str = "127.0.0.1"
    sender: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Cut:
    """How pages travel: units of so many blocks of this layout."""

    layout: KvLayout
    unit_blocks: int

    def frames(self, blocks: int) -> tuple[int, ...]:
        """Bytes of each unit's frame."""
        counts = (min(self.unit_blocks, blocks - first) for first in range(0, blocks, self.unit_blocks))
        return tuple(HEADER_BYTES + count * self.layout.block_bytes for count in counts)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of one end: where its transfers and its bare link are reached."""

    transfers: str
    bare: str


class HandoffEnd:
    """host: the address of this host at which the other end reaches it. switchboard: for loopback, of both ends."""

    def __init__(
        self, wiring: Wiring, host: str, pages: PagePort, unit_blocks: int, switchboard: Switchboard | None = None
    ) -> None:
        factory = make_link(wiring.link, host, tls=wiring.tls, switchboard=switchboard)
        self._reports: queue.SimpleQueue[tuple[float, TransferReport]] = queue.SimpleQueue()
        self.thread = TransferThread(
            factory, pages, self._keep, TransferMetrics(CollectorRegistry()), TransferOptions(unit_blocks=unit_blocks)
        )
        self.thread.start()
        try:
            self.bare = BareLink(factory.open(), Cut(pages.layout, unit_blocks).frames(unit_blocks)[0])
        except BaseException:
            self.thread.close()
            raise

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.thread.address, self.bare.address)

    def send(self, ticket: Ticket, blocks: Sequence[int]) -> None:
        """Send blocks that all stand in their pages, until they are taken. Raises TransferFailed."""
        self.thread.send(ticket, LIMIT_S)
        self.thread.advance(ticket.transfer, tuple(blocks))
        self.completed()

    def completed(self) -> float:
        """When the next transfer to end here was complete, on the machine's monotonic clock. Raises TransferFailed."""
        try:
            at, report = self._reports.get(timeout=LIMIT_S)
        except queue.Empty:
            raise TransferFailed(f"A transfer made no report within {LIMIT_S:g} s.") from None
        if report.status is not TransferStatus.COMPLETE:
            raise TransferFailed(f"A transfer ended as {report.status.value}: {report.error or 'without a reason'}.")
        return at

    def close(self) -> None:
        try:
            self.bare.close()
        finally:
            self.thread.close(_CLOSE_S)

    def _keep(self, report: TransferReport) -> None:
        self._reports.put((time.monotonic(), report))


def make_ticket(cut: Cut, link: str, address: str, blocks: int) -> Ticket:
    """The right to send this many blocks to the transfers at `address`."""
    return Ticket(
        transfer=os.urandom(16),
        secret=os.urandom(16),
        job="bench",
        attempt=1,
        source=WorkerRef("prefill", "1"),
        target=WorkerRef("decode", "1"),
        model_digest=b"bench",
        layout=cut.layout,
        first_block=0,
        block_count=blocks,
        unit_blocks=cut.unit_blocks,
        link=link,
        address=address,
    )
