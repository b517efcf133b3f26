"""Command lines that cannot be read: what is wrong with one, in a sentence that names the flag.

Knows argparse's complaints and which flags there are; it knows no flag's meaning.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from headrace.core.errors import StartupError

COMPLAINT = "error parsing CLI: "
_UNKNOWN = "unrecognized arguments: "
_NO_VALUE = re.compile(r"argument (?P<flag>--[\w-]+).*: expected (one argument|at least one argument)")


def misread(complaint: str, names: Iterable[str]) -> StartupError:
    """What argparse said of a command line; for a flag that is none with the nearest of those that the fields of these
    names have."""
    said = complaint.removeprefix(COMPLAINT)
    if said.startswith(_UNKNOWN):
        flags = [f"--{name.replace('_', '-')}" for name in names]
        return _unknown(said.removeprefix(_UNKNOWN).split(), flags)
    if without := _NO_VALUE.match(said):
        flag = without["flag"]
        return StartupError(f"{flag} needs a value.", remedy=f"Write {flag}=VALUE.")
    return StartupError(f"The command line cannot be read: {said}.", remedy="See --help.")


def _unknown(words: list[str], flags: list[str]) -> StartupError:
    word = next((word for word in words if word.startswith("-")), words[0])
    flag = word.partition("=")[0]
    if not flag.startswith("-"):
        return StartupError(f"There is one word too many: {word!r}.", remedy="Flags begin with --; see --help.")
    nearest = get_close_matches(flag, flags, n=1)
    remedy = f"Did you mean {nearest[0]}?" if nearest else "See --help."
    return StartupError(f"There is no flag {flag}.", remedy=remedy)
