"""Tickets: everything both ends of one KV transfer must agree on, written by the receiver."""

from dataclasses import dataclass, replace

from headrace.core.fleet import WorkerRef
from headrace.core.layout import KvLayout

UNIT_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to send one job's missing KV blocks to one decode worker, once.

    transfer, secret: 16 random bytes each; `transfer` names the hand-off, `secret` proves the sender was told.
    layout: the receiver's. wire_tokens: tokens of a wire block, which divide the pages of both ends; 0: these are of
    one size, and so are wire blocks. first_block, block_count, unit_blocks: in wire blocks.
    first_block, block_count: the run of the job's blocks to send, counted from the start of its tokens;
    blocks before it are resident at the receiver. The last one may be partly filled and is sent whole.
    source, target: the two incarnations; data from any other is refused (I4).
    address: the receiver's data address, for the link named `link`.
    context: names the tokens that the blocks are of (core.blocks.context_of). It never travels in a ticket: each side
    makes it of its own job and every frame holds the sender's, so pages of other tokens are refused.
    """

    transfer: bytes
    secret: bytes
    job: str
    attempt: int
    source: WorkerRef
    target: WorkerRef
    model_digest: bytes
    layout: KvLayout
    first_block: int
    block_count: int
    unit_blocks: int
    link: str
    address: str
    wire_tokens: int = 0
    context: bytes = b""

    @property
    def wire(self) -> KvLayout:
        """How blocks lie on their way."""
        return replace(self.layout, block_tokens=self.wire_tokens or self.layout.block_tokens)
