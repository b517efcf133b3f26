"""The chart's pods as services that tests/deploy/local_services.py runs.

What Kubernetes fills in is filled in here: ports by name, `$(VARIABLE)`, values from Secrets, the pod's name, its
address (127.0.0.1). A Service's DNS name is its Deployment's name, so that NAME:PORT finds the pod. Volumes: the
ConfigMap is a file, the others are directories; /tmp stays this machine's.
"""

import base64
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import probe
from chart import Object, Pod, config_file, of_kind, pods
from local_services import LOOPBACK, Service

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
CONFIG = "/etc/headrace/headrace.yaml"
Secrets = Mapping[str, Mapping[str, str]]


def services(objects: list[Object], secrets: Secrets, directories: Mapping[str, Path]) -> list[Service]:
    """Every pod that stays, ready by its own readiness probe; Redis first, as if the others had been restarted.

    secrets: those that the values refer to. directories: what is here at a mount's path.
    """
    everything = {**{name: decoded(secret) for name, secret in _secrets(objects).items()}, **secrets}
    lasting = [pod for pod in pods(objects) if pod.workload["kind"] != "Pod"]
    redis = [pod.name for pod in lasting if pod.container["name"] == "redis"]
    return [
        as_local(pod, config_file(objects), everything, directories, after=[] if pod.name in redis else redis)
        for pod in lasting
    ]


def as_local(
    pod: Pod, config: str, secrets: Secrets, directories: Mapping[str, Path], after: list[str] | None = None
) -> Service:
    container = pod.container
    environment = _environment(pod, secrets)
    mounts = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
    return Service(
        name=pod.name,
        command=[_expanded(word, environment) for word in container["command"]],
        ports=[port["containerPort"] for port in container.get("ports", [])],
        environment=environment,
        health=probe_command(pod, "readinessProbe", environment) if "readinessProbe" in container else (),
        after=after or [],
        files={CONFIG: config} if "/etc/headrace" in mounts else {},
        directories={path: here for path, here in directories.items() if path in mounts},
    )


def probe_command(pod: Pod, which: str, environment: Mapping[str, str]) -> list[str]:
    """A command that makes the probe. One that is a command itself runs with the container's environment."""
    wanted = pod.container[which]
    if "exec" in wanted:
        return ["env", *(f"{name}={value}" for name, value in environment.items()), *wanted["exec"]["command"]]
    return [sys.executable, str(Path(probe.__file__)), json.dumps(probe_target(pod, which))]


def probe_target(pod: Pod, which: str) -> dict[str, Any]:
    """What a probe that is no command asks, with its port as a number."""
    wanted = pod.container[which]
    numbers = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
    kind = next(kind for kind in ("httpGet", "grpc", "tcpSocket") if kind in wanted)
    return {kind: {**wanted[kind], "port": numbers.get(wanted[kind]["port"], wanted[kind]["port"])}}


def decoded(secret: Object) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def _secrets(objects: list[Object]) -> dict[str, Object]:
    return {secret["metadata"]["name"]: secret for secret in of_kind(objects, "Secret").values()}


def _environment(pod: Pod, secrets: Secrets) -> dict[str, str]:
    result: dict[str, str] = {}
    for variable in pod.container.get("env", []):
        result[variable["name"]] = _expanded(_value(variable, pod, secrets), result)
    return result


def _value(variable: Mapping[str, Any], pod: Pod, secrets: Secrets) -> str:
    if "value" in variable:
        return str(variable["value"])
    source = variable["valueFrom"]
    if "secretKeyRef" in source:
        return secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
    return {"metadata.name": pod.name, "status.podIP": LOOPBACK}[source["fieldRef"]["fieldPath"]]


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` of a variable set before; others stay as they are."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), text)
