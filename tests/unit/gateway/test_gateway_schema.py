"""Every field of the two generation bodies is in a table here: honoured, bookkeeping, or neutral only."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gateway_harness import CHAT, COMPLETIONS, Gateway, chat, completion, running

from headrace.core.generation import GenerateRequest
from headrace.core.sampling import SamplingParams
from headrace.gateway.openai_schema import ChatBody, CompletionBody

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOCS = Path(__file__).parents[3] / "docs" / "api.md"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Gateway]:
    async with running() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: Gateway) -> Gateway:
    shared.inference.lives.clear()
    return shared


@dataclass(frozen=True)
class Row:
    """value: a valid one; bad: values that are refused under the field's name. beside: other fields it needs.

    sampling: what the value becomes in SamplingParams; request: in GenerateRequest.
    """

    value: Any
    bad: tuple[Any, ...]
    sampling: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)


HUGE = 10**400

BOTH: dict[str, Row] = {
    "max_tokens": Row(7, (-1, 0, 2**31, "7", True, 1.5), {"max_tokens": 7}),
    "temperature": Row(0.5, (-0.1, 2.1, HUGE, "1"), {"temperature": 0.5}),
    "top_p": Row(0.25, (0, 1.01, -1), {"top_p": 0.25}),
    "top_k": Row(5, (-2, 2**31, 0.5), {"top_k": 5}),
    "min_p": Row(0.25, (-0.1, 1.1, "0"), {"min_p": 0.25}),
    "seed": Row(-5, (2**63, -(2**63) - 1, "x"), {"seed": -5}),
    "stop": Row(["a", "b"], ([""], ["a"] * 17, 3, [1]), {"stop": ("a", "b")}),
    "stop_token_ids": Row([3, 4], ([-1], [2**31], ["3"], 3), {"stop_token_ids": (3, 4)}),
    "ignore_eos": Row(True, (1, "yes"), {"ignore_eos": True}),
    "include_stop_str_in_output": Row(True, (1,), {"include_stop_str_in_output": True}),
    "min_tokens": Row(3, (-1, 8, 2**31, HUGE), {"min_tokens": 3, "max_tokens": 7}, beside={"max_tokens": 7}),
    "presence_penalty": Row(0.5, (-2.1, 2.1, "1"), {"presence_penalty": 0.5}),
    "frequency_penalty": Row(-0.5, (-2.1, 2.1, [1]), {"frequency_penalty": -0.5}),
    "repetition_penalty": Row(1.25, (0, -1, "1"), {"repetition_penalty": 1.25}),
    "logit_bias": Row(
        {"5": 1, "77": -2.5},
        ({"x": 1}, {"-1": 1}, {"5": "1"}, {"5": 101}, {"5": None}, {"5": True}, {str(2**31): 1}, {"9" * 5000: 1}, [5]),
        {"logit_bias": ((5, 1.0), (77, -2.5))},
    ),
    "allowed_token_ids": Row([3, 4], ([], [-1], {"3": 1}), {"allowed_token_ids": (3, 4)}),
    "bad_words": Row(["no", "never"], ([""], "no", [1]), {"bad_words": ("no", "never")}),
    "prompt_logprobs": Row(4, (-1, 21, True, HUGE), {"prompt_logprobs": 4}),
    "return_token_ids": Row(True, (1,), request={"echo": True}),
    "return_tokens_as_token_ids": Row(True, (1,)),
    "priority": Row(-3, (2**31, HUGE, "1", 0.5), request={"priority": -3}),
    "cache_salt": Row("s", (1,), request={"cache_salt": "s"}),
    "n": Row(1, (0, -1, 65, HUGE, "1")),
    "model": Row("scripted", (1,), request={"model": "scripted"}),
    "stream": Row(True, (1, "yes")),
    "stream_options": Row({"include_usage": True}, ({"include_usage": 1}, 3), beside={"stream": True}),
}
OF_CHATS: dict[str, Row] = {
    "messages": Row([{"role": "user", "content": "x"}], ([], [{"role": "x", "content": "x"}], "x")),
    "max_completion_tokens": Row(7, (1.5, "7"), {"max_tokens": 7}),
    "logprobs": Row(True, (3, "true"), {"logprobs": 0}),
    "top_logprobs": Row(4, (-1, 21, True, HUGE), {"logprobs": 4}, beside={"logprobs": True}),
}
OF_COMPLETIONS: dict[str, Row] = {
    "prompt": Row("x", ([], [[]], None, 3, [-1])),
    "logprobs": Row(4, (-1, 21, True, HUGE), {"logprobs": 4}),
    "echo": Row(True, (1, "yes"), request={"echo": True}),
}
BOOKKEEPING = {
    "user": "someone",
    "safety_identifier": "x",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "parallel_tool_calls": True,
}
# What a body that says nothing else asks for.
PLAIN = {CHAT: SamplingParams(), COMPLETIONS: SamplingParams(max_tokens=16)}
BODIES: dict[str, Callable[..., dict[str, Any]]] = {CHAT: chat, COMPLETIONS: completion}
MODELS = {CHAT: ChatBody, COMPLETIONS: CompletionBody}
HONOURED = {CHAT: BOTH | OF_CHATS, COMPLETIONS: BOTH | OF_COMPLETIONS}

ROWS = [(path, name, row) for path, rows in HONOURED.items() for name, row in rows.items()]
NEUTRAL = [
    (path, name)
    for path, model in MODELS.items()
    for name in model.model_fields
    if name not in HONOURED[path] and name not in BOOKKEEPING
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_tables_name_no_field_that_is_not_there(path: str) -> None:
    assert HONOURED[path].keys() | BOOKKEEPING.keys() <= MODELS[path].model_fields.keys()


@pytest.mark.parametrize(("path", "name", "row"), ROWS)
async def test_an_honoured_field_arrives(gateway: Gateway, path: str, name: str, row: Row) -> None:
    response = await gateway.http.post(path, json=BODIES[path](**{name: row.value}, **row.beside))
    assert response.status_code == 200, response.text
    request = gateway.inference.lives[0].request
    assert request.sampling == replace(PLAIN[path], **row.sampling)
    blank = GenerateRequest(request.id, request.model, request.prompt)
    assert replace(request, sampling=blank.sampling) == replace(blank, **row.request)


@pytest.mark.parametrize(("path", "name"), [row[:2] for row in ROWS if row[1] not in ("messages", "prompt")])
async def test_null_is_the_default(gateway: Gateway, path: str, name: str) -> None:
    response = await gateway.http.post(path, json=BODIES[path](**{"model": "scripted", name: None}))
    expected = 400 if name == "model" else 200
    assert response.status_code == expected, response.text
    if expected == 200:
        assert gateway.inference.lives[0].request.sampling == PLAIN[path]


BAD = [(path, name, value, row.beside) for path, name, row in ROWS for value in (*row.bad, {"not": "this"})]


@pytest.mark.parametrize(
    ("path", "name", "value", "beside"), BAD, ids=[f"{p}-{n}-{i}" for i, (p, n, *_) in enumerate(BAD)]
)
async def test_a_bad_value_is_refused_under_its_name(
    gateway: Gateway, path: str, name: str, value: Any, beside: dict[str, Any]
) -> None:
    response = await gateway.http.post(path, json=BODIES[path](**{name: value}, **beside))
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"].partition(".")[0].partition("[")[0] == name, error
    assert gateway.inference.lives == []


@pytest.mark.parametrize(("path", "name"), NEUTRAL)
async def test_every_other_field_says_that_it_is_not_supported(gateway: Gateway, path: str, name: str) -> None:
    response = await gateway.http.post(path, json=BODIES[path](**{name: {"really": "wanted"}}))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)
    assert gateway.inference.lives == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_bookkeeping_changes_nothing(gateway: Gateway, path: str) -> None:
    response = await gateway.http.post(path, json=BODIES[path](**BOOKKEEPING))
    assert response.status_code == 200, response.text
    assert gateway.inference.lives[0].request.sampling == PLAIN[path]


FORBIDDEN_TOGETHER = [
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
    (CHAT, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    (COMPLETIONS, {"max_tokens": 0, "echo": False}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": -1, "echo": True}, "max_tokens"),
    (COMPLETIONS, {"min_tokens": 17}, "min_tokens"),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
]


@pytest.mark.parametrize(("path", "fields", "param"), FORBIDDEN_TOGETHER)
async def test_what_does_not_go_together_is_refused(
    gateway: Gateway, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await gateway.http.post(path, json=BODIES[path](**fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_the_documentation_has_every_field() -> None:
    text = DOCS.read_text()
    names = {name for model in MODELS.values() for name in model.model_fields}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
