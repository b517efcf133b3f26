"""The text of one answer as it may be shown: ids in, text out, until a stop string comes.

A stop string counts as soon as the answer, if it ended there, would hold it: also in characters that the detokenizer
still holds back because a later token may break them.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.text.stops import StopMatcher


class Detokenizing(Protocol):
    """Ids to text. likely: complete characters held back, which come as they are unless a later token breaks them."""

    @property
    def likely(self) -> str: ...

    def push(self, token_id: int, /) -> str: ...

    def flush(self) -> str: ...


class AnswerText:
    """stops: not empty strings. keep_stop: the stop string that ends the text is shown."""

    def __init__(self, detokenizer: Detokenizing, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops, keep_stop=keep_stop)
        self._settled = 0
        self._unarmed = 0
        self._trial: StopMatcher | None = None
        self._tried = 0

    @property
    def characters(self) -> int:
        """Of the whole text so far, shown or held back; an incomplete last one does not count."""
        return self._settled + len(self._detokenizer.likely)

    def push(self, token_id: int, *, armed: bool = True) -> tuple[str, bool]:
        """The text that is safe to show now, and whether a stop string came: then this was the last of the text.

        A stop string whose end lies in the text of a token that is not armed is text like any other. Tokens are armed
        from one of them on.
        """
        settled = self._detokenizer.push(token_id)
        if not armed:
            self._unarmed = self.characters + len(settled)
        shown, stopped = self._matched(settled)
        if stopped or not self._would_stop(changed=bool(settled), armed=armed):
            return shown, stopped
        more, stopped = self._matched(self._detokenizer.flush())
        assert stopped
        return shown + more, True

    def flush(self, *, armed: bool = True) -> tuple[str, bool]:
        """What was held back, at the end of the text, and whether it holds a stop string."""
        rest = self._detokenizer.flush()
        if not armed:
            self._unarmed = self._settled + len(rest)
        shown, stopped = self._matched(rest)
        return (shown, True) if stopped else (shown + self._stops.flush(), False)

    def _matched(self, text: str) -> tuple[str, bool]:
        free = max(0, self._unarmed - self._settled)
        self._settled += len(text)
        shown, _ = self._stops.push(text[:free], armed=False)
        more, stopped = self._stops.push(text[free:])
        return shown + more, stopped

    def _would_stop(self, *, changed: bool, armed: bool) -> bool:
        """Whether the characters held back complete a stop string. changed: some of them were settled since."""
        likely = self._detokenizer.likely
        if changed or len(likely) < self._tried:
            self._trial, self._tried = None, 0
        fresh, self._tried = likely[self._tried :], len(likely)
        if not fresh:
            return False
        self._trial = self._trial or self._stops.fork()
        return self._trial.push(fresh, armed=armed)[1]
