"""Renders the Helm chart with Helm's own engine and reads what came out: objects, pods, containers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "headrace"
SCENARIOS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "headrace", "llm"
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod that the release runs. workload: the object that makes it; a pod that stands alone is its own."""

    name: str
    workload: Object
    spec: Mapping[str, Any]
    labels: Mapping[str, str]

    @property
    def container(self) -> Mapping[str, Any]:
        """Its one container."""
        (only,) = self.spec["containers"]
        return dict(only)


@cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def scenario(name: str) -> dict[str, Any]:
    """The values of one file in ci/."""
    return dict(yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text()) or {})


def rendered(values: Mapping[str, Any], name: str = RELEASE) -> list[Object]:
    """Every object that an installation with these values makes."""
    manifests = chart().render(dict(values), name=name, namespace=NAMESPACE)
    return [
        document
        for path, text in manifests.items()
        if not path.endswith(".txt")
        for document in yaml.safe_load_all(text)
        if document
    ]


def notes(values: Mapping[str, Any]) -> str:
    """What the installation says at its end."""
    return chart().render(dict(values), name=RELEASE, namespace=NAMESPACE)["headrace/templates/NOTES.txt"]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Values over values, as Helm merges them: maps key by key, anything else replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by name, without the release's own name before it."""
    return {item["metadata"]["name"].removeprefix(f"{RELEASE}-"): item for item in objects if item["kind"] == kind}


def pods(objects: list[Object]) -> Iterator[Pod]:
    """Every pod, replicas apart, named as a StatefulSet names them; a Deployment's first has the Deployment's name."""
    for item in objects:
        name = item["metadata"]["name"]
        if item["kind"] == "Pod":
            yield Pod(name, item, item["spec"], item["metadata"]["labels"])
        if item["kind"] in {"Deployment", "StatefulSet"}:
            template = item["spec"]["template"]
            for place in range(item["spec"]["replicas"]):
                own = f"{name}-{place}" if item["kind"] == "StatefulSet" or place else name
                yield Pod(own, item, template["spec"], template["metadata"]["labels"])


def config_file(objects: list[Object]) -> str:
    """The text of the services' configuration file."""
    (config,) = of_kind(objects, "ConfigMap").values()
    return str(config["data"]["headrace.yaml"])
