"""Numbers of every command: none is infinite or none at all, and no duration is longer than clocks can wait."""

from typing import get_args

import pytest
from pydantic_settings import BaseSettings

from headrace.cli import COMMANDS
from headrace.config import LONGEST_S, read
from headrace.core.errors import StartupError

FRACTIONS = [
    (command, name)
    for command, (kind, _) in COMMANDS.items()
    for name, field in kind.model_fields.items()
    if field.annotation is float or float in get_args(field.annotation)
]
DURATIONS = [(command, name) for command, name in FRACTIONS if name.endswith("_s")]


def needed_words(kind: type[BaseSettings]) -> list[str]:
    """What stands on the command line without a flag and has no default; none of it is looked at before numbers."""
    fields = kind.model_fields.values()
    return [str((*get_args(field.annotation), "word")[0]) for field in fields if field.is_required()]


def refused(command: str, name: str, value: str) -> str:
    kind, _ = COMMANDS[command]
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(StartupError) as said:
        read(kind, [*needed_words(kind), f"{flag}={value}"], command)
    assert said.value.message.startswith(f"{flag}: ")
    return said.value.message


def test_there_are_such_numbers() -> None:
    assert {("up", "drain_s"), ("bench", "gbits"), ("health", "timeout_s")} <= set(FRACTIONS)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(("command", "name"), FRACTIONS)
def test_no_number_is_infinite_or_none(command: str, name: str, value: str) -> None:
    assert "Input should be a finite number" in refused(command, name, value)


@pytest.mark.parametrize(("command", "name"), DURATIONS)
def test_no_duration_is_longer_than_a_clock_can_wait(command: str, name: str) -> None:
    assert "Input should be less than or equal to" in refused(command, name, f"{2 * LONGEST_S:g}")
