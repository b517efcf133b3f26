"""Traces: which transfer each job had, also when the job is over: what is under way of it may outlast it.

Owns that memory and its bound. It ends nothing and frees nothing.
"""

from headrace.core.jobs import JobKey

_MOST = 4096


class Traces:
    """A trace belongs to the router that gave the job. most: how many are kept; the oldest go first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._transfers: dict[tuple[str, JobKey], bytes] = {}

    def leave(self, router: str, key: JobKey, transfer: bytes) -> None:
        """The transfer of a job begins."""
        self._transfers.pop((router, key), None)
        self._transfers[router, key] = transfer
        if len(self._transfers) > self._most:
            del self._transfers[next(iter(self._transfers))]

    def find(self, router: str, key: JobKey) -> bytes | None:
        """The transfer of the job that this router gave under that key, the last one; None: it had none, or long
        ago."""
        return self._transfers.get((router, key))
