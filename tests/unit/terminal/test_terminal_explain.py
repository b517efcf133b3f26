"""`headrace explain` before a gateway: where a request's time went."""

import json

import pytest
from test_terminal_health import answering

from headrace.terminal.explain import ExplainOptions, show

D1 = {"worker": "d1", "incarnation": "0123456789abcdef"}
TOLD = {
    "request": "r1",
    "model": "m",
    "prompt_tokens": 7,
    "routes": [],
    "transitions": [{"before": "received", "after": "routed", "at": 1.5}],
    "outcome": "stop",
    "actual_cached_tokens": 0,
    "actual_ttft_ms": 30.0,
    "notes": [
        {
            "attempt": 1,
            "role": "decode",
            "worker": D1,
            "payload_bytes": 1234567,
            "messages": 5,
            "seconds": 0.02,
            "exposed_s": 0.005,
            "overlap_share": 0.75,
        }
    ],
    "waterfall": [
        {"stage": "queue", "attempt": 1, "seconds": 0.010},
        {"stage": "prefill", "attempt": 1, "seconds": 0.020},
        {"stage": "commit", "attempt": 1, "seconds": 0.0},
        {"stage": "decode", "attempt": 1, "seconds": 0.010},
    ],
}


def explained(told: dict[str, object], *, as_json: bool = False) -> None:
    with answering(200, json.dumps(told)) as url:
        assert show(ExplainOptions(url.removesuffix("/ready"), "", "chatcmpl-r1", as_json)) == 0


def test_each_part_is_a_bar_where_it_lies(capsys: pytest.CaptureFixture[str]) -> None:
    explained(TOLD)
    lines = capsys.readouterr().out.splitlines()
    title = next(number for number, line in enumerate(lines) if "40.0 ms" in line)
    rows = lines[title + 2 : title + 6]
    assert [row.split()[:3] for row in rows] == [
        ["queue", "1", "10.0"],
        ["prefill", "1", "20.0"],
        ["commit", "1", "0.0"],
        ["decode", "1", "10.0"],
    ]
    begin = rows[0].index("█")
    bars = [(row.find("█") - begin, row.count("█")) for row in rows if "█" in row]
    assert bars == [(0, 10), (10, 20), (30, 10)]


@pytest.mark.parametrize(("seconds", "blocks"), [(0.0, 0), (0.00004, 0), (0.00006, 1), (0.001, 1)])
def test_a_part_has_a_bar_if_it_has_a_time(seconds: float, blocks: int, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [("decode", 1.0), ("commit", seconds)]
    explained({**TOLD, "waterfall": [{"stage": name, "attempt": 1, "seconds": took} for name, took in parts]})
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("commit"))
    assert (row.count("█"), float(row.split()[2]) > 0) == (blocks, blocks > 0)


def test_each_end_of_a_transfer_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    explained(TOLD)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "taken by" in line)
    assert line.split() == ["taken", "by", "d1", "1", "1,234,567", "5", "20.0", "5.0", "75%"]


def test_it_is_said_whose_waiting_each_line_of_a_transfer_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """One transfer may be all hidden to the one end and not at all to the other."""
    explained(TOLD)
    shown = " ".join(capsys.readouterr().out.split())
    assert "a sender waits once its last page is computed, a receiver once it has the first token" in shown


def test_nothing_is_shown_of_a_request_without_parts(capsys: pytest.CaptureFixture[str]) -> None:
    explained({**TOLD, "notes": [], "waterfall": []})
    shown = capsys.readouterr().out
    assert "pages moved" not in shown
    assert "█" not in shown


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    explained(TOLD, as_json=True)
    assert json.loads(capsys.readouterr().out) == TOLD
