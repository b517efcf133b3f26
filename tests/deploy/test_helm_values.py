"""Values: every one is named by the schema, wrong ones are refused with a reason that says where and why."""

import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
from chart import CHART, chart, config_file, merged, rendered

REFUSED_BY_SCHEMA: list[tuple[dict[str, Any], str, str]] = [
    ({"replicas": 2}, "''", "additional properties 'replicas' not allowed"),
    ({"workers": {"replica": 2}}, "/workers", "additional properties 'replica' not allowed"),
    ({"frontend": {"gpus": 1}}, "/frontend", "additional properties 'gpus' not allowed"),
    ({"pools": {"prefill": {"tensorParallelSize": 2}}}, "/pools/prefill/tensorParallelSize", "value must be 1"),
    ({"workers": {"tensorParallelSize": 4}}, "/workers/tensorParallelSize", "value must be 1"),
    ({"pools": {"prefill": {"role": "prefil"}}}, "/pools/prefill/role", "must be one of 'prefill', 'decode', 'local'"),
    ({"pools": {"more": {}}}, "/pools/more", "missing property 'role'"),
    ({"pools": {"Big_One": {"role": "local"}}}, "'Big_One'", "does not match pattern"),
    ({"pools": {"prefill": None, "decode": None}}, "/pools", "got 0, want 1"),
    ({"pools": {"prefill": {"replicas": -1}}}, "/pools/prefill/replicas", "got -1, want 0"),
    ({"pools": {"prefill": {"replicas": 1.5}}}, "/pools/prefill/replicas", "want integer"),
    ({"workers": {"resources": {"request": {}}}}, "/workers/resources", "'request' not allowed"),
    ({"workers": {"resources": {"limits": {"cpu": "4 cores"}}}}, "/workers/resources/limits/cpu", "'4 cores'"),
    ({"workers": {"shmSize": "8GB"}}, "/workers/shmSize", "'8GB' does not match"),
    ({"workers": {"gpus": "1"}}, "/workers/gpus", "got string, want integer"),
    ({"placement": "slurm"}, "/placement", "must be one of 'kubernetes', 'ray'"),
    ({"ray": {"address": "head"}}, "/ray/address", "does not match"),
    ({"redis": {"url": "redis://:word@redis:6379"}}, "/redis/url", "does not match"),
    ({"redis": {"url": "http://redis"}}, "/redis/url", "does not match"),
    ({"image": {"control": "headrace-control:1"}}, "/image/control", "does not match"),
    ({"shutdown": {"drainSeconds": "60s"}}, "/shutdown/drainSeconds", "got string, want integer"),
    ({"env": [{"name": "HF_TOKEN", "secret": "x"}]}, "/env/0", "'secret' not allowed"),
    ({"service": {"type": "Ingress"}}, "/service/type", "must be one of"),
    ({"existingSecret": "Not A Name"}, "/existingSecret", "does not match"),
]
REFUSED_IN_A_SENTENCE: list[tuple[dict[str, Any], str]] = [
    ({"redis": {"enabled": False}}, "set redis.url or redis.urlSecret.name."),
    ({"redis": {"url": "redis://redis:6379"}}, "set redis.enabled to false"),
    ({"placement": "ray"}, "ray.address is empty"),
    ({"workers": {"role": "local"}}, "set pools.NAME.role."),
    ({"pools": {"redis": {"role": "local"}}}, "pools.redis has the name of another part"),
    ({"config": {"worker_token": "x"}}, "config.worker_token would stand in a ConfigMap"),
    ({"config": {"frontend": {"api_keys": ["x"]}}}, "config.frontend.api_keys would stand in a ConfigMap"),
    ({"config": {"router": {"admin_api_key": "x"}}}, "config.router.admin_api_key would stand in a ConfigMap"),
    ({"apiKeys": {"adminKey": "admin"}}, "apiKeys.adminKey is set and apiKeys.secret is empty"),
    ({"workers": {"config": {"worker_token": "x"}}}, "config.worker.worker_token would stand in a ConfigMap"),
]


@pytest.mark.parametrize(("values", "where", "why"), REFUSED_BY_SCHEMA, ids=lambda part: json.dumps(part)[:60])
def test_the_schema_refuses(values: dict[str, Any], where: str, why: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refused:
        chart().validate_schema(values)
    assert where in str(refused.value)
    assert why in str(refused.value)


@pytest.mark.parametrize(("values", "sentence"), REFUSED_IN_A_SENTENCE, ids=lambda part: json.dumps(part)[:60])
def test_what_does_not_go_together_is_refused(values: dict[str, Any], sentence: str) -> None:
    chart().validate_schema(values)
    with pytest.raises(helm_python.HelmRenderError) as refused:
        rendered(values)
    assert sentence in str(refused.value)


def test_every_default_is_in_the_schema_and_every_name_of_the_schema_is_a_default() -> None:
    """Nobody has to guess what may be set: values.yaml shows all of it."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    pool_role = {("workers", "role")}
    assert set(schema_names(schema, schema)) - pool_role - {("global",)} == set(value_names(chart().values))


def test_values_stay_readable() -> None:
    assert len((CHART / "values.yaml").read_text().splitlines()) < 150


def test_the_users_config_wins_over_the_charts() -> None:
    values = {"config": {"log_json": False, "worker": {"port": 9200}, "pools": {"decode": {"max_num_seqs": 7}}}}
    objects = rendered(merged(values, {"workers": {"config": {"threads": 3}}}))
    text = config_file(objects)
    assert "log_json: false" in text
    assert "max_num_seqs: 7" in text
    assert "threads: 3" in text
    # What the chart reads back from the file follows it.
    workers = [item for item in objects if item["kind"] == "StatefulSet"]
    ports = [item["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] for item in workers]
    probes = [item["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["grpc"]["port"] for item in workers]
    assert (ports, probes) == ([9200, 9200], [9200, 9200])


def schema_names(node: dict[str, Any], root: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of named properties; free-form maps end a path."""
    if "$ref" in node:
        yield from schema_names(root["definitions"][node["$ref"].rpartition("/")[2]], root, path)
        return
    for name, below in node.get("properties", {}).items():
        free = {"resources"}
        yield (*path, name)
        if name not in free:
            yield from schema_names(below, root, (*path, name))


def value_names(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in node.items():
        yield (*path, name)
        free = {"resources", "pools"}
        if isinstance(value, dict) and name not in free:
            yield from value_names(value, (*path, name))
