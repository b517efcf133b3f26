"""One wrong thing said on a connection between two tcp links: right data or a failed transfer; the next works."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from chaos_peer import BLOCKS, HASTY, PATIENT, Transfer, make, well_and_at_rest
from transfer_peer import BF16, Peer, Tickets

from headrace.chaos.tcp_fault import Harm, TcpFault
from headrace.chaos.tcp_proxy import TcpProxy
from headrace.core.errors import DeadlineExceeded
from headrace.transfer.carrier import TransferStatus
from headrace.transfer.link import END_UNIT
from headrace.transfer.site import TransferOptions
from headrace.transfer.tcp_head import Verb

COMPLETE = TransferStatus.COMPLETE
STRUCK_S = 10.0


class Proxied:
    """Two peers over tcp, and a proxy before the receiver: tickets name it."""

    def __init__(self, options: TransferOptions) -> None:
        self.p, self.d = Peer("tcp", BF16, 64, 1, options), Peer("tcp", BF16, 64, 0, options)
        self.proxy = TcpProxy(self.d.address())
        self.address = ""
        self._tickets = Tickets()

    def transfer(self, place: int = 0) -> Transfer:
        return make(self.p, self.d, self._tickets, "tcp", address=self.address, place=place)

    def end(self) -> None:
        self.p.close()
        self.d.close()


async def proxied_with(options: TransferOptions) -> AsyncIterator[Proxied]:
    before = set(threading.enumerate())
    made = Proxied(options)
    made.address = await made.proxy.start("127.0.0.1")
    yield made
    await asyncio.to_thread(made.end)
    await made.proxy.close()
    # But for the event loop's own.
    assert all(thread.name.startswith("asyncio_") for thread in set(threading.enumerate()) - before)


@pytest.fixture
async def patient() -> AsyncIterator[Proxied]:
    async for made in proxied_with(PATIENT):
        yield made


@pytest.fixture
async def hasty() -> AsyncIterator[Proxied]:
    async for made in proxied_with(HASTY):
        yield made


async def test_a_proxy_changes_nothing(patient: Proxied) -> None:
    """Tickets name it and the nonce of the link behind it."""
    assert patient.address != patient.d.address()
    assert patient.address.partition("/")[2] == patient.d.address().partition("/")[2]
    transfer = patient.transfer()
    transfer.begin()
    sent, received = await asyncio.to_thread(transfer.reports)
    assert (sent.status, received.status) == (COMPLETE, COMPLETE)
    assert transfer.right()
    with pytest.raises(DeadlineExceeded, match="No message"):
        await patient.proxy.struck(0.01)


SPOKEN = (Verb.HELLO, Verb.OFFER, Verb.PULL, Verb.DATA, Verb.TAKEN)
BORNE = {
    (Harm.DUPLICATED, Verb.OFFER),
    (Harm.DUPLICATED, Verb.TAKEN),
    *((Harm.DELAYED, verb) for verb in SPOKEN),
    *((Harm.REORDERED, verb) for verb in (Verb.OFFER, Verb.PULL, Verb.TAKEN)),
}


def faults(*, borne: bool) -> list[TcpFault]:
    """Every harm to everything that is said of a unit and of the End; a connection has one HELLO."""
    return [
        TcpFault(harm, verb, unit=unit, seconds=0.1)
        for harm in Harm
        for verb in SPOKEN
        for unit in ((None,) if verb is Verb.HELLO else (1, END_UNIT))
        if ((harm, verb) in BORNE) is borne
    ]


def name_of(fault: TcpFault) -> str:
    what = "end" if fault.unit == END_UNIT else "unit" if fault.unit is not None else "any"
    return f"{fault.verb.name.lower()}-{what}-{fault.harm.value}"


@pytest.mark.parametrize("fault", faults(borne=True), ids=name_of)
async def test_what_the_protocol_bears(patient: Proxied, fault: TcpFault) -> None:
    transfer = patient.transfer()
    patient.proxy.arm(fault)
    transfer.begin()
    sent, received = await asyncio.to_thread(transfer.reports)
    assert (sent.status, received.status) == (COMPLETE, COMPLETE), (sent.error, received.error)
    assert transfer.right()
    assert (await patient.proxy.struck(STRUCK_S)).verb is fault.verb
    await asyncio.to_thread(well_and_at_rest, patient.p, patient.d, patient.transfer)


@pytest.mark.parametrize("fault", faults(borne=False), ids=name_of)
async def test_what_it_does_not_bear(hasty: Proxied, fault: TcpFault) -> None:
    transfer = hasty.transfer()
    hasty.proxy.arm(fault)
    transfer.begin()
    sent, received = await asyncio.to_thread(transfer.reports)
    await hasty.proxy.struck(STRUCK_S)
    # 1. What was verified is right, and nothing else was written.
    assert transfer.untouched(received.verified_blocks)
    # 2. The receiver has all of it, or somebody says that it failed.
    if received.status is COMPLETE:
        assert received.verified_blocks == BLOCKS
    else:
        assert TransferStatus.FAILED in {sent.status, received.status}
    # 3. The next one works.
    await asyncio.to_thread(well_and_at_rest, hasty.p, hasty.d, hasty.transfer)


async def test_a_corrupted_page_is_refused_and_not_used(hasty: Proxied) -> None:
    transfer = hasty.transfer()
    hasty.proxy.arm(TcpFault(Harm.CORRUPTED, Verb.DATA, unit=1))
    transfer.begin()
    _, received = await asyncio.to_thread(transfer.reports)
    assert (received.status, received.verified_blocks) == (TransferStatus.FAILED, 4)
    assert hasty.d.sample("headrace_kv_units_refused_total", reason="checksum") == 1
    assert transfer.untouched(4)


async def test_nobody_behind_it(patient: Proxied) -> None:
    """A link that died: callers hear that, and not the proxy's patience."""
    transfer = patient.transfer()
    await asyncio.to_thread(patient.d.close)
    patient.p.send(transfer.ticket, 20.0)
    patient.p.advance(transfer.ticket.transfer, transfer.blocks)
    report = await asyncio.to_thread(patient.p.report, 4.0)
    assert report.status is TransferStatus.FAILED
    assert "the peer closed the connection" in str(report.error)
