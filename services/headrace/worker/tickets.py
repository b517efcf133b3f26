"""TicketOffice: writes the tickets of transfers to this worker and checks those of transfers from it.

Owns the names of transfers: never reused, and different in every incarnation (I4). It knows no pages and no links.
"""

import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace

from headrace.core.blocks import blocks_for, context_of
from headrace.core.errors import InvalidRequest
from headrace.core.fleet import WorkerRef
from headrace.core.jobs import Job
from headrace.core.layout import Descriptor, difference
from headrace.core.ticket import Ticket
from headrace.transfer.neutral import unit_blocks, wire_blocks, wire_tokens

_NONCE_BYTES = 8
_COUNTER_BYTES = 8
_SECRET_BYTES = 16


class TicketOffice:
    """The tickets of one incarnation. address: what its data address is now, for the link named `link`; one that had
    to be opened again has another."""

    def __init__(self, ref: WorkerRef, kv: Descriptor, link: str, address: Callable[[], str]) -> None:
        self._ref = ref
        self._kv = kv
        self._page = kv.layout.block_tokens
        self._link = link
        self._address = address
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._counter = itertools.count(1)

    @property
    def link(self) -> str:
        """The name of this worker's link."""
        return self._link

    def write(self, job: Job, source: WorkerRef, resident_tokens: int) -> Ticket:
        """The right for `source` to send what `job` has not resident here."""
        peer_page = job.peer_block_tokens or self._page
        wire = wire_tokens(self._page, peer_page)
        first = resident_tokens // wire
        ticket = Ticket(
            transfer=self._nonce + next(self._counter).to_bytes(_COUNTER_BYTES, "big"),
            secret=secrets.token_bytes(_SECRET_BYTES),
            job=job.key.request,
            attempt=job.key.attempt,
            source=source,
            target=self._ref,
            model_digest=self._kv.digest,
            layout=self._kv.layout,
            first_block=first,
            block_count=blocks_for(len(job.tokens), wire) - first,
            unit_blocks=unit_blocks(self._page, peer_page),
            link=self._link,
            address=self._address(),
            wire_tokens=0 if peer_page == self._page else wire,
        )
        return self.bound(ticket, job)

    def bound(self, ticket: Ticket, job: Job) -> Ticket:
        """The ticket with the context that `job` gives it: its tokens up to the end of the ticket's last block."""
        end = (ticket.first_block + ticket.block_count) * ticket.wire.block_tokens
        return replace(ticket, context=context_of(job.tokens[:end]))

    def check(self, job: Job, ticket: Ticket) -> None:
        """Raises InvalidRequest unless `ticket` lets this incarnation send pages of exactly this job and model."""
        _require(ticket.source == self._ref, f"The ticket names {ticket.source} as its sender, this is {self._ref}.")
        _require(
            (ticket.job, ticket.attempt) == (job.key.request, job.key.attempt),
            f"The ticket is for job {ticket.job}#{ticket.attempt}, not for {job.key}.",
        )
        differs = difference(self._kv, Descriptor(ticket.model_digest, ticket.layout))
        _require(not differs, f"{self._ref} and {ticket.target} cannot exchange KV pages: {differs}.")
        wire = ticket.wire.block_tokens
        _require(
            0 < wire <= self._page and self._page % wire == 0,
            f"Wire blocks of {wire} tokens make up no pages of {self._page}.",
        )
        _require(ticket.link == self._link, f"{ticket.target} listens on link {ticket.link}, this is {self._link}.")
        _require(
            0 <= ticket.first_block < ticket.first_block + ticket.block_count == blocks_for(len(job.tokens), wire)
            and ticket.unit_blocks > 0,
            "The ticket's blocks are not those of the job.",
        )

    def ready(self, ticket: Ticket, job: Job, computed_tokens: int, pages: tuple[int, ...]) -> tuple[int, ...]:
        """Those leading wire blocks of the ticket that are whole: full, or the last of a job computed to its end.

        pages: those of its tokens from the first on."""
        wire = ticket.wire.block_tokens
        whole = len(job.tokens) <= computed_tokens
        end = blocks_for(len(job.tokens), wire) if whole else computed_tokens // wire
        return self._wire_blocks(ticket, pages)[ticket.first_block : end]

    def places(self, ticket: Ticket, pages: tuple[int, ...]) -> tuple[int, ...]:
        """The wire blocks that the ticket's go to. pages: those of its job from the first token on."""
        return self._wire_blocks(ticket, pages)[ticket.first_block : ticket.first_block + ticket.block_count]

    def verified_tokens(self, ticket: Ticket, job: Job, verified_blocks: int) -> int:
        """Leading tokens of a decode job whose KV is here and right: whole pages, or all there are."""
        tokens = (ticket.first_block + verified_blocks) * ticket.wire.block_tokens
        return len(job.tokens) if tokens >= len(job.tokens) else tokens // self._page * self._page

    def _wire_blocks(self, ticket: Ticket, pages: tuple[int, ...]) -> tuple[int, ...]:
        return wire_blocks(pages, self._page // ticket.wire.block_tokens)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvalidRequest(sentence)
