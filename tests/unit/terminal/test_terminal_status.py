"""`headrace status` before a gateway: what it shows of a worker that is not ready."""

import json

import pytest
from test_terminal_health import answering

from headrace.terminal.status import StatusOptions, show


def _worker(name: str, unready: str) -> dict[str, object]:
    return {
        "info": {"ref": {"worker": name, "incarnation": "0123456789abcdef"}, "role": "decode", "pid": 1},
        "load": {"running": 1, "waiting": 0, "free_blocks": 3, "total_blocks": 8, "credits": 0, "unready": unready},
        "attached": True,
        "draining": False,
    }


def test_a_worker_that_is_not_ready_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = {
        "ready": True,
        "reason": "",
        "workers": [_worker("d1", ""), _worker("d2", "its engine has been in one step for more than 60 s")],
        "requests_running": 1,
        "requests_waiting": 0,
        "refused": [{**_worker("d3", ""), "reason": "speaks protocols 7 to 7 and this router 2 to 2"}],
    }
    with answering(200, json.dumps(fleet)) as url:
        assert show(StatusOptions(url.removesuffix("/ready"), "", False)) == 0
    first, second, third, told, refused, summary = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["worker", "role", "state"]
    assert second.split()[:3] == ["d1@01234567", "decode", "attached"]
    assert third.split()[:4] == ["d2@01234567", "decode", "not", "ready"]
    assert told == "d2 is not ready: its engine has been in one step for more than 60 s."
    assert refused == "d3 is refused: it speaks protocols 7 to 7 and this router 2 to 2."
    assert summary == "ready; this gateway's routers have 1 running, 0 waiting"
