"""The configuration file: one YAML document a deployment, read by every service.

Owns the document's shape: values for all, a section a process, named worker pools. It knows no field's meaning; which
names are right comes from the configuration classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from headrace.core.errors import StartupError

POOLS = "pools"
# What a pool says of its placement; the rest of its keys are a worker's own.
POOL_ONLY = frozenset({"replicas", "cpus", "gpus"})
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Names:
    """The right names: of values for all, and of each section's own. A pool's are those of the section `worker`."""

    shared: frozenset[str]
    sections: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Document:
    """A file whose every name is right. Values are as YAML read them: the classes check them."""

    path: Path
    shared: Values
    sections: Mapping[str, Values]
    pools: Mapping[str, Values]

    def pool(self, name: str) -> Values:
        """Raises StartupError if the file has no such pool."""
        if name not in self.pools:
            known = f"It has {', '.join(self.pools)}." if self.pools else "It has none."
            raise StartupError(f"{self.path} has no pool {name!r}.", remedy=known)
        return {key: value for key, value in self.pools[name].items() if key not in POOL_ONLY}

    def section(self, name: str) -> Values:
        return self.sections.get(name, {})


def load(path: Path, names: Names) -> Document:
    """Read a document and check its names. Raises StartupError with the nearest right name for a wrong one."""
    top = _mapping(_parse(path), f"{path}")
    _require_known(top, [*names.shared, *names.sections, POOLS], f"{path}")
    sections = {name: _mapping(top[name], f"{name} in {path}") for name in names.sections if name in top}
    for name, values in sections.items():
        _require_known(values, names.sections[name], f"{name} in {path}")
    pools = {
        name: _mapping(values, f"pool {name} in {path}")
        for name, values in _mapping(top.get(POOLS), f"{POOLS} in {path}").items()
    }
    for name, values in pools.items():
        _require_known(values, [*names.sections["worker"], *POOL_ONLY], f"pool {name} in {path}")
    shared = {name: value for name, value in top.items() if name in names.shared}
    return Document(path, shared, sections, pools)


def _parse(path: Path) -> object:
    try:
        return yaml.load(path.read_text(), _Once)
    except _Twice as twice:
        raise StartupError(
            f"{path} says {twice.key!r} twice, again in line {twice.line}.", remedy="Keep one."
        ) from None
    except OSError as error:
        raise StartupError(f"Cannot read the configuration {path}: {error.strerror}.") from None
    except yaml.MarkedYAMLError as error:
        raise StartupError(f"{path} is not YAML{_place(error)}.", remedy="Mend it there, or a little before.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise StartupError(f"{path} is not YAML that can be read ({type(error).__name__}).") from None


class _Twice(Exception):
    """A mapping says a key again."""

    def __init__(self, key: str, line: int) -> None:
        super().__init__(key, line)
        self.key, self.line = key, line


class _Once(yaml.SafeLoader):
    """YAML's own reader takes the last of two values for one key, without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """As it stands there: what `<<` brings in comes later, and the keys beside it go over that."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _Twice(key.value, key.start_mark.line + 1)
            seen.add(str(key.value))
        return node


def _place(error: yaml.MarkedYAMLError) -> str:
    """Where it is, and not what: the reader's own words quote the file, whose next word may be a secret."""
    mark = error.problem_mark or error.context_mark
    return f": line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _mapping(value: object, where: str) -> dict[str, Any]:
    """An empty section is an empty mapping; anything but a mapping with names for keys is refused."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise StartupError(f"{where} must hold names and values.", remedy="Write `name: value`, one a line.")
    return value


def _require_known(values: Values, known: Iterable[str], where: str) -> None:
    names = list(known)
    for name in values:
        if name not in names:
            nearest = get_close_matches(name, names, n=1)
            raise StartupError(
                f"{where} has the unknown key {name!r}.",
                remedy=f"Did you mean {nearest[0]!r}?" if nearest else f"Known: {', '.join(sorted(names))}.",
            )
