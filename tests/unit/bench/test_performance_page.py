"""The writer of docs/performance.md: tables out of a benchmark's and the peers' reports, goals met and missed."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from bench import performance
from bench.goals import Goal, Reached, goals_table, met, reach, read_goals
from bench.peers import asked, compare, config_for, peers_table
from bench.performance import ENGINES, GOALS, HERE, PAGE, dated_table, engine_tables, peers_tables, put

from headrace.bench.ceilings import Ceilings
from headrace.bench.machine import Machine
from headrace.bench.report import Limits, Report, Row, as_json, from_json

KIT = """# The kit's.
pause_s = 5
[[server]]
name = "other"
command = "{peers}/other"
# A stream.
[[workload]]
name = "one stream"
metrics = ["tpot_ms.p50", "tok_s"]
[[workload]]
name = "eight"
metrics = ["tok_s"]
"""


def report(tpot: float, speed: float, **more: Any) -> dict[str, Any]:
    """One round of a server, as the kit reports it."""
    return {"startup_s": 2.0, "workloads": {"one stream": {"tpot_ms": {"p50": tpot}, "tok_s": speed, **more}}}


RESULTS = {
    "ours": [report(10.0, 100.0), report(8.0, 140.0), report(9.0, 120.0)],
    "slow": [report(30.0, 40.0)],
    "fast": [report(18.0, 60.0)],
}


def goal(metric: str = "tpot_ms.p50", **bounds: Any) -> Goal:
    return Goal("a goal", "one stream", metric, "ours", **bounds)


def test_the_better_peer_counts_and_medians_are_compared() -> None:
    times = goal(against=("slow", "fast"), times=2.0)
    assert reach(times, RESULTS) == Reached(9.0, 18.0, "fast", 2.0)
    speed = goal("tok_s", against=("slow", "fast"), times=2.1)
    assert reach(speed, RESULTS) == Reached(120.0, 60.0, "fast", 2.0)
    assert (met(times, reach(times, RESULTS)), met(speed, reach(speed, RESULTS))) == (True, False)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [({"most": 9.0}, True), ({"most": 8.9}, False), ({"least": 9.0}, True), ({"least": 9.1}, False)],
)
def test_a_bound_of_our_own(bounds: dict[str, float], verdict: bool) -> None:
    assert met(goal(**bounds), reach(goal(**bounds), RESULTS)) is verdict


def test_a_figure_of_the_server_itself() -> None:
    start = Goal("start", "", "startup_s", "ours", most=3.0)
    assert reach(start, RESULTS).ours == 2.0
    assert met(start, reach(start, RESULTS)) is True


@pytest.mark.parametrize("missing", ["ours", "slow", "fast"])
def test_what_was_not_measured_is_not_met(missing: str) -> None:
    """Nor is a goal against the better of two peers of which only one was there."""
    wanted = goal(against=("slow", "fast"), times=0.1)
    results = {name: runs for name, runs in RESULTS.items() if name != missing}
    assert met(wanted, reach(wanted, results)) is None
    assert "| not measured |" in goals_table([wanted], results)


@pytest.mark.parametrize("spoiled", [{"errors": 1}, {"short_outputs": 2}, {"with_long": {"errors": 1}}])
@pytest.mark.parametrize("whose", ["ours", "fast"])
def test_failed_requests_are_no_success(spoiled: dict[str, Any], whose: str) -> None:
    wanted = goal(against=("fast",), times=0.1)
    results = {**RESULTS, whose: [*RESULTS[whose], report(1.0, 1.0, **spoiled)]}
    assert met(wanted, reach(wanted, results)) is None
    assert "| failed |" in goals_table([wanted], results)


@pytest.mark.parametrize("died", [{"failed": "not ready after 60 s", "workloads": {}}, {"failed": "it exited"}])
@pytest.mark.parametrize("whose", ["ours", "slow", "fast"])
def test_a_server_that_died_in_one_round_is_no_success(died: dict[str, Any], whose: str) -> None:
    """The rounds that it lived through do not speak for it."""
    wanted = goal(against=("slow", "fast"), times=0.1)
    start = Goal("start", "", "startup_s", "ours", most=3.0)
    for place in (0, 1):
        runs = [*RESULTS[whose][:place], died, *RESULTS[whose][place:]]
        results = {**RESULTS, whose: runs}
        assert met(wanted, reach(wanted, results)) is None
        assert "| failed |" in goals_table([wanted], results)
        if whose == "ours":
            assert "| failed |" in goals_table([start], results)


@pytest.mark.parametrize("whose", ["ours", "fast"])
def test_a_figure_is_there_in_every_round_or_not_at_all(whose: str) -> None:
    wanted = goal(against=("slow", "fast"), times=0.1)
    for left_out in ({"workloads": {}}, {"workloads": {"one stream": {"tok_s": 1.0}}}):
        results = {**RESULTS, whose: [*RESULTS[whose], left_out]}
        assert met(wanted, reach(wanted, results)) is None
        assert "| not measured |" in goals_table([wanted], results)


def test_the_table_of_goals() -> None:
    goals = goal(against=("fast",), times=2.0), goal("tok_s", against=("fast",), times=3.0), goal(most=9.5)
    assert goals_table(goals, RESULTS).splitlines()[2:] == [
        "| a goal | 9 | 18 (fast) | 2.00 | 2 x | yes |",
        "| a goal | 120 | 60 (fast) | 2.00 | 3 x | **no** |",
        "| a goal | 9 | - | - | ≤ 9.5 | yes |",
    ]


def test_the_goals_that_are_kept_can_be_read() -> None:
    servers = {server["name"] for server in tomllib.loads((HERE / "headrace.toml").read_text())["server"]}
    goals = read_goals(HERE / "goals.toml")
    assert len(goals) == 14
    for each in goals:
        assert each.server in servers
        assert [each.times, each.least, each.most].count(None) == 2
        assert bool(each.against) == (each.times is not None)


def test_a_server_is_asked_what_goals_want_of_it() -> None:
    own = Goal("start", "", "startup_s", "ours", most=3.0)
    eight = Goal("eight", "eight", "tok_s", "ours", against=("fast",), times=1.0)
    every = [own, goal(against=("slow",), times=1.0), eight, eight]
    assert asked(every) == {"ours": ("one stream", "eight"), "slow": ("one stream",), "fast": ("eight",)}
    assert set(asked(GOALS)) >= {server for each in GOALS for server in (each.server, *each.against)}


def test_our_servers_come_before_the_kits_and_workloads_are_chosen() -> None:
    ours = '[[server]]\nname = "headrace"\ncommand = "headrace up"\n\n'
    whole = tomllib.loads(config_for(KIT, ours, ["eight"]))
    assert [server["name"] for server in whole["server"]] == ["headrace", "other"]
    assert whole["server"][1]["command"] == "{peers}/other"
    assert (whole["pause_s"], [each["name"] for each in whole["workload"]]) == (5, ["eight"])
    both = tomllib.loads(config_for(KIT, ours, ["eight", "one stream"]))["workload"]
    assert [each["name"] for each in both] == ["one stream", "eight"]
    with pytest.raises(SystemExit, match="has no"):
        config_for("pause_s = 5\n", ours, ["eight"])


def test_text_goes_between_its_markers_and_nowhere_else() -> None:
    page = "# Page\n<!-- a -->\nold\n<!-- /a -->\nwords\n<!-- b -->\n<!-- /b -->\n"
    written = put(put(page, "a", "new \\1\n"), "b", "more")
    assert written == "# Page\n<!-- a -->\nnew \\1\n<!-- /a -->\nwords\n<!-- b -->\nmore\n<!-- /b -->\n"
    assert put(written, "a", "new \\1") == written
    with pytest.raises(SystemExit, match="no place for c"):
        put(page, "c", "text")


def test_an_engines_report_becomes_tables() -> None:
    row = Row(
        *("prefill", 1, 1024, 8, 128.0, 100.0, 1280.0),
        *({"total": 2e8}, 3e10, 0.25, 0.75, "products", {"linear": 90.0, "python": 10.5}, 100.5),
    )
    machine = Machine("a processor", ("AVX2",), 2, 24.0, 0.5)
    ceilings = Ceilings(8e9, 6e9, {"native bf16": 4e11})
    whole = Report("m", "native AVX2", "bfloat16", ["bf16"], 2, machine, ceilings, Limits(8e9, 4e11), [row])
    read = from_json(json.loads(json.dumps(as_json(whole))))
    assert read == whole
    lines = engine_tables(read, "2026-11-30").splitlines()
    assert lines[0] == "Measured on 2026-11-30."
    assert "- Machine: 2 cores of a processor (AVX2), 24 GiB of memory; load 0.5." in lines
    assert "| prefill 1024 in 8 | 100 | 1280 | 200 | 30.0 | 0.25 | 0.75 | products |" in lines
    assert "| prefill 1024 in 8 | 100 | 90.0 | 10.5 |" in lines


def test_the_page_has_a_place_for_every_table(tmp_path: Path) -> None:
    page = PAGE.read_text()
    for name in ENGINES:
        page = put(page, f"engine {name}", f"the engine in {name}")
    page = put(page, "handoff", "every link")
    page = put(page, "cancel", "every stage")
    page = put(page, "memory", dated_table("| a worker's peak |\n", "2026-11-30", "two cores"))
    assert "Measured on 2026-11-30, on two cores.\n\n| a worker's peak |\n<!-- /memory -->" in page
    made = {"date": "2026-11-30", "load_average_before": 0.25, "machine": "two cores", "versions": {"headrace": "1"}}
    page = peers_tables(page, {**made, "results": {"headrace": [{"startup_s": 2.5, "workloads": {}}]}}, KIT)
    assert "Measured on 2026-11-30, on two cores; load before 0.2.\n\n- headrace: 1; 1 round\n" in page
    assert "| (server) | startup_s | 2.5 |" in page
    assert "| start to the first answer, seconds | 2.5 | - | - | ≤ 3 | yes |" in page
    assert page.count("| not measured |") == 13
    assert "the engine in int4" in page


def test_the_peers_table_has_medians_of_each_servers_rounds() -> None:
    whole = {"versions": {"ours": "1.0", "slow": "2"}, "results": {name: RESULTS[name] for name in ("ours", "slow")}}
    assert peers_table(whole, KIT).splitlines() == [
        "- ours: 1.0; 3 rounds",
        "- slow: 2; 1 round",
        "",
        "| workload | metric | ours | slow |",
        "|---|---|---:|---:|",
        "| (server) | startup_s | 2 | 2 |",
        "| one stream | tpot_ms.p50 | 9 | 30 |",
        "| one stream | tok_s | 120 | 40 |",
    ]


# A kit that reports which workloads it was given.
COMPARE = """
import json, sys, tomllib
from pathlib import Path

of = {name: sys.argv[sys.argv.index(name) + 1] for name in ("--only", "--json", "--config")}
names = [each["name"] for each in tomllib.loads(Path(of["--config"]).read_text())["workload"]]
report = {"date": "2026-11-30", "versions": {of["--only"]: "1"}, "results": {of["--only"]: [{"asked": names}]}}
Path(of["--json"]).write_text(json.dumps(report))
sys.exit("a server failed")
"""


def kit(directory: Path, compare: str) -> Path:
    (directory / "compare.py").write_text(compare)
    (directory / "peers.toml").write_text(KIT)
    (directory / "hf" / "bin").mkdir(parents=True)
    (directory / "hf" / "bin" / "python").symlink_to(sys.executable)
    return directory


def test_servers_are_measured_in_turn_and_rounds_are_added_to_a_report(tmp_path: Path) -> None:
    """A report names the machine that began it, whatever machine goes on."""
    place, into = kit(tmp_path, COMPARE), tmp_path / "compared.json"
    wanted = {"headrace": ("one stream", "eight"), "other": ("eight",)}
    seen = [{name: len(runs) for name, runs in each["results"].items()} for each in
            compare(place, place, wanted, 2, into=into, machine="two cores")]  # fmt: skip
    assert seen == [
        {"headrace": 1},
        {"headrace": 1, "other": 1},
        {"headrace": 2, "other": 1},
        {"headrace": 2, "other": 2},
    ]
    *_, last = compare(place, place, {"other": ("one stream",)}, 1, into=into, machine="four cores")
    assert json.loads(into.read_text()) == last
    assert last["machine"] == "two cores"
    assert last["results"]["headrace"] == [{"asked": ["one stream", "eight"]}] * 2
    assert last["results"]["other"] == [{"asked": ["eight"]}, {"asked": ["eight"]}, {"asked": ["one stream"]}]


def test_a_kit_that_brings_nothing_is_said(tmp_path: Path) -> None:
    place = kit(tmp_path, "raise SystemExit(3)")
    with pytest.raises(SystemExit, match="no report of other"):
        list(compare(place, place, {"other": ("eight",)}, 1, into=tmp_path / "compared.json", machine="two cores"))


def test_a_server_that_no_goal_asks_for_is_refused_before_anything_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "compared.json"
    kept.write_text("{}")
    monkeypatch.setattr(performance, "COMPARED", kept)
    monkeypatch.setenv("PEERS_KIT", str(tmp_path))
    monkeypatch.setenv("PEERS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["performance.py", "--only", "peers", "--servers", "vllm_cpu,headrace"])
    with pytest.raises(SystemExit, match=r"No goal asks for vllm_cpu: choose of headrace, "):
        performance.main()
    assert kept.read_text() == "{}"
