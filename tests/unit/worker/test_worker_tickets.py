"""Tickets are never written twice, and which blocks are ready follows from what is computed."""

from collections.abc import Callable
from dataclasses import replace
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.layout import Descriptor, KvLayout
from headrace.core.sampling import SamplingParams
from headrace.core.ticket import Ticket
from headrace.worker.tickets import TicketOffice

HERE, PEER = WorkerRef("here", "life"), WorkerRef("peer", "life")
LAYOUT = KvLayout(2, 2, 8, 16, "float32")


def office(page: int = 16, address: Callable[[], str] = lambda: "127.0.0.1:9") -> TicketOffice:
    return TicketOffice(HERE, Descriptor(b"digest", replace(LAYOUT, block_tokens=page)), "tcp", address)


def decode_job(tokens: int) -> Job:
    return Job(JobKey("r", 1), JobKind.DECODE, (5,) * tokens, tokens, SamplingParams(), b"", (), 1.0, peer=PEER)


def test_every_ticket_is_another_and_every_incarnation_too() -> None:
    first, second = office(), office()
    tickets = [one.write(decode_job(40), PEER, 16) for one in (first, first, second)]
    assert len({ticket.transfer for ticket in tickets}) == 3
    assert len({ticket.secret for ticket in tickets}) == 3
    assert tickets[0].transfer[:8] == tickets[1].transfer[:8] != tickets[2].transfer[:8]
    assert {(len(ticket.transfer), len(ticket.secret)) for ticket in tickets} == {(16, 16)}


def test_a_ticket_names_the_address_of_the_link_that_is_open_now() -> None:
    addresses = iter(("127.0.0.1:9", "127.0.0.1:10"))
    here = office(address=lambda: next(addresses))
    assert [here.write(decode_job(40), PEER, 0).address for _ in range(2)] == ["127.0.0.1:9", "127.0.0.1:10"]


SIZES = st.sampled_from((16, 32, 48, 64))


@given(tokens=st.integers(1, 200), page=SIZES, peer_page=SIZES, data=st.data())
def test_ready_blocks_grow_to_exactly_those_of_the_ticket(
    tokens: int, page: int, peer_page: int, data: st.DataObject
) -> None:
    # 1. A worker with pages of one size asks one with pages of another for what it lacks.
    asked = replace(decode_job(tokens), peer_block_tokens=peer_page)
    resident = page * data.draw(st.integers(0, (tokens - 1) // page))
    here, there = office(page), office(peer_page)
    ticket: Ticket = here.write(asked, HERE, resident)
    wire = gcd(page, peer_page)
    assert (ticket.wire.block_tokens, ticket.first_block) == (wire, resident // wire)
    assert bool(ticket.wire_tokens) == (page != peer_page)
    there.check(asked, ticket)
    # 2. As the peer computes, whole wire blocks are ready, and in the end all of them.
    blocks = tuple(range(100, 100 + -(-tokens // peer_page)))
    all_of_them = [page_id * (peer_page // wire) + place for page_id in blocks for place in range(peer_page // wire)]
    seen = 0
    for computed in [*sorted(data.draw(st.lists(st.integers(0, tokens)))), tokens]:
        held = blocks[: -(-computed // peer_page)]
        ready = there.ready(ticket, asked, computed, held)
        assert len(ready) >= seen
        seen = len(ready)
        assert list(ready) == all_of_them[ticket.first_block :][:seen]
        whole = seen + ticket.first_block
        assert seen == 0 or whole * wire <= computed or computed == tokens
    assert seen == ticket.block_count
    # 3. What is verified counts in whole pages of the one that asked.
    assert here.verified_tokens(ticket, asked, seen) == tokens
    assert here.verified_tokens(ticket, asked, 0) == resident
    some = data.draw(st.integers(0, ticket.block_count - 1))
    assert here.verified_tokens(ticket, asked, some) == (resident + some * wire) // page * page
    # 4. Each wire block has its place in the pages of the one that asked.
    mine = tuple(range(50, 50 + -(-tokens // page)))
    ratio = page // wire
    places = [(place // ratio, place % ratio) for place in here.places(ticket, mine)]
    expected = [(50 + at // ratio, at % ratio) for at in range(resident // wire, -(-tokens // wire))]
    assert places == expected


def test_both_ends_give_a_ticket_the_context_of_its_tokens_and_of_no_others() -> None:
    asked = decode_job(40)
    ticket = office().write(asked, HERE, 16)
    arrived = replace(ticket, context=b"")  # it does not travel
    sender = replace(asked, kind=JobKind.PREFILL)
    assert office().bound(arrived, sender).context == ticket.context != b""
    # Tokens before the ticket's first block are bound too, those behind its last are not.
    for position in (0, 39):
        other = (*asked.tokens[:position], 6, *asked.tokens[position + 1 :])
        assert office().bound(arrived, replace(sender, tokens=other)).context != ticket.context
    shorter = replace(arrived, block_count=1)
    longer = replace(sender, tokens=(*asked.tokens[:32], 6, 6))
    assert office().bound(shorter, longer) == office().bound(shorter, sender)


def test_what_a_peer_cannot_make_its_pages_from_is_refused_by_name() -> None:
    asked = decode_job(40)
    ticket = office(16).write(asked, HERE, 0)
    other = replace(LAYOUT, dtype="bfloat16")
    for kv, clause in (
        (Descriptor(b"digest", other), r"here@life and here@life cannot .* of bfloat16 and float32"),
        (Descriptor(b"other", LAYOUT), r"their model digests are 6f74686572 and 646967657374"),
    ):
        with pytest.raises(InvalidRequest, match=clause):
            TicketOffice(HERE, kv, "tcp", lambda: "").check(asked, ticket)


@pytest.mark.parametrize("wire", [12, 24, 32])
def test_wire_blocks_that_do_not_make_up_pages_are_refused(wire: int) -> None:
    asked = decode_job(40)
    ticket = replace(office(32).write(asked, HERE, 0), wire_tokens=wire)
    with pytest.raises(InvalidRequest, match=f"Wire blocks of {wire} tokens make up no pages of 16"):
        office(16).check(asked, ticket)
