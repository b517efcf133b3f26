"""Doors: at which of them a request can be asked now, and whether one broke since."""

from collections import Counter
from collections.abc import Sequence

from headrace.chaos.members import DOORS, Member, of_kind


class Doors:
    """All of them are open when it is made."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = {member.name: member for member in of_kind(members, *DOORS)}
        self._closed: set[str] = set()
        self._breaks: Counter[str] = Counter()

    def pick(self, wanted: str) -> Member:
        """The door of that name, or another one while that is closed."""
        if wanted not in self._closed:
            return self._members[wanted]
        return next(member for name, member in self._members.items() if name not in self._closed)

    def breaks(self, name: str) -> int:
        """How often connections to it were broken by its end."""
        return self._breaks[name]

    def close(self, name: str, *, breaking: bool) -> None:
        """Nobody is sent there any more. Does nothing for who is no door. breaking: who is there is cut."""
        if name in self._members:
            self._closed.add(name)
            self._breaks[name] += breaking

    def open(self, name: str) -> None:
        self._closed.discard(name)
