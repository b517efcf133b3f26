"""Every scenario lints, renders, is valid for Kubernetes, fits together, and configures services that accept it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from chart import CHART, SCENARIOS, Object, Pod, config_file, merged, notes, of_kind, pods, rendered, scenario
from chart_services import PROBES, decoded

WARNING = 2
KUBERNETES = ("1.27", kubernetes_validate.latest_version())
LABELS = "app.kubernetes.io"
FOREIGN = {"monitoring.coreos.com/v1"}


@pytest.fixture(scope="module", params=SCENARIOS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return rendered(scenario(request.param))


def test_the_scenarios_are_there() -> None:
    assert {"minimal", "cpu", "gpu", "external-redis", "ray"} <= set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_lints_strictly(name: str) -> None:
    report = helm_python.lint(CHART, scenario(name), strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] >= WARNING] == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_every_object(objects: list[Object], version: str) -> None:
    for item in objects:
        if item["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(item, version, strict=True)


def test_kubernetes_would_refuse_a_wrong_object(objects: list[Object]) -> None:
    """The validator sees what it should."""
    workload = next(item for item in objects if item["kind"] == "Deployment")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(merged(workload, {"spec": {"replica": 1}}), KUBERNETES[-1], strict=True)


def test_the_services_accept_their_file(objects: list[Object], tmp_path: Path) -> None:
    done = check_config(tmp_path, config_file(objects))
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)
    commands = [pod.container["command"][1] for pod in pods(objects) if pod.container["command"][0] == "headrace"]
    assert {"frontend", "gateway", "router"} & set(commands) <= set(told)
    assert {name.removeprefix("pool ") for name in told if name.startswith("pool ")} == set(
        yaml.safe_load(config_file(objects))["pools"]
    )


def test_the_services_refuse_what_the_user_misspelt(tmp_path: Path) -> None:
    """The check above can fail."""
    done = check_config(tmp_path, config_file(rendered({"config": {"worker": {"max_num_seq": 8}}})))
    assert done.returncode == 2
    assert "Did you mean 'max_num_seqs'?" in done.stderr


def test_names_are_unique_and_fit_into_labels(objects: list[Object]) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    long = rendered({}, name="a-release-with-the-longest-name-that-helm-would-ever-take")
    for item in long:
        hash_of_a_revision = 11 if item["kind"] == "StatefulSet" else 0
        assert len(item["metadata"]["name"]) + hash_of_a_revision <= 63


def test_no_pod_has_more_rights_than_it_needs(objects: list[Object]) -> None:
    for pod in pods(objects):
        assert pod.spec["securityContext"]["runAsNonRoot"] is True, pod.name
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.spec["automountServiceAccountToken"] is False
        own = pod.container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"]["drop"] == ["ALL"]


def test_kubernetes_sets_no_setting_of_ours(objects: list[Object]) -> None:
    """Links to Services would be variables that begin as our settings do."""
    assert all(pod.spec["enableServiceLinks"] is False for pod in pods(objects))


def test_where_the_services_write_is_writable(objects: list[Object]) -> None:
    for pod in ours(objects):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in pod.container["volumeMounts"]}
        for path in (yaml.safe_load(config_file(objects))["cache_dir"], "/tmp"):
            assert not mounts[path].get("readOnly"), pod.name
            assert {"emptyDir", "persistentVolumeClaim"} & set(volumes[mounts[path]["name"]])
        assert {mount["name"] for mount in mounts.values()} == set(volumes)


def test_probes_differ(objects: list[Object]) -> None:
    """Starting may take long, being alive does not depend on being ready."""
    for pod in lasting(objects):
        startup, live, ready = (pod.container[which] for which in PROBES)
        assert patience(startup) >= 60
        assert patience(live) >= 30
        assert patience(ready) <= 10
        assert {key: live[key] for key in live if key in handlers} != {
            key: ready[key] for key in ready if key in handlers
        }
        if "headrace/pool" in pod.labels:
            assert [set(probe) & handlers for probe in (startup, live, ready)] == [{"grpc"}] * 3


def test_grace_covers_the_drain(objects: list[Object]) -> None:
    drain_s = yaml.safe_load(config_file(objects))["drain_s"]
    for pod in lasting(objects):
        if pod.container["name"] == "redis":
            continue
        stop = pod.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        assert pod.spec["terminationGracePeriodSeconds"] >= drain_s + int(stop[1]) + 10
        # Those behind a Service leave it before they stop listening.
        if {"http", "grpc"} & ports(pod) and "headrace/pool" not in pod.labels:
            assert int(stop[1]) >= 5, pod.name


def test_selectors_select_their_own_pods_alone(objects: list[Object]) -> None:
    everybody = list(pods(objects))
    for item in objects:
        if item["kind"] in {"Deployment", "StatefulSet"}:
            wanted = item["spec"]["selector"]["matchLabels"]
            found = [pod for pod in everybody if wanted.items() <= pod.labels.items()]
            assert [pod.workload["metadata"]["name"] for pod in found] == [item["metadata"]["name"]] * len(found)
        if item["kind"] == "PodDisruptionBudget":
            wanted = item["spec"]["selector"]["matchLabels"]
            found = [pod for pod in everybody if wanted.items() <= pod.labels.items()]
            assert {pod.workload["metadata"]["name"] for pod in found} <= {item["metadata"]["name"]}


def test_services_lead_to_ports_that_are_there(objects: list[Object]) -> None:
    for service in of_kind(objects, "Service").values():
        wanted = service["spec"]["selector"]
        found = [pod for pod in pods(objects) if wanted.items() <= pod.labels.items()]
        assert found, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert any(port["targetPort"] in ports(pod) for pod in found)


def test_what_pods_refer_to_is_there_or_the_users(objects: list[Object]) -> None:
    theirs = {"headrace-secrets", "headrace-keys", "hugging-face", "shared-redis"}
    secrets = {secret["metadata"]["name"]: set(secret["data"]) for secret in of_kind(objects, "Secret").values()}
    configs = {item["metadata"]["name"] for item in of_kind(objects, "ConfigMap").values()}
    accounts = {item["metadata"]["name"] for item in of_kind(objects, "ServiceAccount").values()} | {"inference"}
    for pod in pods(objects):
        for variable in pod.container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                known = reference["name"] in theirs or reference["key"] in secrets[reference["name"]]
                assert known, (pod.name, reference)
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in configs
        assert pod.spec.get("serviceAccountName", "inference") in accounts


def test_no_secret_stands_outside_secrets(objects: list[Object]) -> None:
    values = [value for secret in of_kind(objects, "Secret").values() for value in decoded(secret).values()]
    others = yaml.safe_dump([item for item in objects if item["kind"] != "Secret"])
    assert all(len(value) >= 32 for value in values)
    assert [value for value in values if value in others] == []


def test_the_gateway_knows_no_secret_of_the_fleet() -> None:
    """It neither meets workers nor Redis."""
    (gateway, *_) = [pod for pod in pods(rendered(scenario("cpu"))) if pod.container["name"] == "gateway"]
    assert {variable["name"] for variable in gateway.container["env"]} == {"HOME"}


def test_network_policies_let_in_who_has_business_there(objects: list[Object]) -> None:
    policies = of_kind(objects, "NetworkPolicy").values()
    for policy in policies:
        if policy["metadata"]["name"].endswith("-workers"):
            jobs, pages, _ = policy["spec"]["ingress"]
            routers = {"frontend", "router"}
            assert jobs["ports"] == [{"port": "grpc"}]
            assert {peer["podSelector"]["matchLabels"][f"{LABELS}/component"] for peer in jobs["from"]} <= routers
            assert "ports" not in pages
            assert pages["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
            assert any(
                peer["podSelector"]["matchLabels"].items() <= pod.labels.items()
                for peer in jobs["from"]
                for pod in pods(objects)
            )
        if policy["metadata"]["name"].endswith("-redis"):
            (rule,) = policy["spec"]["ingress"]
            assert rule["from"][0]["podSelector"]["matchLabels"][f"{LABELS}/instance"] == "headrace"


def test_a_changed_configuration_restarts_pods_and_a_changed_number_of_them_does_not() -> None:
    def checksums(values: dict[str, Any]) -> set[str]:
        found = {
            pod.workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for pod in ours(rendered(values))
            if pod.workload["kind"] != "Pod"
        }
        assert len(found) == 1
        return found

    before = checksums({})
    assert checksums({"config": {"log_level": "debug"}}) != before
    assert checksums({"pools": {"decode": {"config": {"max_num_seqs": 8}}}}) != before
    assert checksums({"pools": {"decode": {"replicas": 5}}}) == before


def test_pools_become_what_they_ask_for() -> None:
    found = of_kind(rendered(scenario("gpu")), "StatefulSet")
    assert {name: item["spec"]["replicas"] for name, item in found.items()} == {"prefill": 2, "decode": 4}
    spec = found["decode"]["spec"]["template"]["spec"]
    (worker,) = spec["containers"]
    assert worker["command"][-2:] == ["--pool", "decode"]
    assert worker["image"] == "headrace-worker:0.1.0-cuda"
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "1", "rdma/hca": "1", "memory": "64Gi"}
    assert worker["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    assert volumes["cache"]["emptyDir"] == {"sizeLimit": "200Gi"}
    assert spec["runtimeClassName"] == "nvidia"


def test_a_pool_that_asks_for_nothing_gets_no_devices() -> None:
    for item in of_kind(rendered({}), "StatefulSet").values():
        (worker,) = item["spec"]["template"]["spec"]["containers"]
        assert worker["resources"]["limits"] == {}
        assert "add" not in worker["securityContext"]["capabilities"]
        assert "shm" not in {volume["name"] for volume in item["spec"]["template"]["spec"]["volumes"]}


def test_a_pool_may_run_as_root_and_one_may_be_empty() -> None:
    root = {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}
    found = of_kind(rendered({"pools": {"prefill": root, "decode": {"replicas": 0}}}), "StatefulSet")
    (worker,) = found["prefill"]["spec"]["template"]["spec"]["containers"]
    assert worker["securityContext"]["runAsUser"] == 0
    assert worker["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert found["decode"]["spec"]["replicas"] == 0


def test_ray_places_the_pools_instead() -> None:
    objects = rendered(scenario("ray"))
    assert of_kind(objects, "StatefulSet") == {}
    placement = of_kind(objects, "Deployment")["placement"]
    (container,) = placement["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["headrace", "placement", "--config", "/etc/headrace/headrace.yaml"]
    config = yaml.safe_load(config_file(objects))
    assert config["placement"]["ray_address"] == "ray://ray-head.ray:10001"
    assert config["pools"] == {
        "prefill": {"role": "prefill", "replicas": 2, "gpus": 1},
        "decode": {"role": "decode", "replicas": 2, "gpus": 1},
    }


def test_metrics_are_found_by_the_operator() -> None:
    objects = rendered(scenario("gpu"))
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (service,) = [
        each for each in of_kind(objects, "Service").values() if wanted.items() <= each["metadata"]["labels"].items()
    ]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    scraped = [pod for pod in pods(objects) if service["spec"]["selector"].items() <= pod.labels.items()]
    assert {pod.container["name"] for pod in scraped if "metrics" in ports(pod)} == {"frontend", "worker"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_notes_say_where_to_go(name: str) -> None:
    text = notes(scenario(name))
    services = of_kind(rendered(scenario(name)), "Service")
    door = "gateway" if "gateway" in services else "frontend"
    assert f"service/headrace-{door} 8000:8000" in text
    assert "headrace-router.llm:9000" in text if door == "gateway" else "headrace-frontend.llm:9000" in text
    assert "<no value>" not in text


handlers = {"httpGet", "grpc", "tcpSocket", "exec"}


def check_config(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = directory / "headrace.yaml"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "config", "check", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def ours(objects: list[Object]) -> Iterator[Pod]:
    return (pod for pod in pods(objects) if "/etc/headrace" in str(pod.container.get("volumeMounts")))


def lasting(objects: list[Object]) -> Iterator[Pod]:
    return (pod for pod in pods(objects) if pod.workload["kind"] != "Pod" and pod.container["name"] != "placement")


def ports(pod: Pod) -> set[str]:
    return {port["name"] for port in pod.container.get("ports", [])}


def patience(probe: dict[str, Any]) -> int:
    """Seconds until it acts."""
    return int(probe["periodSeconds"]) * int(probe.get("failureThreshold", 3))


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        ({"workers": {"config": {"data_port_range": "9200-9299"}}}, [{"port": 9200, "endPort": 9299}]),
        ({"config": {"worker": {"data_port_range": "9200-9299"}}}, [{"port": 9200, "endPort": 9299}]),
        (
            {
                "workers": {"config": {"data_port_range": "9200-9299"}},
                "pools": {"decode": {"role": "decode", "config": {"data_port_range": "9300-9399"}}},
            },
            [{"port": 9300, "endPort": 9399}, {"port": 9200, "endPort": 9299}],
        ),
        ({"pools": {"decode": {"role": "decode", "config": {"data_port_range": "9300-9399"}}}}, None),
    ],
    ids=["of all", "in the file", "two", "not of all"],
)
def test_a_network_policy_names_the_ports_of_pages(values: dict[str, Any], ports: list[dict[str, int]] | None) -> None:
    policies = of_kind(rendered(values), "NetworkPolicy").values()
    (policy,) = (each for each in policies if each["metadata"]["name"].endswith("-workers"))
    _, pages, _ = policy["spec"]["ingress"]
    assert pages.get("ports") == ports
    assert pages["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
