"""What the tests of lost routers ask for, and all that a client hears of an answer."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

ANSWER_WITHIN_S = 80.0


@dataclass
class Choice:
    """One choice of an answer, put together from all its events."""

    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    logprobs: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class Heard:
    """One streamed answer. broken: the connection was, before the stream's end. counts: tokens of prompt and answer."""

    request_id: str = ""
    choices: dict[int, Choice] = field(default_factory=dict)
    counts: tuple[int, int] = (0, 0)
    errors: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    broken: bool = False

    @property
    def answer(self) -> tuple[dict[int, Choice], tuple[int, int]]:
        """What two answers to one request have in common."""
        return self.choices, self.counts

    @property
    def tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices.values())

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.errors.append(event["error"])
            return
        if usage := event.get("usage"):
            self.counts = usage["prompt_tokens"], usage["completion_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
        for told in event["choices"]:
            choice = self.choices.setdefault(told["index"], Choice())
            choice.text += told["text"]
            choice.finish_reason = told["finish_reason"] or choice.finish_reason
            choice.token_ids += told.get("token_ids") or []
            choice.prompt_token_ids = told.get("prompt_token_ids") or choice.prompt_token_ids
            for name, values in (told["logprobs"] or {}).items():
                choice.logprobs.setdefault(name, []).extend(values)


class Stream:
    """One answer on its way. `heard` grows; `result` is its end."""

    def __init__(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self.heard = Heard()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._listen(client, body))

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def until(self, tokens: int) -> None:
        """So many tokens were heard."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while self.heard.tokens < tokens:
                assert not self.ended, f"it ended at {self.heard}"
                self._news.clear()
                await self._news.wait()

    async def result(self) -> Heard:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            await self._task
        return self.heard

    async def _listen(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        whole = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True, **body}
        try:
            async with client.stream("POST", "/v1/completions", json=whole) as response:
                self.heard.request_id = response.headers["x-request-id"]
                if response.status_code != httpx.codes.OK:
                    self.heard.take(json.loads(await response.aread()))
                    return
                async for line in response.aiter_lines():
                    self._hear(line)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            self.heard.broken = True
        finally:
            self._news.set()

    def _hear(self, line: str) -> None:
        if line == "data: [DONE]":
            self.heard.done = True
        elif line.startswith("data: "):
            self.heard.take(json.loads(line.removeprefix("data: ")))
            self._news.set()


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=ANSWER_WITHIN_S, limits=httpx.Limits(max_connections=None))


async def answers(url: str, bodies: dict[str, dict[str, Any]]) -> dict[str, Heard]:
    """All at once and undisturbed."""
    async with client(url) as http:
        streams = {name: Stream(http, body) for name, body in bodies.items()}
        heard = {name: await stream.result() for name, stream in streams.items()}
    assert all(one.done and not one.errors for one in heard.values()), heard
    return heard
