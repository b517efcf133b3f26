"""Dashboard and alerts ask for what a running cluster really exports, and what is exported really moves."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fixtures.cluster import Cluster, eventually, running
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from promql_names import grouped_by, kept, selectors

DASHBOARDS = Path(__file__).resolve().parents[2] / "deploy" / "dashboards"
DASHBOARD = json.loads((DASHBOARDS / "headrace.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule for group in yaml.safe_load((DASHBOARDS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
QUERIES += [(rule["alert"], rule["expr"]) for rule in RULES]
TOKENS = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A prefill and a decode worker with the fake engine, slow enough to be seen at work, and one job at a time."""
    directory = tmp_path_factory.mktemp("dashboards")
    with running(directory, "--engine=fake", "--fake-step-ms=20", "--max-num-seqs=1") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def samples(cluster: Cluster) -> list[Sample]:
    """What is exported after a chat."""
    chat(cluster)
    return scrape(cluster)


def scrape(cluster: Cluster) -> list[Sample]:
    text = httpx.get(f"{cluster.url}/metrics", timeout=30).raise_for_status().text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def question(tokens: int = TOKENS) -> dict[str, Any]:
    words = " ".join(f"word{place}" for place in range(80))
    return {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def chat(cluster: Cluster) -> None:
    httpx.post(f"{cluster.url}/v1/chat/completions", json=question(), timeout=30).raise_for_status()


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_query_finds_data(where: str, query: str, samples: list[Sample]) -> None:
    wanted = selectors(query)
    assert wanted, f"{where} reads no metric"
    found = {selector.name: selector.finds(samples) for selector in wanted}
    assert [name for name, hits in found.items() if not hits] == [], f"{where}: nothing matches in {query}"
    labels = {label for hits in found.values() for hit in hits for label in hit.labels}
    assert grouped_by(query) - labels == set(), f"{where}: no such labels"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_legend_shows_labels_that_are_left(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
        assert shown <= kept(target["expr"]), target


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_says_what_and_how_bad(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    texts = rule["annotations"]
    assert texts["summary"].endswith(".")
    assert texts["description"].endswith(".")
    shown = set(re.findall(r"\$labels\.(\w+)", f"{texts['summary']} {texts['description']}"))
    assert shown <= kept(rule["expr"]), "the text shows labels that the result has not"


@pytest.mark.parametrize(
    ("query", "wanted", "labels"),
    [
        ("up", [("up", ())], set()),
        (
            'sum by (a, b) (rate(x_total{c="d", e!~"f|g"}[5m])) > 0.5',
            [("x_total", (("c", "=", "d"), ("e", "!~", "f|g")))],
            {"a", "b"},
        ),
        ("1 - a:b / on (c) group_left (d) max(e) and f == 0", [("a:b", ()), ("e", ()), ("f", ())], {"c", "d"}),
        ("histogram_quantile(0.9, sum by (le) (rate(h_bucket[$__rate_interval])))", [("h_bucket", ())], {"le"}),
    ],
)
def test_names_and_labels_are_taken_out(query: str, wanted: list[Any], labels: set[str]) -> None:
    assert [(found.name, found.matchers) for found in selectors(query)] == wanted
    assert grouped_by(query) == labels


@pytest.mark.parametrize(
    "mistake",
    [
        "vllm:num_request_running",
        'vllm:num_requests_running{role="encode"}',
        'vllm:num_requests_running{pod=~".*"}',
        'headrace_kv_slabs{state!~"free|posted|arrived|quarantined"}',
    ],
)
def test_a_mistake_finds_nothing(mistake: str, samples: list[Sample]) -> None:
    (selector,) = selectors(mistake)
    assert selector.finds(samples) == []


def test_alerts_cover_what_breaks() -> None:
    """The ways in which a deployment goes wrong, each by the metric that shows it."""
    read = {(selector.name, *selector.matchers) for rule in RULES for selector in selectors(rule["expr"])}
    assert {
        ("headrace_workers", ("role", "=", "prefill")),
        ("headrace_workers", ("role", "=", "decode")),
        ("headrace_kv_slabs", ("state", "=", "quarantined")),
        ("headrace_router_queue",),
        ("vllm:time_to_first_token_seconds_bucket",),
        ("vllm:kv_cache_usage_perc",),
        ("headrace_kv_transfers_total", ("status", "=", "failed")),
        ("headrace_kv_units_refused_total",),
        ("headrace_redis_up",),
        ("headrace_kv_link_rebuilds_total",),
        ("headrace_commit_wait_seconds_bucket",),
    } <= read


def test_dashboard_can_be_imported_anywhere() -> None:
    """No data source of ours is baked in, ids are unique, panels do not overlap."""
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert "id" not in DASHBOARD
    sources = [part["datasource"] for panel in PANELS for part in (panel, *panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [cell for panel in DASHBOARD["panels"] for cell in covered(panel["gridPos"])]
    assert len(cells) == len(set(cells)), "panels overlap"
    used = set(re.findall(r"\$(\w+)", " ".join(query for _, query in QUERIES))) - {"__rate_interval", "labels", "value"}
    assert used <= set(variables)


def covered(place: dict[str, int]) -> list[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    return [
        (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    ]


def test_metrics_move_with_a_chat(cluster: Cluster) -> None:
    """Everything a chat changes, before and after it; the pages that left are the pages that came."""
    chat(cluster)
    cluster.wait_at_rest()
    before = scrape(cluster)
    chat(cluster)
    cluster.wait_at_rest()
    moved = changes(before, scrape(cluster))
    assert moved["vllm:time_to_first_token_seconds_count"] == 1
    assert moved["vllm:inter_token_latency_seconds_count"] == TOKENS - 1
    assert moved["vllm:e2e_request_latency_seconds_count"] == 1
    assert moved["vllm:generation_tokens_total"] == TOKENS
    assert moved["vllm:request_success_total"] == 1
    assert moved["headrace_cached_tokens_total"] > 0, "the same prompt came before"
    assert moved["vllm:prefix_cache_hits_total"] > 0
    assert moved["headrace_kv_transfer_seconds_count"] == 2
    assert moved["headrace_kv_transfers_total"] == 2
    ways = {
        way: total(scrape(cluster), "headrace_kv_transfer_bytes_total", direction=way) for way in ("sent", "received")
    }
    assert ways["sent"] == ways["received"] > 0


def test_load_shows_while_it_lasts(cluster: Cluster) -> None:
    with ThreadPoolExecutor(1) as pool:
        second = _while_one_runs(cluster, pool)
        second.result()
    # 3. Nothing runs: nothing shows.
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "headrace_router_queue"):
        eventually(lambda name=name: total(scrape(cluster), name), lambda value: value == 0)


def _while_one_runs(cluster: Cluster, pool: ThreadPoolExecutor) -> Future[None]:
    with stream(cluster) as first:
        # 1. One answer runs: its job and its pages show.
        next(first)
        seen = eventually(
            lambda: scrape(cluster), lambda now: total(now, "vllm:num_requests_running", role="decode") == 1
        )
        assert total(seen, "vllm:kv_cache_usage_perc", role="decode") > 0
        assert total(seen, "headrace_kv_blocks_free", role="decode") < total(seen, "headrace_kv_blocks", role="decode")
        # 2. A second one has no room: it is queued in the router.
        second = pool.submit(chat, cluster)
        eventually(lambda: total(scrape(cluster), "headrace_router_queue"), lambda queued: queued == 1)
    return second


@contextmanager
def stream(cluster: Cluster) -> Iterator[Iterator[str]]:
    """A long answer under way; the lines as they come."""
    body = {**question(400), "stream": True}
    with httpx.stream("POST", f"{cluster.url}/v1/chat/completions", json=body, timeout=30) as response:
        response.raise_for_status()
        yield response.iter_lines()


def total(samples: list[Sample], name: str, **labels: str) -> float:
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def changes(before: list[Sample], after: list[Sample]) -> dict[str, float]:
    """By how much each metric's sum grew."""
    return {name: total(after, name) - total(before, name) for name in {sample.name for sample in after}}
