"""`headrace chat`: an answer in the terminal, as it is written."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from headrace.core.errors import Unavailable
from headrace.terminal.client import answer, gateway, refusal

_DATA = "data: "
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """message: empty for a conversation. model: empty for the first one served."""

    url: str
    api_key: str
    message: str
    model: str
    temperature: float
    max_tokens: int | None


def talk(options: ChatOptions) -> int:
    """One answer, or a conversation until end of input."""
    with gateway(options.url, options.api_key) as client:
        model = options.model or answer(client.get("/v1/models"))["data"][0]["id"]
        history: list[dict[str, str]] = []
        for message in [options.message] if options.message else _lines():
            history.append({"role": "user", "content": message})
            said = ""
            for piece in _pieces(client, _body(options, model, history)):
                print(piece, end="", flush=True)
                said += piece
            print()
            history.append({"role": "assistant", "content": said})
    return 0


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _body(options: ChatOptions, model: str, history: list[dict[str, str]]) -> dict[str, object]:
    body: dict[str, object] = {
        "model": model,
        "messages": history,
        "temperature": options.temperature,
        "stream": True,
    }
    return body if options.max_tokens is None else {**body, "max_tokens": options.max_tokens}


def _pieces(client: httpx.Client, body: dict[str, object]) -> Iterator[str]:
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if not response.is_success:
            response.read()
            raise refusal(response)
        for line in response.iter_lines():
            if line == _DATA + _DONE:
                return
            if line.startswith(_DATA):
                yield _text(json.loads(line.removeprefix(_DATA)))
    raise Unavailable("The answer broke off before its end.", remedy="Ask again.")


def _text(event: dict[str, object]) -> str:
    if "error" in event:
        assert isinstance(event["error"], dict)
        raise Unavailable(f"The answer broke off: {event['error']['message']}")
    choices = event["choices"]
    assert isinstance(choices, list)
    return str(choices[0]["delta"].get("content") or "") if choices else ""
