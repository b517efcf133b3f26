"""The way of frames between two desks, on which a test holds some of them back, loses them or lets them arrive."""

from collections.abc import Callable

from carrier_desk import Desk

from headrace.transfer.link import FrameId, Link, Receipt, ReceiptState

Which = Callable[[FrameId], bool]


class Road:
    """Of what `desk` sends. sent: every frame, in order. holds: those that are under way from now on until `arrive`
    or `lose`; all others go on at once."""

    def __init__(self, desk: Desk, holds: Which) -> None:
        link: Link = desk.tenure.link._link
        self.sent: list[FrameId] = []
        self.holds = holds
        self._carry = link.send
        self._held: dict[FrameId, tuple[str, memoryview, Receipt]] = {}
        self._offered: list[tuple[Receipt, Receipt]] = []
        link.send = self._send  # type: ignore[method-assign]

    @property
    def held(self) -> tuple[FrameId, ...]:
        return tuple(self._held)

    def arrive(self, *frames: FrameId) -> None:
        """They are there, and are taken once their receiver has a place for them: `look`."""
        for frame in frames:
            address, buffer, receipt = self._held.pop(frame)
            self._offered.append((receipt, self._carry(address, frame, buffer)))
        self.look()

    def look(self) -> None:
        """Their sender hears of those that were taken."""
        for receipt, inner in self._offered:
            if receipt.pending and not inner.pending:
                receipt.settle(inner.state, inner.reason)
        self._offered = [pair for pair in self._offered if pair[0].pending]

    def lose(self, *frames: FrameId, taken: bool = False) -> None:
        """Their connection breaks, in this order. taken: they came to their receiver, and its answer did not."""
        for frame in frames:
            address, buffer, receipt = self._held.pop(frame)
            if taken:
                assert self._carry(address, frame, buffer).state is ReceiptState.DONE
            receipt.settle(ReceiptState.FAILED, "the connection broke")

    def _send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        self.sent.append(frame)
        if not self.holds(frame):
            return self._carry(address, frame, buffer)
        receipt = Receipt(self._withdraw)
        self._held[frame] = address, buffer, receipt
        return receipt

    def _withdraw(self, receipt: Receipt) -> None:
        self.lose(*(frame for frame, held in tuple(self._held.items()) if held[2] is receipt))
        for outer, inner in self._offered:
            if outer is receipt:
                inner.withdraw()
        self.look()
