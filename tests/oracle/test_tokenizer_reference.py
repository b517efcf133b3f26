"""Our token ids are llama.cpp's, for digits, spaces, accents, scripts, emoji, code and what spells control tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.modelfiles.resolve import resolve
from headrace.text.tokenizer import ModelTokenizer

REFERENCE = Path(__file__).with_name("tokenizer_reference.json")


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(resolve("smollm2-135m", Path("~/.cache/headrace").expanduser()).tokenizer_json)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    document = json.loads(REFERENCE.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = document["rows"]
    return rows


def test_every_text_has_the_reference_ids(tokenizer: ModelTokenizer, rows: list[dict[str, Any]]) -> None:
    encode = {False: tokenizer.encode, True: tokenizer.encode_with_controls}
    different = [row["text"] for row in rows if encode[row["controls"]](row["text"]) != row["ids"]]
    assert different == []
    assert len(rows) > 300


def test_ids_of_ordinary_text_hold_its_bytes(tokenizer: ModelTokenizer, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if not row["controls"]:
            assert b"".join(map(tokenizer.spelling.piece, row["ids"])) == row["text"].encode()
