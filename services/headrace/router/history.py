"""The last requests' explanations, oldest forgotten first."""

from collections import OrderedDict

from headrace.core.errors import NotFound
from headrace.core.route import Explanation


class History:
    """A ring of `size` explanations by request id; a repeated id keeps the newest."""

    def __init__(self, size: int = 1000) -> None:
        self._size = size
        self._kept: OrderedDict[str, Explanation] = OrderedDict()

    def record(self, explanation: Explanation) -> None:
        self._kept.pop(explanation.request, None)
        self._kept[explanation.request] = explanation
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def get(self, request: str) -> Explanation:
        """Raises NotFound."""
        if request not in self._kept:
            raise NotFound(f"Request {request!r} is not among the last {self._size}.")
        return self._kept[request]
