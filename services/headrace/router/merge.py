"""Merging Prometheus expositions: one page of many processes, each sample labelled with where it came from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Exposition:
    """One process's metrics text and the labels that its samples get."""

    text: str
    labels: Mapping[str, str]


def merge(expositions: Iterable[Exposition]) -> str:
    """All samples, each family once with its help and type. Of two helps or types for a name the first stands.

    Raises ValueError if a text is not in Prometheus's text format.
    """
    families: dict[str, Metric] = {}
    for exposition in expositions:
        for family in text_string_to_metric_families(exposition.text):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, **exposition.labels}
                kept.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)
    registry = CollectorRegistry()
    registry.register(_Fixed(families.values()))
    return generate_latest(registry).decode()


class _Fixed(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
