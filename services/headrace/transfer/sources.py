"""Sources: when a frame of each worker that sends to this one last came, whichever transfer it was of.

Knows no frames and no clock: its callers say what happened, and when.
"""

from dataclasses import dataclass
from weakref import WeakValueDictionary

from headrace.core.fleet import WorkerRef
from headrace.transfer.peers import NEVER


@dataclass(slots=True, weakref_slot=True)
class Source:
    """heard_at: when a frame of it last came, on the site's clock."""

    heard_at: float = -NEVER


class Sources:
    """Those of the transfers that are there: a source lives as long as somebody holds it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[WorkerRef, Source] = WeakValueDictionary()

    def of(self, worker: WorkerRef) -> Source:
        """The same for all its transfers."""
        source = self._known.get(worker)
        if source is None:
            source = self._known[worker] = Source()
        return source
