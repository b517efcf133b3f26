"""Variables of every command: each setting has one of its flag's name, which begins as all of ours do, and no other."""

import pytest
from pydantic_settings import BaseSettings
from unit.config.test_config_numbers import needed_words

from headrace.cli import COMMANDS
from headrace.config import read
from headrace.core.errors import StartupError

SWITCHES = [
    (command, name)
    for command, (kind, _) in COMMANDS.items()
    for name, field in kind.model_fields.items()
    if field.annotation is bool and name != "lifeline"
]


def switched(command: str, name: str) -> bool:
    kind, _ = COMMANDS[command]
    settings: BaseSettings = read(kind, needed_words(kind), command)
    return bool(getattr(settings, name))


def flag_of(command: str, name: str) -> str:
    kind, _ = COMMANDS[command]
    return kind.model_fields[name].alias or name


def test_there_are_such_switches() -> None:
    assert {("status", "json_output"), ("chaos", "list_only"), ("up", "log_json")} <= set(SWITCHES)


@pytest.mark.parametrize(("command", "name"), SWITCHES)
def test_a_switch_is_a_variable_that_begins_as_ours_do(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = flag_of(command, name).upper()
    before = switched(command, name)
    other = str(not before).lower()
    # 1. Without the prefix it is somebody else's.
    monkeypatch.setenv(variable, other)
    assert switched(command, name) is before
    # 2. With it, it is ours.
    monkeypatch.setenv(f"HEADRACE_{variable}", other)
    assert switched(command, name) is not before


NUMBERS = [
    (command, name)
    for command, (kind, _) in COMMANDS.items()
    for name, field in kind.model_fields.items()
    if field.annotation in {int, float}
]


@pytest.mark.parametrize(("command", "name"), NUMBERS)
def test_a_mistake_is_told_by_the_name_that_it_was_made_under(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _ = COMMANDS[command]
    flag, variable = f"--{name.replace('_', '-')}", f"HEADRACE_{name.upper()}"
    words = needed_words(kind)
    monkeypatch.setenv(variable, "abc")
    with pytest.raises(StartupError, match=f"^{variable}: "):
        read(kind, words, command)
    # The flag goes over the variable, and its mistake is its own.
    for arguments in ([f"{flag}=abc", *words], [flag, "abc", *words]):
        with pytest.raises(StartupError, match=f"^{flag}: "):
            read(kind, arguments, command)
