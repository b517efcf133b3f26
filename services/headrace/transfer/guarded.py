"""GuardedLink: a link that takes nothing more once it raised, and says why.

A link raises for no peer's fault, so what it has and what it lost is not known any more: its frames, slabs and
transfers end together. Owns that knowledge; who replaces the link is the transfer thread's affair.
"""

from headrace.transfer.link import FrameId, Link, Receipt


class GuardedLink:
    """Implements Link. Nothing but `close` raises; what is asked of a link that broke stays pending for ever."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.broke: Exception | None = None

    @property
    def address(self) -> str:
        return self._link.address

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        if self.broke is None:
            try:
                return self._link.post(frame, buffer)
            except Exception as error:
                self.broke = error
        return _never()

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        if self.broke is None:
            try:
                return self._link.send(address, frame, buffer)
            except Exception as error:
                self.broke = error
        return _never()

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        if self.broke is None:
            try:
                self._link.progress(timeout_s, wake_fd)
            except Exception as error:
                self.broke = error

    def close(self) -> None:
        self._link.close()


def _never() -> Receipt:
    """Of what nobody will do."""
    return Receipt(lambda _: None)
