"""The bare link: frames through a `Link` and nothing else, as the bound that transfers are held against.

Owns the window and the buffers, which are touched beforehand and used again. No pages, no headers, no checksums.
"""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from headrace.core.errors import TransferFailed
from headrace.transfer.link import FrameId, Link, Receipt, ReceiptState

# Frames under way at once, as in a transfer.
WINDOW = 4
_WAIT_S = 1.0
Begin = Callable[[FrameId, memoryview], Receipt]


class BareLink:
    """Made, used and closed on one thread. largest: bytes of the largest frame."""

    def __init__(self, link: Link, largest: int) -> None:
        self._link = link
        self._free = [np.ones(largest, np.uint8).data for _ in range(WINDOW)]
        self._never = os.eventfd(0, os.EFD_CLOEXEC)

    @property
    def address(self) -> str:
        return self._link.address

    def receive(self, transfer: bytes, sizes: Sequence[int], timeout_s: float) -> None:
        """Post frames of these sizes in order, a window ahead, until all are here. Raises TransferFailed."""
        self._carry(self._link.post, transfer, sizes, timeout_s)

    def send(self, address: str, transfer: bytes, sizes: Sequence[int], timeout_s: float) -> None:
        """The other side of `receive`."""

        def begin(frame: FrameId, buffer: memoryview) -> Receipt:
            return self._link.send(address, frame, buffer)

        self._carry(begin, transfer, sizes, timeout_s)

    def close(self) -> None:
        self._link.close()
        os.close(self._never)

    def _carry(self, begin: Begin, transfer: bytes, sizes: Sequence[int], timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        under_way: list[tuple[Receipt, memoryview]] = []
        began = 0
        while began < len(sizes) or under_way:
            while began < len(sizes) and self._free:
                buffer = self._free.pop()
                under_way.append((begin(FrameId(transfer, began), buffer[: sizes[began]]), buffer))
                began += 1
            self._link.progress(_WAIT_S, self._never)
            under_way = [each for each in under_way if not self._landed(*each)]
            if time.monotonic() > until:
                raise TransferFailed(f"The bare link did not carry {len(sizes)} frames within {timeout_s:g} s.")

    def _landed(self, receipt: Receipt, buffer: memoryview) -> bool:
        if receipt.pending:
            return False
        if receipt.state is ReceiptState.FAILED:
            raise TransferFailed(f"The bare link lost a frame: {receipt.reason}.")
        self._free.append(buffer)
        return True
