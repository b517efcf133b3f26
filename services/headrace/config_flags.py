"""Command lines that cannot be read: what is wrong with one, in a sentence that names the flag.

Knows argparse's complaints and which flags there are; it knows no flag's meaning.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile

from pydantic_settings import BaseSettings

from headrace.config_help import flags, words
from headrace.core.errors import StartupError

COMPLAINT = "error parsing CLI: "
_UNKNOWN = "unrecognized arguments: "
_MISSING = "the following arguments are required: "
_NO_VALUE = re.compile(r"argument (?P<flag>--[\w-]+).*: expected (one argument|at least one argument)")
# Of a flag's letters, without what all begin with: a slip or two, no other word.
_NEAR = 0.75


def misread(complaint: str, config: type[BaseSettings], arguments: Sequence[str]) -> StartupError:
    """What argparse said of these arguments; for a flag that is none with a near one that this class has."""
    said = complaint.removeprefix(COMPLAINT)
    if said.startswith(_UNKNOWN):
        return _unknown(said.removeprefix(_UNKNOWN).split(), flags(config))
    if said.startswith(_MISSING):
        # argparse looks for what is missing first. A slip in what is there may be why it is.
        if strange := _strange(arguments, flags(config)):
            return _unknown(strange, flags(config))
        return _missing(said.removeprefix(_MISSING).split(", ")[0], config)
    if without := _NO_VALUE.match(said):
        flag = without["flag"]
        return StartupError(f"{flag} needs a value.", remedy=f"Write {flag}=VALUE.")
    return StartupError(f"The command line cannot be read: {said}.", remedy="See --help.")


def named(location: tuple[int | str, ...], config: type[BaseSettings]) -> str:
    """How a command line calls a field: by its flag, or as `--help` calls a word without one."""
    name = str(location[0]) if location else "configuration"
    return name.upper() if name.upper() in words(config) else f"--{name.replace('_', '-')}"


def given(name: str, arguments: Sequence[str]) -> bool:
    """Whether a command line has this flag. Of a word nobody can tell: it counts as given."""
    before = takewhile(lambda word: word != "--", arguments)
    return not name.startswith("--") or any(word.partition("=")[0] == name for word in before)


def _missing(name: str, config: type[BaseSettings]) -> StartupError:
    field = words(config).get(name)
    what = f": {field.description}" if field is not None else ""
    return StartupError(f"{name} is missing{what}.", remedy="See --help.")


def _strange(arguments: Sequence[str], flags: list[str]) -> list[str]:
    """What looks like a flag and is none. Behind a bare -- nothing is meant as a flag."""
    words = takewhile(lambda word: word != "--", arguments)
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags]


def _unknown(words: list[str], flags: list[str]) -> StartupError:
    word = next((word for word in words if word.startswith("-")), words[0] if words else "")
    flag = word.partition("=")[0]
    if not flag.startswith("-"):
        return StartupError(f"There is one word too many: {word!r}.", remedy="Flags begin with --; see --help.")
    nearest = get_close_matches(flag.lstrip("-"), [each.lstrip("-") for each in flags], n=1, cutoff=_NEAR)
    remedy = f"Did you mean --{nearest[0]}?" if nearest else "See --help."
    return StartupError(f"There is no flag {flag}.", remedy=remedy)
