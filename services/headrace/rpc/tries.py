"""The tries of one request at several routers: their names, and their explanations as one. Knows no router."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import xxhash

from headrace.core.lifecycle import Transition
from headrace.core.route import Explanation
from headrace.core.waterfall import AttemptNote, Part
from headrace.rpc.codec.generation import MAX_ID_CHARS

MAX_TRIES = 4
Counted = TypeVar("Counted", AttemptNote, Part)


def named(request: str, number: int) -> str:
    """The id of a request's try, counted from 1. Each has its own: a router may still hold an earlier one.

    The end of a long id, which is where ids of one caller mostly differ, gives way to a hash of the whole.
    """
    if number == 1:
        return request
    suffix = f"~{number}"
    if len(request) + len(suffix) > MAX_ID_CHARS:
        suffix = f"~{xxhash.xxh3_64_hexdigest(request.encode())}{suffix}"
    return f"{request[: MAX_ID_CHARS - len(suffix)]}{suffix}"


def names(request: str) -> tuple[str, ...]:
    """The ids of all tries that there can be, in order."""
    return tuple(named(request, number) for number in range(1, MAX_TRIES + 1))


def joined(request: str, tries: Sequence[Explanation]) -> Explanation:
    """What is known of the tries, in order and at least one, as the life of the request.

    Times are comparable within a try only, so each is told as if it had begun when the one before ended.
    """
    return replace(
        tries[-1],
        request=request,
        routes=tuple(route for one in tries for route in one.routes),
        transitions=_transitions(tries),
        actual_cached_tokens=tries[0].actual_cached_tokens,
        actual_ttft_ms=_ttft_ms(tries),
        notes=tuple(_shifted(note, before) for one, before in _attempts(tries) for note in one.notes),
        waterfall=tuple(_shifted(part, before) for one, before in _attempts(tries) for part in one.waterfall),
    )


def _transitions(tries: Sequence[Explanation]) -> tuple[Transition, ...]:
    transitions: list[Transition] = []
    for one in tries:
        shift = transitions[-1].at - one.transitions[0].at if transitions and one.transitions else 0.0
        transitions += [replace(move, at=move.at + shift) for move in one.transitions]
    return tuple(transitions)


def _ttft_ms(tries: Sequence[Explanation]) -> float:
    """To the first token of all, with the whole time of the tries that had none; 0 if no try had one."""
    before_ms = 0.0
    for one in tries:
        if one.actual_ttft_ms:
            return before_ms + one.actual_ttft_ms
        before_ms += 1000 * sum(part.seconds for part in one.waterfall)
    return 0.0


def _attempts(tries: Sequence[Explanation]) -> Iterator[tuple[Explanation, int]]:
    """Each try and the attempts before it. An attempt has a route: one that was still waited for when its router was
    lost is the next try's first, so that an attempt's number stays that of its route."""
    before = 0
    for one in tries:
        yield one, before
        before += len(one.routes)


def _shifted(what: Counted, before: int) -> Counted:
    return replace(what, attempt=what.attempt + before)
