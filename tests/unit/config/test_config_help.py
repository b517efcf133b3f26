"""`headrace COMMAND --help`: what stands for a value can be read, and a word with few values says which."""

from typing import Literal, get_args, get_origin

import pytest

from headrace.cli import COMMANDS, main
from headrace.config_help import readable, words


def helped(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_no_type_of_python_stands_for_a_value(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = helped(command, capsys, monkeypatch)
    assert not [word for word in ("tuple[", "SecretStr", "{{", "},{") if word in shown]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_word_of_few_values_names_them(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = helped(command, capsys, monkeypatch).partition("positional arguments:\n")[2].partition("\n\n")[0]
    for name, field in words(COMMANDS[command][0]).items():
        (line,) = (line for line in shown.splitlines() if line.split()[0] == name)
        if get_origin(field.annotation) is Literal:
            assert all(value in line.partition(name)[2] for value in get_args(field.annotation)), line


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("tuple[int,...]", "int,int,..."),
        ("tuple[SecretStr,...]", "secret,secret,..."),
        ("SecretStr", "secret"),
        ("tuple[{ucx,tcp},...]", "{ucx,tcp},..."),
        ("tuple[{{kill,freeze},{cut}},...]", "{kill,freeze,cut},..."),
        ("tuple[{{kill,freeze},lost},...]", "{kill,freeze,lost},..."),
        ("{auto,off}", "{auto,off}"),
        ("Path", "Path"),
    ],
)
def test_readable(made: str, shown: str) -> None:
    assert readable(made) == shown
