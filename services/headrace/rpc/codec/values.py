"""What every codec module needs: enums, token ids, required parts, and one refusal for values that do not fit."""

import math
from collections.abc import Sequence
from contextlib import ContextDecorator
from enum import Enum
from typing import Generic, TypeVar, cast

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from headrace.core.errors import InvalidRequest

_MAX_TOKEN = 2**31 - 1

E = TypeVar("E", bound=Enum)
N = TypeVar("N", bound=int)


class refusing(ContextDecorator):
    """Turn the ValueError of a value that does not fit into InvalidRequest. Also a decorator."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise InvalidRequest(f"{self._what} holds a value that cannot be sent: {error}.") from error


class EnumCodec(Generic[E, N]):
    """Maps the members of a Python enum to a protobuf enum whose names are `prefix` and the member's name."""

    def __init__(self, members: type[E], messages: type[N], prefix: str) -> None:
        wrapper = cast(EnumTypeWrapper, messages)
        self._name = members.__name__
        self._numbers = {member: cast(N, wrapper.Value(prefix + member.name)) for member in members}
        self._members = {int(number): member for member, number in self._numbers.items()}

    def encode(self, member: E) -> N:
        return self._numbers[member]

    def decode(self, number: int) -> E:
        member = self._members.get(number)
        if member is None:
            raise InvalidRequest(f"{self._name} has no value of number {number}.")
        return member


def token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    """`ids` as a tuple. Raises InvalidRequest for an id that no vocabulary can hold."""
    if ids and (min(ids) < 0 or max(ids) > _MAX_TOKEN):
        raise InvalidRequest("A token id is out of range.", remedy="Send integers from 0 to 2147483647.")
    return tuple(ids)


def part(message: Message, field: str) -> None:
    """Raises InvalidRequest unless the submessage `field` is set."""
    if not message.HasField(field):
        raise InvalidRequest(f"{message.DESCRIPTOR.name} lacks its {field}.")


def grace(seconds: float) -> float:
    """`seconds`. Raises InvalidRequest unless they are a number that can be waited for; 0 is the callee's own grace."""
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidRequest("A grace must be a finite number of seconds from 0 on.")
    return seconds
