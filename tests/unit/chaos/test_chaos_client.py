"""The client notes what it is told, whole or in pieces, and how it ended."""

import json

import httpx
import pytest

from headrace.chaos.client import Heard, ask
from headrace.chaos.mix import Ask, mix
from headrace.chaos.verdict import finished

ASKS = {one.name: one for one in mix("m")}
BEGUN = {"index": 0, "text": "ab", "token_ids": [1, 2], "finish_reason": None, "logprobs": {"tokens": ["a", "b"]}}
ENDED = {"index": 0, "text": "c", "token_ids": [3], "finish_reason": "length", "logprobs": {"tokens": ["c"]}}
ERROR = {"error": {"type": "server_error", "message": "It was lost."}}


class Broken(httpx.AsyncByteStream):
    """A body that breaks off after its first bytes."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        yield self._said
        raise httpx.ReadError("reset by peer")


def events(*said: dict[str, object], done: bool) -> bytes:
    lines = [f"data: {json.dumps(each)}\n\n" for each in said]
    return "".join([": keepalive\n\n", *lines, "data: [DONE]\n\n" if done else ""]).encode()


async def hear(response: httpx.Response, question: Ask = ASKS["greedy"]) -> Heard:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return response

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        heard = await ask(client, "http://door", question, "id-1", within_s=5.0)
    (request,) = asked
    assert request.url == "http://door/v1/completions"
    assert request.headers["x-request-id"] == "id-1"
    assert json.loads(request.content) == question.body
    return heard


async def test_pieces_become_one_answer() -> None:
    heard = await hear(httpx.Response(200, content=events({"choices": [BEGUN]}, {"choices": [ENDED]}, done=True)))
    assert finished(heard)
    choice = heard.choices[0]
    assert (choice.text, choice.token_ids, choice.reasons) == ("abc", [1, 2, 3], ["length"])
    assert choice.logprobs["tokens"] == ["a", "b", "c"]


async def test_an_answer_that_is_not_streamed_is_done_when_it_is_here() -> None:
    heard = await hear(httpx.Response(200, json={"choices": [ENDED]}), ASKS["whole"])
    assert finished(heard)
    assert heard.choices[0].text == "c"


@pytest.mark.parametrize("name", ["greedy", "whole"])
async def test_a_status_is_an_error_told_before_anything_else(name: str) -> None:
    heard = await hear(httpx.Response(503, json=ERROR), ASKS[name])
    assert (heard.errors, heard.done, heard.choices) == ([ERROR["error"]], 0, {})


async def test_an_error_that_is_no_json_is_kept_as_one_without_words() -> None:
    heard = await hear(httpx.Response(502, text="<html>bad gateway</html>"))
    assert [error["message"] for error in heard.errors] == [""]


async def test_an_error_in_the_midst_stands_beside_what_came() -> None:
    heard = await hear(httpx.Response(200, content=events({"choices": [BEGUN]}, ERROR, done=False)))
    assert (heard.errors, heard.done, heard.choices[0].token_ids) == ([ERROR["error"]], 0, [1, 2])
    assert not finished(heard)


async def test_a_stream_that_just_ends_is_not_finished() -> None:
    heard = await hear(httpx.Response(200, content=events({"choices": [BEGUN]}, {"choices": [ENDED]}, done=False)))
    assert not finished(heard)
    assert (heard.cut, heard.late) == ("", False)


async def test_a_connection_that_breaks_is_told() -> None:
    heard = await hear(httpx.Response(200, stream=Broken(events({"choices": [BEGUN]}, done=False))))
    assert heard.cut == "ReadError: reset by peer"
    assert heard.choices[0].token_ids == [1, 2]
