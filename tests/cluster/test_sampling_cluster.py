"""Every sampling parameter through the hand-off: prefill here and decode there says what one local worker says.

A small random model in float32: the same ids, logprobs within 1e-3.
"""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fixtures.cluster import Cluster, running
from fixtures.random_gguf import STOP_ID, write_random
from fixtures.reflected import reflected

PROMPT = [3 + (7 * place + place * place) % 250 for place in range(50)]
BASE: dict[str, Any] = {
    "prompt": PROMPT,
    "max_tokens": 24,
    "temperature": 0,
    "logprobs": 3,
    "ignore_eos": True,
    "return_token_ids": True,
}
SEEDED = {"temperature": 1.0, "seed": 77}
BATTERY: dict[str, dict[str, Any]] = {
    "greedy": {},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "seeded": SEEDED,
    "top_k": {**SEEDED, "top_k": 5},
    "top_p": {**SEEDED, "top_p": 0.5},
    "min_p": {**SEEDED, "min_p": 0.2},
    "n": {**SEEDED, "n": 3},
    "prompts": {**SEEDED, "n": 2, "prompt": [PROMPT[:20], PROMPT[5:40]]},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "repetition_penalty": {"repetition_penalty": 3.0},
    "logit_bias": {"logit_bias": {"77": 6, "90": 5}},
    "allowed_token_ids": {**SEEDED, "allowed_token_ids": list(range(40, 60))},
    "stop": {"stop": ["s"], "allowed_token_ids": list(range(70, 90)), **SEEDED},
    "kept stop": {
        "stop": ["s"],
        "allowed_token_ids": list(range(70, 90)),
        **SEEDED,
        "include_stop_str_in_output": True,
    },
    "min_tokens": {"min_tokens": 9, "ignore_eos": False, "logit_bias": {str(STOP_ID): 100}},
    "stop at once": {"ignore_eos": False, "logit_bias": {str(STOP_ID): 100}},
    "stop_token_ids": {"stop_token_ids": list(range(80, 90)), "allowed_token_ids": list(range(70, 90)), **SEEDED},
    "bad_words": {"bad_words": list("gstu"), "allowed_token_ids": list(range(70, 90)), **SEEDED},
    "echo": {"echo": True},
    "score": {"echo": True, "max_tokens": 0},
}
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    """One worker that does both; one that prefills and one that decodes."""
    folder = tmp_path_factory.mktemp("sampling")
    model = str(write_random(folder / "random.gguf"))
    (folder / "local").mkdir()
    (folder / "pair").mkdir()
    common = (model, "--dtype=float32", "--served-model-name=random")
    with (
        running(folder / "local", *common, "--local=1") as local,
        running(folder / "pair", *common, "--prefill=1", "--decode=1") as pair,
    ):
        yield local, pair


def complete(cluster: Cluster, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer without what differs from one request to the next."""
    response = httpx.post(f"{cluster.url}/v1/completions", json=BASE | fields, timeout=60)
    assert response.status_code == 200, response.text
    answer = dict(response.json())
    for name in ("id", "created"):
        del answer[name]
    del answer["usage"]["prompt_tokens_details"]
    return answer


def assert_close(one: Any, other: Any, where: str = "") -> None:
    """Equal, but for floats, which may differ a little."""
    if isinstance(one, float) and isinstance(other, float):
        assert abs(one - other) <= TOLERANCE, where
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_close(value, other[name], f"{where}.{name}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            assert_close(*pair, f"{where}[{place}]")
    else:
        assert one == other, where


def moved(cluster: Cluster) -> float:
    return cluster.metric("headrace_kv_transfer_bytes_total", direction="received")


@pytest.fixture(scope="module")
def answers(clusters: tuple[Cluster, Cluster]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The whole battery on both, four requests at a time, so that they meet in batches."""
    local, pair = clusters
    found: list[list[dict[str, Any]]] = []
    for cluster in clusters:
        with ThreadPoolExecutor(4) as pool:
            found.append(list(pool.map(lambda fields, to=cluster: complete(to, fields), BATTERY.values())))
    assert moved(local) == 0
    assert moved(pair) > 0
    return dict(zip(BATTERY, zip(*found, strict=True), strict=True))


@pytest.mark.parametrize("name", BATTERY)
def test_the_hand_off_changes_no_answer(answers: dict[str, tuple[dict[str, Any], dict[str, Any]]], name: str) -> None:
    local, pair = answers[name]
    assert_close(local, pair)
    for choice in local["choices"]:
        told = choice["logprobs"]["token_logprobs"]
        prompt = len(choice["prompt_token_ids"]) if BATTERY[name].get("echo") else 0
        assert len(told) == len(choice["token_ids"]) + prompt


def test_every_parameter_of_the_battery_does_something(
    answers: dict[str, tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    """Otherwise the comparison would compare one answer with itself."""
    ids = {name: [choice["token_ids"] for choice in pair["choices"]] for name, (_, pair) in answers.items()}
    greedy, seeded = ids["greedy"], ids["seeded"]
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"):
        assert ids[name] != greedy, name
    for name in ("top_k", "top_p", "min_p", "allowed_token_ids"):
        assert ids[name] != seeded, name
    assert ids["prompt_logprobs"] == ids["echo"] == greedy
    assert ids["n"][0] == seeded[0]
    assert len({tuple(choice) for choice in ids["n"]}) == 3
    assert set(ids["allowed_token_ids"][0]) <= set(range(40, 60))
    assert ids["min_tokens"][0][9:] == [STOP_ID]
    assert STOP_ID not in ids["min_tokens"][0][:9]
    assert ids["stop at once"] == [[STOP_ID]]
    stopped, kept = (answers[name][1]["choices"][0] for name in ("stop", "kept stop"))
    assert kept["finish_reason"] == "stop"
    assert kept["text"] == stopped["text"] + "s"
    ended = answers["stop_token_ids"][1]["choices"][0]
    assert ended["finish_reason"] == "stop"
    assert [token in range(80, 90) for token in ended["token_ids"]] == [False] * (len(ended["token_ids"]) - 1) + [True]
    assert not set("gstu") & set(answers["bad_words"][1]["choices"][0]["text"])
    scored = answers["score"][1]
    assert (scored["usage"]["completion_tokens"], scored["choices"][0]["token_ids"]) == (0, [])


def test_the_prompts_logprobs_are_those_of_the_echo(
    answers: dict[str, tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    report = answers["prompt_logprobs"][1]["choices"][0]["prompt_logprobs"]
    scored = answers["score"][1]["choices"][0]["logprobs"]["token_logprobs"]
    assert len(report) == len(scored) == len(PROMPT)
    assert report[0] is scored[0] is None
    told = [one[str(token)]["logprob"] for one, token in zip(report[1:], PROMPT[1:], strict=True)]
    assert_close(told, scored[1:])


def test_a_stream_tells_the_same_as_the_whole(clusters: tuple[Cluster, Cluster]) -> None:
    fields = SEEDED | {"echo": True, "n": 2}
    whole = complete(clusters[1], fields)
    texts, logprobs = ["", ""], [{"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}, {}]
    logprobs[1] = {column: [] for column in logprobs[0]}
    body = BASE | fields | {"stream": True}
    with httpx.stream("POST", f"{clusters[1].url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                texts[choice["index"]] += choice["text"]
                for column, values in (choice["logprobs"] or {}).items():
                    logprobs[choice["index"]][column] += values
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert_close(logprobs, [choice["logprobs"] for choice in whole["choices"]])


@pytest.mark.parametrize("number", [0, 1], ids=["local", "pair"])
def test_grpc_tells_what_http_does(clusters: tuple[Cluster, Cluster], number: int) -> None:
    sampling = {
        "temperature": 1.0,
        "seed": 77,
        "max_tokens": 24,
        "ignore_eos": True,
        "min_p": 0.05,
        "presence_penalty": 0.5,
        "logit_bias": [{"token": 77, "bias": 3.0}],
        "logprobs": 2,
        "prompt_logprobs": 0,
    }
    fields = {
        **SEEDED,
        "min_p": 0.05,
        "presence_penalty": 0.5,
        "logit_bias": {"77": 3.0},
        "logprobs": 2,
        "prompt_logprobs": 0,
    }
    choice = complete(clusters[number], fields)["choices"][0]
    with reflected(clusters[number].grpc) as inference:
        chunks = list(
            inference.generate(
                id=uuid.uuid4().hex,
                model="random",
                prompt={"tokens": {"token_ids": PROMPT}},
                sampling=sampling,
                priority=-1,
                echo=True,
            )
        )
    told = [one for chunk in chunks for one in chunk.logprobs]
    assert [token for chunk in chunks for token in chunk.token_ids] == choice["token_ids"]
    assert [one.token for one in told] == choice["token_ids"]
    assert_close([one.logprob for one in told], choice["logprobs"]["token_logprobs"])
    assert_close(
        [list(one.top_logprobs) for one in told], [_likeliest(top) for top in choice["logprobs"]["top_logprobs"]]
    )
    assert [one.offset for one in told] == choice["logprobs"]["text_offset"]
    assert b"".join(chunks[0].prompt.pieces).decode(errors="replace") == chunks[0].prompt.text
    assert list(chunks[0].prompt.token_ids) == PROMPT
    assert len(chunks[0].prompt_logprobs) == len(PROMPT) - 1


def _likeliest(top: dict[str, float]) -> list[float]:
    return sorted(top.values(), reverse=True)[:2]
