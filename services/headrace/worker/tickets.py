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
from headrace.core.layout import KvLayout
from headrace.core.ticket import UNIT_BLOCKS, Ticket

_NONCE_BYTES = 8
_COUNTER_BYTES = 8
_SECRET_BYTES = 16


class TicketOffice:
    """The tickets of one incarnation. address: what its data address is now, for the link named `link`; one that had
    to be opened again has another."""

    def __init__(
        self, ref: WorkerRef, model_digest: bytes, layout: KvLayout, link: str, address: Callable[[], str]
    ) -> None:
        self._ref = ref
        self._model_digest = model_digest
        self._layout = layout
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
        first = resident_tokens // self._layout.block_tokens
        ticket = Ticket(
            transfer=self._nonce + next(self._counter).to_bytes(_COUNTER_BYTES, "big"),
            secret=secrets.token_bytes(_SECRET_BYTES),
            job=job.key.request,
            attempt=job.key.attempt,
            source=source,
            target=self._ref,
            model_digest=self._model_digest,
            layout=self._layout,
            first_block=first,
            block_count=self._blocks(job) - first,
            unit_blocks=UNIT_BLOCKS,
            link=self._link,
            address=self._address(),
        )
        return self.bound(ticket, job)

    def bound(self, ticket: Ticket, job: Job) -> Ticket:
        """The ticket with the context that `job` gives it: its tokens up to the end of the ticket's last block."""
        end = (ticket.first_block + ticket.block_count) * self._layout.block_tokens
        return replace(ticket, context=context_of(job.tokens[:end]))

    def check(self, job: Job, ticket: Ticket) -> None:
        """Raises InvalidRequest unless `ticket` lets this incarnation send pages of exactly this job and model."""
        _require(ticket.source == self._ref, f"The ticket names {ticket.source} as its sender, this is {self._ref}.")
        _require(
            (ticket.job, ticket.attempt) == (job.key.request, job.key.attempt),
            f"The ticket is for job {ticket.job}#{ticket.attempt}, not for {job.key}.",
        )
        _require(ticket.model_digest == self._model_digest, f"{ticket.target} serves other weights than {self._ref}.")
        _require(
            ticket.layout.block_tokens == self._layout.block_tokens,
            f"{ticket.target} has KV pages of {ticket.layout.block_tokens} tokens and {self._ref} of"
            f" {self._layout.block_tokens}: give both the same --block-size.",
        )
        _require(ticket.layout == self._layout, f"{ticket.target} lays its KV pages out differently than {self._ref}.")
        _require(ticket.link == self._link, f"{ticket.target} listens on link {ticket.link}, this is {self._link}.")
        _require(
            0 <= ticket.first_block < ticket.first_block + ticket.block_count == self._blocks(job)
            and ticket.unit_blocks > 0,
            "The ticket's blocks are not those of the job.",
        )

    def ready(self, ticket: Ticket, job: Job, computed_tokens: int, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """Those leading blocks of the ticket that are whole: full, or the last of a job computed to its end."""
        whole = len(job.tokens) <= computed_tokens
        end = self._blocks(job) if whole else computed_tokens // self._layout.block_tokens
        return blocks[ticket.first_block : end]

    def verified_tokens(self, ticket: Ticket, job: Job, verified_blocks: int) -> int:
        """Leading tokens of a decode job whose KV is here and right."""
        return min((ticket.first_block + verified_blocks) * self._layout.block_tokens, len(job.tokens))

    def _blocks(self, job: Job) -> int:
        return blocks_for(len(job.tokens), self._layout.block_tokens)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvalidRequest(sentence)
