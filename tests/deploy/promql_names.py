"""Takes names and labels out of PromQL without knowing PromQL: enough to see whether a query can find anything."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.samples import Sample

_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_CLAUSE = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?(?=\s*(.?))")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
# A chosen dashboard variable stands for anything: that is what "All" makes of it.
_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric name and what its labels have to be."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def finds(self, samples: Iterable[Sample]) -> list[Sample]:
        return [sample for sample in samples if sample.name == self.name and self._takes(sample.labels)]

    def _takes(self, labels: Mapping[str, str]) -> bool:
        return all(_holds(labels.get(label), operator, value) for label, operator, value in self.matchers)


def _holds(found: str | None, operator: str, value: str) -> bool:
    """A label that is not there takes no matcher, not even one that PromQL would let pass: it is a mistake."""
    if found is None:
        return False
    equal = re.fullmatch(_VARIABLE.sub(".*", value), found) is not None if "~" in operator else found == value
    return equal != operator.startswith("!")


def selectors(query: str) -> list[Selector]:
    """Every metric that the query reads."""
    bare = re.sub(r"\[[^\]]*\]", " ", _CLAUSE.sub(" ", query))
    return [
        Selector(match[1], tuple(_MATCHER.findall(match[2] or "")))
        for match in _SELECTOR.finditer(re.sub(r"(?<![\w}])\d[\w.]*", " ", bare))
        if match[1].lower() not in _WORDS and (match[2] or match[3] != "(")
    ]


def grouped_by(query: str) -> set[str]:
    """Every label that the query groups or joins by."""
    return {label.strip() for _, labels in _CLAUSE.findall(query) for label in labels.split(",") if label.strip()}


def kept(query: str) -> set[str]:
    """The labels that are left of the result's own when all is grouped `by`."""
    return {label.strip() for word, labels in _CLAUSE.findall(query) if word == "by" for label in labels.split(",")}
