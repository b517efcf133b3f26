"""Tickets are never written twice, and which blocks are ready follows from what is computed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Job, JobKey, JobKind
from headrace.core.layout import KvLayout
from headrace.core.sampling import SamplingParams
from headrace.core.ticket import Ticket
from headrace.worker.tickets import TicketOffice

HERE, PEER = WorkerRef("here", "life"), WorkerRef("peer", "life")
LAYOUT = KvLayout(2, 2, 8, 16, "float32")


def office(page: int = 16, address: Callable[[], str] = lambda: "127.0.0.1:9") -> TicketOffice:
    return TicketOffice(HERE, b"digest", replace(LAYOUT, block_tokens=page), "tcp", address)


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


@given(tokens=st.integers(1, 200), page=st.sampled_from((16, 32, 48)), data=st.data())
def test_ready_blocks_grow_to_exactly_those_of_the_ticket(tokens: int, page: int, data: st.DataObject) -> None:
    asked = decode_job(tokens)
    resident = page * data.draw(st.integers(0, (tokens - 1) // page))
    here = office(page)
    ticket: Ticket = here.write(asked, PEER, resident)
    blocks = tuple(range(100, 100 + -(-tokens // page)))
    seen = 0
    for computed in [*sorted(data.draw(st.lists(st.integers(0, tokens)))), tokens]:
        held = blocks[: -(-computed // page)]
        ready = here.ready(ticket, asked, computed, held)
        assert len(ready) >= seen
        seen = len(ready)
        assert ready == blocks[ticket.first_block :][:seen]
        whole = seen + ticket.first_block
        assert seen == 0 or whole * page <= computed or computed == tokens
    assert seen == ticket.block_count
    assert here.verified_tokens(ticket, asked, seen) == tokens
    assert here.verified_tokens(ticket, asked, 0) == resident


def test_both_ends_give_a_ticket_the_context_of_its_tokens_and_of_no_others() -> None:
    asked = decode_job(40)
    ticket = office().write(asked, PEER, 16)
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


def test_a_ticket_for_pages_of_another_size_is_refused_with_the_remedy() -> None:
    here, asked = office(16), decode_job(40)
    ticket = office(32).write(asked, HERE, 0)
    with pytest.raises(InvalidRequest, match=r"pages of 32 tokens .* of 16: give both the same --block-size"):
        here.check(asked, ticket)
