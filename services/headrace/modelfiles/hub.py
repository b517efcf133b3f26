"""Models of the Hugging Face hub: found in a local hub cache first, downloaded otherwise."""

import re
from pathlib import Path

from headrace.core.errors import StartupError
from headrace.modelfiles.snapshot import CONFIG, PATTERNS, find
from headrace.modelfiles.wheels import Say

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form `organisation/model`."""
    return _HUB_ID.fullmatch(name) is not None


def snapshot_directory(hub_id: str, hub_cache: Path, say: Say) -> Path:
    """The directory of a complete snapshot of `hub_id`. Raises StartupError if it is not here and cannot be fetched."""
    local = _cached(hub_id, hub_cache)
    if local is not None:
        return local
    say(f"Downloading {hub_id} from the hub ...")
    # Imported here: it takes long, and only a first download needs it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(hub_id, cache_dir=hub_cache, allow_patterns=list(PATTERNS)))
    except Exception as error:  # whatever the library, its transport or the hub objects to
        raise _unreachable(hub_id, hub_cache, error) from error


def config_directory(hub_id: str, hub_cache: Path, say: Say) -> Path:
    """A directory with at least the config.json of `hub_id`: its snapshot if that is here, else that one file's.
    Raises StartupError if it cannot be fetched."""
    local = _cached(hub_id, hub_cache)
    if local is not None:
        return local
    say(f"Fetching {hub_id}'s configuration from the hub ...")
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - it takes long, and few need it

    try:
        return Path(hf_hub_download(hub_id, CONFIG, cache_dir=hub_cache)).parent
    except Exception as error:  # whatever the library, its transport or the hub objects to
        raise _unreachable(hub_id, hub_cache, error) from error


def _unreachable(hub_id: str, hub_cache: Path, error: Exception) -> StartupError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return StartupError(
        f"{hub_id} is not in {hub_cache} and could not be fetched from the hub: {reason}.",
        remedy="Check the name and the network, or give a local directory or .gguf file.",
    )


def _cached(hub_id: str, hub_cache: Path) -> Path | None:
    """The snapshot that `main` names in the cache, if all of the model is in it."""
    repository = hub_cache / f"models--{hub_id.replace('/', '--')}"
    reference = repository / "refs" / "main"
    if not reference.is_file():
        return None
    directory = repository / "snapshots" / reference.read_text().strip()
    try:
        find(directory)
    except StartupError:
        return None  # an interrupted download, which the hub's library completes
    return directory
