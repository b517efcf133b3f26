"""What a case came to: the answers held against the undisturbed ones, and everything that must be zero.

Pure: it asks nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from headrace.chaos.client import Choice, Heard

# A sentence says more than a word.
_LEAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """What must be zero. wrong: answers of which a token, a text or a logprob differs. leaks: workers that did not come
    to rest. endings: requests that had not exactly one ending, or that nobody answered once all was whole again.
    hung: processes that did not answer or did not stop. died: that ended by themselves. wordless: errors without a
    type and a sentence. missed: cases whose fault did not strike where it should, or was not noticed."""

    wrong: int = 0
    leaks: int = 0
    endings: int = 0
    hung: int = 0
    died: int = 0
    wordless: int = 0
    missed: int = 0

    @property
    def clean(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Judged:
    """One request's outcome. state: finished, failed (with an error that was told), cut, or left by
    its client. complaints: in sentences."""

    state: str
    counts: Counts
    complaints: tuple[str, ...]


def judge(name: str, heard: Heard, reference: Heard, *, may_be_cut: bool) -> Judged:
    """may_be_cut: its door was killed, so that the connection's end is its ending."""
    if finished(heard):
        differing = _difference(heard, reference)
        return Judged("finished", Counts(wrong=bool(differing)), _sentences(name, differing))
    state, ending = _ending(heard, may_be_cut=may_be_cut)
    begun = _departure(heard, reference)
    wordless = [error for error in heard.errors if not _told(error)]
    counts = Counts(wrong=bool(begun), endings=bool(ending), wordless=len(wordless))
    speechless = f"an error without a sentence: {wordless[0]}" if wordless else ""
    return Judged(state, counts, _sentences(name, begun, ending, speechless))


def finished(heard: Heard) -> bool:
    """Whether it is complete: each choice ended once, the whole was said to be complete once, nothing else came."""
    ended_once = all(len(choice.reasons) == 1 for choice in heard.choices.values())
    return bool(heard.choices) and ended_once and heard.done == 1 and not (heard.errors or heard.cut or heard.late)


def _ending(heard: Heard, *, may_be_cut: bool) -> tuple[str, str]:
    """The state of an unfinished one, and what is wrong with how it ended."""
    if heard.left:
        many = len(heard.errors) + heard.done > 1
        return "left", f"{heard.done} ends and {len(heard.errors)} errors before its client left" if many else ""
    if heard.late:
        return "late", f"no ending within {heard.seconds:.1f} s"
    if heard.cut:
        return "cut", "" if may_be_cut and not heard.errors else f"its connection broke: {heard.cut}"
    if len(heard.errors) == 1 and not heard.done:
        return "failed", ""
    reasons = [reason for choice in heard.choices.values() for reason in choice.reasons]
    if may_be_cut and not heard.errors and not heard.done:
        return "cut", ""
    return "odd", f"{heard.done} ends, {len(heard.errors)} errors and finish reasons {reasons}"


def _told(error: Mapping[str, object]) -> bool:
    message, kind = error.get("message"), error.get("type")
    return isinstance(message, str) and len(message.split()) >= _LEAST_WORDS and bool(kind)


def _difference(heard: Heard, reference: Heard) -> str:
    if heard.choices.keys() != reference.choices.keys():
        return f"choices {sorted(heard.choices)} instead of {sorted(reference.choices)}"
    for index, right in reference.choices.items():
        got = heard.choices[index]
        for part in ("token_ids", "text", "logprobs", "reasons"):
            if getattr(got, part) != getattr(right, part):
                return f"choice {index}: {part} {getattr(got, part)!r} instead of {getattr(right, part)!r}"
    return ""


def _departure(heard: Heard, reference: Heard) -> str:
    """Where what an unfinished answer has is not how the undisturbed one begins."""
    for index, got in heard.choices.items():
        right = reference.choices.get(index, Choice())
        if right.token_ids[: len(got.token_ids)] != got.token_ids or not right.text.startswith(got.text):
            return f"choice {index} begins {got.token_ids} instead of {right.token_ids}"
    return ""


def _sentences(name: str, *complaints: str) -> tuple[str, ...]:
    return tuple(f"{name}: {complaint}" for complaint in complaints if complaint)


def total(counts: Sequence[Counts]) -> Counts:
    return sum(counts, Counts())
