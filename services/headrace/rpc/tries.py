"""The tries of one request at several routers: their names, and their explanations as one. Knows no router."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.lifecycle import Transition
from headrace.core.route import Explanation
from headrace.rpc.codec.generation import MAX_ID_CHARS

MAX_TRIES = 4


def named(request: str, number: int) -> str:
    """The id of a request's try, counted from 1. Each has its own: a router may still hold an earlier one."""
    if number == 1:
        return request
    suffix = f"~{number}"
    return f"{request[: MAX_ID_CHARS - len(suffix)]}{suffix}"


def names(request: str) -> tuple[str, ...]:
    """The ids of all tries that there can be, in order."""
    return tuple(named(request, number) for number in range(1, MAX_TRIES + 1))


def joined(request: str, tries: Sequence[Explanation]) -> Explanation:
    """What is known of the tries, in order and at least one, as the life of the request.

    Times are comparable within a try only, so each is told as if it had begun when the one before ended.
    """
    transitions: list[Transition] = []
    for one in tries:
        shift = transitions[-1].at - one.transitions[0].at if transitions and one.transitions else 0.0
        transitions += [replace(move, at=move.at + shift) for move in one.transitions]
    return replace(
        tries[-1],
        request=request,
        routes=tuple(route for one in tries for route in one.routes),
        transitions=tuple(transitions),
        actual_cached_tokens=tries[0].actual_cached_tokens,
        actual_ttft_ms=next((one.actual_ttft_ms for one in tries if one.actual_ttft_ms), 0.0),
    )
