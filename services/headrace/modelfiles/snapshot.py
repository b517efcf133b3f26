"""A model out of a directory in Hugging Face's layout: config.json, tokenizer.json, safetensors weights.

Knows the meaning of the JSON files; the weights' container is `safetensors`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import StartupError
from headrace.modelfiles.architecture import complete
from headrace.modelfiles.config_json import missing_parts, model_config
from headrace.modelfiles.digest import files_digest
from headrace.modelfiles.files import ModelConfig, ModelFiles
from headrace.modelfiles.safetensors import read_tensors, weight_files
from headrace.modelfiles.stop_tokens import stop_ids

Json = dict[str, Any]

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
_OPTIONAL = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")
# What to fetch of a repository on the hub.
PATTERNS = ("*.safetensors", "model.safetensors.index.json", CONFIG, TOKENIZER, *_OPTIONAL)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which files of a directory make up the model. weights, then `required`, then those optional ones it has."""

    directory: Path
    weights: tuple[Path, ...]
    optional: tuple[Path, ...]

    @property
    def required(self) -> tuple[Path, ...]:
        return (self.directory / CONFIG, self.tokenizer)

    @property
    def tokenizer(self) -> Path:
        return self.directory / TOKENIZER

    @property
    def sources(self) -> tuple[Path, ...]:
        return (*self.weights, *self.required, *self.optional)


def find(directory: Path) -> Snapshot:
    """Raises StartupError naming the first file that is missing."""
    for name in (CONFIG, TOKENIZER):
        if not (directory / name).is_file():
            raise StartupError(
                f"{directory} has no {name}.",
                remedy="Give a directory with config.json, tokenizer.json and safetensors weights, or a .gguf file.",
            )
    optional = tuple(directory / name for name in _OPTIONAL if (directory / name).is_file())
    return Snapshot(directory, weight_files(directory), optional)


def read(snapshot: Snapshot) -> ModelFiles:
    """The whole model, without a name. Raises StartupError for what is broken or not supported."""
    raw = document(snapshot.directory / CONFIG)
    missing, config = describe(raw, snapshot.directory)
    if config is None:
        raise StartupError(
            f"{snapshot.directory} needs {', '.join(missing)}, not supported here.",
            remedy="Use another model; `headrace models` lists what is supported.",
        )
    try:
        return _described(snapshot, config, raw)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StartupError(
            f"The tokenizer's files in {snapshot.directory} are not in a known form ({error}).",
            remedy="Fetch the files again.",
        ) from error


def describe(raw: Json, directory: Path) -> tuple[tuple[str, ...], ModelConfig | None]:
    """What a config.json asks for that is not supported, and what it describes if that is nothing.

    Raises StartupError if it lacks a number or has one that cannot be right.
    """
    try:
        missing = missing_parts(raw)
        return missing, None if missing else model_config(raw)
    except (AttributeError, ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise StartupError(
            f"{directory / CONFIG} lacks a number that the model needs, or has a wrong one: {error}.",
            remedy="Fetch the file again.",
        ) from error


def _described(snapshot: Snapshot, config: ModelConfig, raw: Json) -> ModelFiles:
    tokens = _Tokens(snapshot)
    return ModelFiles(
        name="",
        config=config,
        tensors=complete(config, read_tensors(snapshot.weights), snapshot.directory),
        tokenizer_json=snapshot.tokenizer,
        chat_template=tokens.chat_template(),
        bos_token=tokens.text("bos_token"),
        eos_token=tokens.text("eos_token"),
        add_bos=tokens.add_bos(),
        stop_ids=tokens.stop_ids(raw),
        digest=files_digest((*snapshot.required, *snapshot.weights)),
    )


class _Tokens:
    """Special tokens and the chat template, as the tokenizer's files tell them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._directory = snapshot.directory
        self._config = document(snapshot.directory / "tokenizer_config.json")
        self._generation = document(snapshot.directory / "generation_config.json")
        self._tokenizer = document(snapshot.tokenizer)
        self._added = {str(row["content"]): int(row["id"]) for row in self._tokenizer.get("added_tokens") or ()}

    def text(self, key: str) -> str:
        value = self._config.get(key)
        return str(value.get("content", "") if isinstance(value, dict) else value or "")

    def chat_template(self) -> str | None:
        path = self._directory / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        value = self._config.get("chat_template")
        if isinstance(value, list):
            value = next((row["template"] for row in value if row.get("name") == "default"), None)
        return value if isinstance(value, str) else None

    def add_bos(self) -> bool:
        bos = self.text("bos_token")
        return bool(bos) and bool(self._config.get("add_bos_token") or self._starts_with(bos))

    def stop_ids(self, config: Json) -> tuple[int, ...]:
        declared = self._generation.get("eos_token_id", config.get("eos_token_id"))
        ids = [*(declared if isinstance(declared, list) else [declared]), self._added.get(self.text("eos_token"))]
        return stop_ids((token for token in ids if isinstance(token, int)), self._added)

    def _starts_with(self, bos: str) -> bool:
        """Whether the tokenizer's own post-processor puts `bos` first."""
        processor = self._tokenizer.get("post_processor") or {}
        steps = processor.get("processors") or [processor]
        firsts = [
            step["single"][0] for step in steps if step.get("type") == "TemplateProcessing" and step.get("single")
        ]
        return any(first.get("SpecialToken", {}).get("id") == bos for first in firsts)


def document(path: Path) -> Json:
    """The JSON object in a file, {} where there is no file."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{path} is not JSON.", remedy="Fetch the file again.") from error
    if not isinstance(document, dict):
        raise StartupError(f"{path} is not a JSON object.", remedy="Fetch the file again.")
    return document
