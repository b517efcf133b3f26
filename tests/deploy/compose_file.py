"""Reads docker-compose.yml: interpolation, profiles, and each service as tests/deploy/local_services.py runs it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from dockerfile import Dockerfile
from local_services import Service

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def load(environment: Mapping[str, str]) -> dict[str, Any]:
    """The file with `${NAME:-default}` filled in, in strings alone as Compose does."""

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [fill(each) for each in value]
        if isinstance(value, str):
            return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[2] or "", value)
        return value

    return dict(fill(yaml.safe_load(COMPOSE.read_text())))


def active(compose: Mapping[str, Any], *profiles: str) -> dict[str, dict[str, Any]]:
    """The services that start with these profiles."""
    return {
        name: service
        for name, service in compose["services"].items()
        if not service.get("profiles") or set(profiles) & set(service["profiles"])
    }


def as_local(name: str, service: Mapping[str, Any], volumes: Mapping[str, Path]) -> Service:
    """One service with its image's entry point; volumes: where a named volume is here."""
    mounts = service.get("volumes", [])
    return Service(
        name=name,
        command=[*entry_point(service), *service["command"]],
        ports=[*map(int, service.get("expose", [])), *exposed(service)],
        environment=service.get("environment", {}),
        health=health_command(service),
        after=[
            other for other, rule in service.get("depends_on", {}).items() if rule["condition"] == "service_healthy"
        ],
        files={each["target"]: (ROOT / each["source"]).read_text() for each in mounts if each["type"] == "bind"},
        directories={each["target"]: volumes[each["source"]] for each in mounts if each["type"] == "volume"},
    )


def entry_point(service: Mapping[str, Any]) -> list[str]:
    """What the image runs; an image that we do not build runs the command itself."""
    if "build" not in service:
        return []
    return list(json.loads(Dockerfile.read(ROOT / service["build"]["dockerfile"]).last("ENTRYPOINT")))


def exposed(service: Mapping[str, Any]) -> list[int]:
    """The ports that the image says it listens on."""
    if "build" not in service:
        return []
    return [int(port) for port in Dockerfile.read(ROOT / service["build"]["dockerfile"]).last("EXPOSE").split()]


def health_command(service: Mapping[str, Any]) -> list[str]:
    kind, *words = service["healthcheck"]["test"]
    return {"CMD": words, "CMD-SHELL": ["sh", "-c", *words]}[kind]
