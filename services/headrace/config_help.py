"""What a command line is made of, for `--help` and for complaints: its flags, its words, and what stands for a value.

Knows the configuration classes' fields as pydantic describes them; it knows no field's meaning.
"""

import re
from argparse import ArgumentParser
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliPositionalArg, CliSuppress

_WORD = get_args(CliPositionalArg[str])[-1]
_SUPPRESSED = get_args(CliSuppress[str])[-1]
_SEVERAL = re.compile(r"tuple\[(?P<one>.*),\.\.\.\]")
_CHOICE = re.compile(r"[^{},]+")


def add_argument(parser: ArgumentParser, *names: str, **described: Any) -> object:
    """As argparse's own, with a readable metavar."""
    if isinstance(metavar := described.get("metavar"), str):
        described["metavar"] = readable(metavar)
    return parser.add_argument(*names, **described)


def readable(metavar: str) -> str:
    """What stands for a value, made of its type: `int,int,...` for several numbers, `{a,b},...` for several choices."""
    if several := _SEVERAL.fullmatch(metavar):
        one = readable(several["one"])
        return f"{one},..." if one.startswith("{") else f"{one},{one},..."
    if metavar.startswith("{"):
        return f"{{{','.join(_CHOICE.findall(metavar))}}}"
    return "secret" if metavar == "SecretStr" else metavar


def words(config: type[BaseSettings]) -> dict[str, FieldInfo]:
    """The fields that are given without a flag, under the names that `--help` shows."""
    fields = config.model_fields.items()
    return {name.upper(): field for name, field in fields if _WORD in field.metadata}


def flags(config: type[BaseSettings]) -> list[str]:
    """Every flag that `--help` shows."""
    shown = []
    for name, field in config.model_fields.items():
        if _WORD in field.metadata or _SUPPRESSED in field.metadata:
            continue
        flag = (field.alias or name).replace("_", "-")
        shown += [f"--{flag}", f"--no-{flag}"] if field.annotation is bool else [f"--{flag}"]
    return shown
