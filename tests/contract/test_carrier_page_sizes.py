"""Pages of different sizes, and pages with scales, over every link: what D holds of each token is what P holds."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from carrier_pair import BYTES, Pair
from transfer_peer import BF16, ArrayPages

from headrace.core.errors import InvalidRequest
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.transfer.carrier import TransferStatus
from headrace.transfer.neutral import unit_blocks, wire_blocks, wire_tokens

SIZES = (16, 32, 48, 64)
UNEQUAL = [pair for pair in product(SIZES, SIZES) if pair[0] != pair[1]]
LINKS = ("loopback", "tcp", "ucx", "nccl")
PAGES = 40
SCALED = replace(BF16, dtype="int8", scale_bytes=64)


def tokens(pages: ArrayPages, ids: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """[token, layer, kv head and K or V, bytes] of pages without scales."""
    layout = pages.layout
    shape = (layout.layers, len(ids), layout.kv_heads * 2, layout.block_tokens, -1)
    each = pages.array[:, list(ids)].reshape(shape).transpose(1, 3, 0, 2, 4)
    return each.reshape(len(ids) * layout.block_tokens, *each.shape[2:])


def ticket_for(made: Pair, here: int, there: int, resident: int, length: int) -> Ticket:
    """As a decode worker with pages of `there` writes it for one with pages of `here`."""
    wire = wire_tokens(here, there)
    first, count = resident // wire, -(-length // wire) - resident // wire
    ticket = made.ticket(count, unit_blocks(here, there))
    return replace(ticket, first_block=first, wire_tokens=wire)


@pytest.mark.parametrize("link", LINKS)
def test_every_token_arrives_in_pages_of_any_other_size(pair: Callable[..., Pair], link: str) -> None:
    # Every pair of sizes over the link that is quick to make, a ratio and no ratio over the others.
    for here, there in UNEQUAL if link == "loopback" else [(64, 16), (32, 48)]:
        made = pair(link, replace(BF16, block_tokens=there), PAGES, sender=replace(BF16, block_tokens=here))
        wire, total = wire_tokens(here, there), 0
        for length, resident in ((1, 0), (16, 0), (350, 0), (350, 3 * there), (384, there)):
            # 1. P computes a prompt in some pages; D has the first of it.
            sent = tuple(range(-(-length // here)))
            received = tuple(PAGES - 1 - index for index in range(-(-length // there)))
            ticket = ticket_for(made, here, there, resident, length)
            source = wire_blocks(sent, here // wire)[ticket.first_block :][: ticket.block_count]
            target = wire_blocks(received, there // wire)[ticket.first_block :][: ticket.block_count]
            # 2. Its wire blocks go as they are computed.
            made.d.receive(ticket, target, 20.0)
            made.p.send(ticket, 20.0)
            for computed in (1, len(source) // 2, len(source)):
                made.p.advance(ticket.transfer, source[:computed])
            nbytes = ticket.block_count * ticket.wire.block_bytes
            for peer in (made.p, made.d):
                report = peer.report()
                assert (report.status, report.error) == (TransferStatus.COMPLETE, None)
                assert (report.verified_blocks, report.payload_bytes) == (ticket.block_count, nbytes)
            total += nbytes
            # 3. Every token that travelled is at D as it is at P, and no more than a wire block beyond the last.
            assert np.array_equal(
                tokens(made.d.pages, received)[resident:length], tokens(made.p.pages, sent)[resident:length]
            )
            assert nbytes < (length - resident + wire) * BF16.block_bytes // BF16.block_tokens
        # 4. The counts are of wire blocks, and everything is home.
        assert made.p.sample(BYTES, direction="sent") == made.d.sample(BYTES, direction="received") == total
        made.home()


@pytest.mark.parametrize("link", LINKS)
def test_pages_travel_with_their_scales(pair: Callable[..., Pair], link: str) -> None:
    made = pair(link, SCALED, PAGES)
    ticket, source, target = made.ticket(10), tuple(range(10)), tuple(range(30, 40))
    made.d.receive(ticket, target, 20.0)
    made.p.send(ticket, 20.0)
    made.p.advance(ticket.transfer, source)
    for peer in (made.p, made.d):
        report = peer.report()
        assert report.status is TransferStatus.COMPLETE
        assert report.payload_bytes == 10 * 3 * 2 * 2 * (16 * 16 + 64)
    assert made.p.contents(source) == made.d.contents(target)
    made.home()


@pytest.mark.parametrize(
    ("sender", "says"),
    [
        (replace(SCALED, block_tokens=32), "pages have 32 and 16 tokens, and pages with scales are not cut"),
        (replace(SCALED, scale_bytes=32), "scales take 32 and 64 bytes"),
        (BF16, "KV pages are of bfloat16 and int8"),
    ],
    ids=["page", "scales", "dtype"],
)
def test_pages_that_cannot_be_made_of_each_other_are_refused_by_name(
    pair: Callable[..., Pair], sender: KvLayout, says: str
) -> None:
    made = pair("loopback", SCALED, PAGES, sender=sender)
    ticket = made.ticket(8)
    made.p.send(ticket, 20.0)
    report = made.p.report(5.0)
    assert report.status is TransferStatus.FAILED
    assert isinstance(report.error, InvalidRequest)
    assert says in report.error.message
    made.home()
