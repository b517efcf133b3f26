"""Chats with tiny checkpoints whose tokenizers are SentencePiece-style: over HTTP, through prefill and decode worker.

What is shown is Hugging Face's text of prompt and answer, less that of the prompt.
"""

import json
from typing import Any

import pytest
from fixtures import piece_tokenizers
from fixtures.piece_tokenizers import CONTROL
from fixtures.tiny_checkpoint import Case, make_checkpoint
from matrix_cluster import MODEL, Cluster, cluster, engines
from tokenizers import Tokenizer

from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.resolve import resolve

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"
    "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
)
# Beside the model's wishes, at temperature 1: bytes of characters, pieces with and without a space, added tokens.
LIKED = ("<0xC3>", "<0xA9>", "<0x0A>", "▁the", "hell", "▁", "é🙂")
CHAT = {"messages": [{"role": "user", "content": "hello the 漢字\n</s>"}], "max_tokens": 40, "model": MODEL}

FORMS = {"llama2": "Llama", "mistral": "Mistral", "gemma": "Gemma2"}


@pytest.fixture(scope="module", params=FORMS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    directory = tmp_path_factory.mktemp("model")
    size = max(token["id"] for token in piece_tokenizers.document(request.param)["added_tokens"]) + 5
    settings = {"vocab_size": size, "num_hidden_layers": 1, "head_dim": 8}
    make_checkpoint(Case(request.param, FORMS[request.param], settings), directory)
    piece_tokenizers.write(request.param, directory)
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    )
    return resolve(str(directory), directory / "cache")


async def test_a_chats_text_is_hugging_faces(files: ModelFiles) -> None:
    theirs = Tokenizer.from_file(str(files.tokenizer_json))
    bias = {str(theirs.token_to_id(name)): 6.0 for name in LIKED}
    async with cluster(files, *engines(files, budget=64, preempted=False)) as fleet:
        told: list[str] = []
        for seed in range(6):
            body = {**CHAT, "seed": seed, "logit_bias": bias, "logprobs": True, "return_token_ids": True}
            answer = await _asked(fleet, body)
            (choice,) = answer["choices"]
            prompt, ids = answer["prompt_token_ids"], choice["token_ids"]
            whole, before = theirs.decode(prompt + ids), theirs.decode(prompt)
            assert [token for token in prompt if token in (1, 2, 3, 4)] == [1, 3, 4]
            assert before + choice["message"]["content"] == whole
            assert await _streamed(fleet, body) == choice["message"]["content"]
            # But for the special tokens, which have a name and no text.
            pieces = [bytes(one["bytes"]) for one in choice["logprobs"]["content"] if one["token"] not in CONTROL]
            if "\ufffd" not in whole:
                assert b"".join(pieces).decode() == choice["message"]["content"]
            told.append(choice["message"]["content"])
        await fleet.quiet()
    assert any("é" in text for text in told)
    assert any("\ufffd" in text for text in told)


async def _asked(fleet: Cluster, body: dict[str, Any]) -> dict[str, Any]:
    response = await fleet.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def _streamed(fleet: Cluster, body: dict[str, Any]) -> str:
    async with fleet.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: {")]
    return "".join(
        choice["delta"].get("content") or "" for line in map(json.loads, lines) for choice in line["choices"]
    )
