"""Stop strings, found while the text still comes.

The match that ends first wins, and of those that end together the longest; where the text was cut into pieces makes
no difference. Each stop string has a Knuth-Morris-Pratt automaton, so a character costs the same however long they are.
"""

from collections.abc import Sequence
from copy import copy


class StopMatcher:
    """One answer's stop strings. Text that may yet turn out to begin one is held back."""

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        """stops: not empty strings; none at all is allowed, and then everything passes. keep_stop: the stop string
        that ends the text is shown."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._keep_stop = keep_stop
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, bool]:
        """The text that is safe to show now, and whether a stop string came: then this was the last of the text.

        A stop string whose end lies in a text that is not armed is text like any other.
        """
        pending = self._held + text
        for at, character in enumerate(text, start=len(self._held) + 1):
            # Every automaton sees every character: no short cut on the first match.
            found = max([automaton.matched(character) for automaton in self._automata], default=0)
            if found and armed:
                self._held = ""
                return pending[: at if self._keep_stop else at - found], True
        keep = max((automaton.state for automaton in self._automata), default=0)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def fork(self) -> "StopMatcher":
        """Another one that goes on from here, to try what a text would bring."""
        fork = StopMatcher((), keep_stop=self._keep_stop)
        fork._automata = [copy(automaton) for automaton in self._automata]
        fork._held = self._held
        return fork


class _Automaton:
    """state: the length of the longest beginning of `stop` with which the text so far ends."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = _borders(stop)
        self.state = 0

    def matched(self, character: str) -> int:
        """Take one more character; the length of the stop string if it is complete now, else 0."""
        while self.state and self._stop[self.state] != character:
            self.state = self._borders[self.state - 1]
        if self._stop[self.state] == character:
            self.state += 1
        if self.state == len(self._stop):
            self.state = self._borders[-1]
            return len(self._stop)
        return 0


def _borders(text: str) -> list[int]:
    """For each beginning of `text`, the length of its longest proper beginning that is also its ending."""
    borders = [0] * len(text)
    length = 0
    for at in range(1, len(text)):
        while length and text[at] != text[length]:
            length = borders[length - 1]
        if text[at] == text[length]:
            length += 1
        borders[at] = length
    return borders
