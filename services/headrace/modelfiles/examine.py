"""Whether a model can be run, and if not, all that stands against it: from what is here, without its weights' bytes.

Decides what a name means as `resolve` does, but fetches no more than a configuration and keeps nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import StartupError
from headrace.modelfiles.architecture import complete
from headrace.modelfiles.files import ModelConfig
from headrace.modelfiles.gguf import read_gguf
from headrace.modelfiles.gguf_model import interpret
from headrace.modelfiles.hub import config_directory, is_hub_id
from headrace.modelfiles.safetensors import read_tensors
from headrace.modelfiles.snapshot import CONFIG, TOKENIZER, describe, document, find
from headrace.modelfiles.wheels import WHEEL_MODELS, Say


@dataclass(frozen=True, slots=True)
class Verdict:
    """config: None where it could not be made out. encodings: of the weights that are here. against: sentences, each
    one reason why the model cannot be run; () if it can. unseen: what could not be looked at, "" for nothing.
    tokenizer_json: where the tokenizer's file is here, which is not judged."""

    name: str
    config: ModelConfig | None
    encodings: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    unseen: str = ""
    tokenizer_json: Path | None = None

    @property
    def supported(self) -> bool:
        return not self.against


def examine(name: str, cache_dir: Path, say: Say) -> Verdict:
    """The verdict on a known name, a `.gguf` file, a directory or a hub id. say: told of what takes long.

    Raises StartupError if there is no such model, or its config.json cannot be had or read.
    """
    if name in WHEEL_MODELS:
        return _wheel(name, cache_dir)
    path = Path(name).expanduser()
    if path.is_dir():
        return _directory(name, path)
    if path.is_file():
        return _gguf(name, path)
    if is_hub_id(name) and path.suffix != ".gguf":
        return _directory(name, config_directory(name, cache_dir / "hub", say))
    raise StartupError(
        f"There is no model {name!r}: it is no file or directory here, and no known name.",
        remedy="`headrace models` alone lists what is supported.",
    )


def _wheel(name: str, cache_dir: Path) -> Verdict:
    path = cache_dir / "models" / name / WHEEL_MODELS[name].file_name
    return _gguf(name, path) if path.is_file() else Verdict(name, None, unseen="its file, which is not fetched yet")


def _gguf(name: str, path: Path) -> Verdict:
    try:
        model = interpret(read_gguf(path))
    except StartupError as error:
        return Verdict(name, None, against=(error.message,))
    return Verdict(name, model.config, _encodings({entry.encoding for entry in model.tensors}))


def _directory(name: str, directory: Path) -> Verdict:
    if not (directory / CONFIG).is_file():
        raise StartupError(f"{directory} has no {CONFIG}.", remedy="Give a model's directory, .gguf file or hub id.")
    missing, config = describe(document(directory / CONFIG), directory)
    if config is None:
        return Verdict(name, None, against=tuple(f"It needs {part}." for part in missing))
    tokenizer = directory / TOKENIZER if (directory / TOKENIZER).is_file() else None
    if not any(directory.glob("*.safetensors*")):
        return Verdict(name, config, unseen="its weights, which are not here", tokenizer_json=tokenizer)
    try:
        entries = complete(config, read_tensors(find(directory).weights), directory)
    except StartupError as error:
        return Verdict(name, config, against=(error.message,), tokenizer_json=tokenizer)
    return Verdict(name, config, _encodings({entry.encoding for entry in entries}), tokenizer_json=tokenizer)


def _encodings(found: set[str]) -> tuple[str, ...]:
    return tuple(sorted(found))
