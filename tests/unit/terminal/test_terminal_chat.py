"""`headrace chat` reading an answer: its pieces, and in one sentence why there are no more."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from headrace.core.errors import Unavailable
from headrace.terminal.chat import ChatOptions, talk

PIECE = {"choices": [{"delta": {"content": "Par"}}]}


def told(*events: str) -> None:
    """Ask a server whose stream has these events."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write("".join(f"data: {event}\n\n" for event in events).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            talk(ChatOptions(f"http://127.0.0.1:{server.server_port}", "", "Capital of France?", "m", 0.0, None))
        finally:
            server.shutdown()
            thread.join()


def test_a_whole_answer(capsys: pytest.CaptureFixture[str]) -> None:
    told(json.dumps(PIECE), json.dumps(PIECE), "[DONE]")
    assert capsys.readouterr().out == "ParPar\n"


def test_an_error_in_the_stream_is_its_sentence() -> None:
    error = {"error": {"message": "The server is stopping.", "type": "server_error", "param": None, "code": "x"}}
    with pytest.raises(Unavailable) as ended:
        told(json.dumps(PIECE), json.dumps(error))
    assert str(ended.value) == "The answer broke off: The server is stopping."


def test_a_stream_without_its_end() -> None:
    with pytest.raises(Unavailable, match="before its end"):
        told(json.dumps(PIECE))
