"""`headrace health` before HTTP servers that are well, unwell and absent."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from headrace.terminal.health import HealthOptions, ask


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ready"
        finally:
            server.shutdown()
            thread.join()


def test_well(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, "{}") as url:
        assert ask(HealthOptions(url, 5.0)) == 0
    assert capsys.readouterr().out == f"{url} is ready.\n"


def test_unwell_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(503, "no decode worker") as url:
        assert ask(HealthOptions(url, 5.0)) == 1
    assert "503: no decode worker" in capsys.readouterr().out


def test_absent(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, "") as url:
        pass
    assert ask(HealthOptions(url, 5.0)) == 1
    assert "does not answer" in capsys.readouterr().out


def test_no_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(HealthOptions("http://[::1", 5.0)) == 1
    assert "http://[::1 does not answer" in capsys.readouterr().out


def test_a_grpc_address_where_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, "") as url:
        address = url.removeprefix("http://").removesuffix("/ready")
    assert ask(HealthOptions(address, 2.0)) == 1
    assert address in capsys.readouterr().out


@pytest.mark.parametrize(
    "address", ["", " ", "host", ":9000", "host:", "host:99999", "::1:9000", "ftp://host", "http:/x"]
)
def test_what_is_no_address_is_told_and_not_asked(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    """gRPC itself would write to standard error what it makes of it."""
    assert ask(HealthOptions(address, 2.0)) == 1
    said = capfd.readouterr()
    assert said.out.startswith(f"{address!r} is neither a URL nor host:port of gRPC: it ")
    assert said.err == ""
