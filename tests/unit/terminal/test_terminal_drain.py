"""`headrace drain` before a gateway: what it asks, what it shows, when it returns."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from headrace.core.errors import DeadlineExceeded, NotFound
from headrace.router.attachments import Patience
from headrace.terminal.drain import AWAY_S, Departure, DrainOptions, drain


def _worker(jobs: int, *, attached: bool = True, draining: bool = True) -> dict[str, object]:
    return {
        "info": {"ref": {"worker": "d1", "incarnation": "0123456789abcdef"}},
        "load": {"running": jobs, "waiting": 0},
        "attached": attached,
        "draining": draining,
    }


@contextmanager
def gateway(*fleets: list[dict[str, object]], status: int = 200) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    """Shows one fleet after the other, the last again and again. What it is asked to drain is kept."""
    shown, asked = list(fleets), list[tuple[str, object]]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, body))
            error = {"error": {"code": "not_found", "message": "No worker d1 is attached."}}
            self._say(status, _worker(3, draining=False) if status == 200 else error)

        def do_GET(self) -> None:
            self._say(200, {"workers": shown.pop(0) if len(shown) > 1 else shown[0]})

        def _say(self, code: int, answer: object) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_it_returns_once_the_worker_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    fleets = [[_worker(3, draining=False)], [_worker(3)], [_worker(1)], [_worker(1)], []]
    with gateway(*fleets) as (url, asked):
        assert drain(DrainOptions(url, "", "d1", 2.5, 60.0)) == 0
    assert asked == [("/v1/fleet/d1/drain", {"grace_s": 2.5})]
    name = "d1@01234567"
    said = [f"{name} is leaving, with 3 jobs.", f"{name} has 3 jobs.", f"{name} has 1 job.", f"{name} has left."]
    assert capsys.readouterr().out.splitlines() == said


def test_one_that_is_away_for_a_moment_has_not_left(capsys: pytest.CaptureFixture[str]) -> None:
    away = _worker(3, attached=False, draining=False)
    with gateway([_worker(3)], [away], [away], [_worker(1)], []) as (url, _):
        assert drain(DrainOptions(url, "", "d1", 0.0, 60.0)) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["d1@01234567 has 1 job.", "d1@01234567 has left."]


def test_one_that_stays_away_has_left() -> None:
    here, away = _worker(1), _worker(1, attached=False)
    departure = Departure()
    assert not departure.over(away, 100.0)
    assert not departure.over(away, 100.0 + AWAY_S)
    # It came back: what counts is how long it is away now.
    assert not departure.over(here, 101.0 + AWAY_S)
    assert not departure.over(away, 102.0 + AWAY_S)
    assert not departure.over(away, 101.0 + 2 * AWAY_S)
    assert departure.over(away, 102.1 + 2 * AWAY_S)


def test_one_that_nobody_lists_has_left_at_once() -> None:
    assert Departure().over(None, 100.0)


def test_a_router_counts_one_as_dead_before_this_does() -> None:
    assert Patience().back_s < AWAY_S


def test_it_need_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway([_worker(3)]) as (url, _):
        assert drain(DrainOptions(url, "", "d1", 0.0, 0.0)) == 0
    assert capsys.readouterr().out == "d1@01234567 is leaving, with 3 jobs.\n"


def test_one_that_stays_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway([_worker(3)]) as (url, _), pytest.raises(DeadlineExceeded, match="d1@01234567 has not left within"):
        drain(DrainOptions(url, "", "d1", 0.0, 0.01))


def test_one_that_is_not_there_is_told() -> None:
    with gateway([], status=404) as (url, _), pytest.raises(NotFound, match="No worker d1 is attached"):
        drain(DrainOptions(url, "", "d1", 0.0, 60.0))
