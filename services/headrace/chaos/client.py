"""A client of the gateway that notes everything it is told, so that whatever is missing, doubled or late shows.

It judges nothing: that is `verdict`'s.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from headrace.chaos.mix import Ask

_DATA = "data: "
_DONE = "[DONE]"
_CONNECTED = "connection.connect_tcp.complete"
_COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(slots=True)
class Choice:
    """One answer so far. reasons: the finish reasons that came, of which there should be one."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, list[Any]] = field(default_factory=lambda: {column: [] for column in _COLUMNS})
    reasons: list[str] = field(default_factory=list)

    def take(self, said: Mapping[str, Any]) -> None:
        self.text += said["text"]
        self.token_ids += said.get("token_ids") or []
        for column in _COLUMNS:
            self.logprobs[column] += (said.get("logprobs") or {}).get(column) or []
        if said["finish_reason"] is not None:
            self.reasons.append(said["finish_reason"])


@dataclass(frozen=True, slots=True)
class Leave:
    """When a client goes away in the midst of it: after so many events, or so many seconds after it has connected,
    whichever comes first."""

    events: int
    seconds: float


@dataclass(slots=True)
class Heard:
    """What a client was left with. errors: those that were told. done: how often the answer was said to be complete.
    events: how many parts of it came.

    cut: what the connection died of, "" if it did not. late: nothing ended it within its time. left: the client went
    away before the end.
    """

    choices: dict[int, Choice] = field(default_factory=dict)
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    done: int = 0
    cut: str = ""
    late: bool = False
    left: bool = False
    events: int = 0
    seconds: float = 0.0

    def take(self, event: Mapping[str, Any]) -> None:
        self.events += 1
        if "error" in event:
            self.errors.append(event["error"] if isinstance(event["error"], dict) else {"message": event["error"]})
            return
        for said in event["choices"]:
            self.choices.setdefault(said["index"], Choice()).take(said)


async def ask(
    client: httpx.AsyncClient, url: str, question: Ask, request_id: str, within_s: float, *, leave: Leave | None = None
) -> Heard:
    """Put one request to the door at `url` and hear it to its end, however it ends, or until the client leaves."""
    heard = Heard()
    began = time.monotonic()
    patience = _Patience(leave)
    try:
        async with asyncio.timeout(within_s) as patience.limit:
            await _hear(client, f"{url}/v1/completions", question, request_id, heard=heard, patience=patience)
    except TimeoutError:
        heard.left, heard.late = patience.leaves, not patience.leaves
    except httpx.HTTPError as error:
        heard.cut = f"{type(error).__name__}: {error}".rstrip(": ")
    heard.seconds = time.monotonic() - began
    return heard


@dataclass(slots=True)
class _Patience:
    """Ends the limit early for a client that leaves, and not before it is connected: a call that is cancelled while it
    connects may lose the connection and leave it open."""

    leave: Leave | None
    limit: asyncio.Timeout | None = None
    leaves: bool = False

    async def trace(self, event: str, _: Mapping[str, Any]) -> None:
        if event == _CONNECTED and self.leave is not None and self.limit is not None:
            self.leaves = True
            self.limit.reschedule(asyncio.get_running_loop().time() + self.leave.seconds)

    def over(self, events: int) -> bool:
        return self.leave is not None and events >= self.leave.events


async def _hear(
    client: httpx.AsyncClient, url: str, question: Ask, request_id: str, *, heard: Heard, patience: _Patience
) -> None:
    headers, extensions = {"x-request-id": request_id}, {"trace": patience.trace}
    body = dict(question.body)
    async with client.stream("POST", url, json=body, headers=headers, extensions=extensions) as response:
        if response.status_code != httpx.codes.OK or not question.streams:
            said = (await response.aread()).decode(errors="replace")
            understood = _take(heard, said)
            heard.done += understood and response.status_code == httpx.codes.OK
            return
        async for line in response.aiter_lines():
            if line == _DATA + _DONE:
                heard.done += 1
            elif line.startswith(_DATA):
                _take(heard, line.removeprefix(_DATA))
                if patience.over(heard.events):
                    heard.left = True
                    return


def _take(heard: Heard, said: str) -> bool:
    """Whether it is an event as the interface has them; what is not counts as an error without a sentence."""
    try:
        heard.take(json.loads(said))
    except (ValueError, KeyError, TypeError):
        heard.errors.append({"message": "", "body": said})
        return False
    return True
