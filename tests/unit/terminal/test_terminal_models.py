"""`headrace models`: the list, the verdict on one model, and what each mistake is answered with."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures import piece_tokenizers
from fixtures.gguf_writer import write_tiny
from fixtures.hub_directory import safetensors_bytes, tiny_weights, write_directory

from headrace.cli import main
from headrace.modelfiles.resolve import resolve
from headrace.modelfiles.support import ARCHITECTURES, ROPE_VARIANTS

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from headrace.cli import main
sys.exit(main(["models"]) or main(["models", sys.argv[1]]))
"""


def _told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["models", *map(str, arguments)])
    return code, capsys.readouterr().out


def _verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: object) -> tuple[int, dict[str, Any]]:
    code, out = _told(capsys, name, "--json", "--cache-dir", tmp_path / "cache")
    return code, json.loads(out)


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = _told(capsys)
    assert code == 0
    for word in (*ARCHITECTURES, *ROPE_VARIANTS, "BF16", "Q4_1", "smollm2-135m", "longrope (only phi3)"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = _told(capsys, "--json")
    listed = json.loads(out)
    assert code == 0
    assert [each["model_type"] for each in listed["architectures"]] == list(ARCHITECTURES)
    formats = {each["model_type"]: each["formats"] for each in listed["architectures"]}
    assert (formats["llama"], formats["phi3"]) == (["safetensors", "gguf"], ["safetensors"])
    assert listed["encodings"]["safetensors"] == ["F32", "F16", "BF16"]
    assert set(listed["rope_variants"]) == set(ROPE_VARIANTS)
    assert listed["tokenizers"] == ["byte-level BPE", "SentencePiece-style BPE"]


def test_a_supported_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny", rope_scaling={"type": "linear", "factor": 2.0})
    code, out = _told(capsys, directory)
    assert (code, out) == (0, f"{directory} is supported (llama, rope linear, BF16).\n")
    code, verdict = _verdict(capsys, tmp_path, directory)
    assert (code, verdict["supported"], verdict["encodings"]) == (0, True, ["BF16"])
    assert verdict["config"]["rope_scaling"]["factor"] == 2.0
    assert not (tmp_path / "cache").exists()


def test_what_is_missing_is_named_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wishes = {"hidden_act": "gelu", "quantization_config": {"quant_method": "gptq"}}
    directory = write_directory(tmp_path / "tiny", **wishes, rope_scaling={"type": "dynamic", "factor": 2.0})
    code, out = _told(capsys, directory)
    assert code == 1
    assert out.splitlines() == [
        f"{directory} is not supported.",
        "  It needs quantised weights (gptq).",
        "  It needs the rotary embedding 'dynamic' in llama.",
        "  It needs the activation 'gelu'.",
    ]
    code, verdict = _verdict(capsys, tmp_path, directory)
    assert (code, verdict["supported"], len(verdict["against"]), verdict["config"]) == (1, False, 3, None)


def test_an_unknown_architecture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out = _told(capsys, write_directory(tmp_path / "tiny", model_type="mamba"))
    assert code == 1
    assert "It needs the architecture 'mamba'." in out


def test_tensors_are_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    weights = tiny_weights() | {"model.layers.0.self_attn.q_proj.bias": ("BF16", (32,), bytes(64))}
    (directory / "model.safetensors").write_bytes(safetensors_bytes(weights))
    code, out = _told(capsys, directory)
    assert code == 1
    assert "'model.layers.0.self_attn.q_proj.bias' that a llama model does not have" in out
    weights = tiny_weights() | {"model.norm.weight": ("F8_E4M3", (32,), bytes(32))}
    (directory / "model.safetensors").write_bytes(safetensors_bytes(weights))
    code, out = _told(capsys, directory)
    assert code == 1
    assert "as F8_E4M3, which is not supported" in out


def test_a_configuration_alone_is_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    for name in ("model.safetensors", "tokenizer.json"):
        (directory / name).unlink()
    code, out = _told(capsys, directory)
    assert (code, out) == (
        0,
        f"{directory} is supported (llama, rope default). Not looked at: its weights, which are not here.\n",
    )


def test_the_tokenizer_is_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, verdict = _verdict(capsys, tmp_path, directory)
    assert (code, verdict["supported"]) == (1, False)
    (reason,) = verdict["against"]
    assert "has pre-tokenizer ByteLevel, which is not supported" in reason


@pytest.mark.parametrize("form", piece_tokenizers.FORMS)
def test_a_tokenizer_of_pieces_is_supported(form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    piece_tokenizers.write(form, directory)
    assert _verdict(capsys, tmp_path, directory)[1]["against"] == []
    piece_tokenizers.write(form, directory, normalizer={"type": "Lowercase"})
    (reason,) = _verdict(capsys, tmp_path, directory)[1]["against"]
    assert "has normalizer Lowercase, which is not supported" in reason


def test_gguf_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, verdict = _verdict(capsys, tmp_path, write_tiny(tmp_path / "tiny.gguf"))
    assert (code, verdict["encodings"]) == (0, ["BF16", "F16", "F32", "Q4_1", "Q8_0"])
    code, out = _told(capsys, write_tiny(tmp_path / "other.gguf", general__architecture="mamba"))
    assert code == 1
    assert "architecture 'mamba', which is not supported as GGUF" in out


def test_a_known_name_is_not_fetched_to_be_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, verdict = _verdict(capsys, tmp_path, "smollm2-135m")
    assert (code, verdict["unseen"]) == (0, "its file, which is not fetched yet")
    assert not (tmp_path / "cache").exists()


def test_a_hub_id_out_of_the_local_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abc")
    write_directory(repository / "snapshots" / "0123abc")
    code, verdict = _verdict(capsys, tmp_path, "org/tiny")
    assert (code, verdict["supported"], verdict["encodings"]) == (0, True, ["BF16"])


def test_a_hub_id_that_cannot_be_reached(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert main(["models", "org/absent", "--cache-dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "Fetching org/absent's configuration" in told
    assert "could not be fetched from the hub" in told


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "dir/model.gguf"])
def test_no_such_model(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["models", name]) == 2
    assert f"There is no model {name!r}" in capsys.readouterr().err


def test_a_directory_of_something_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["models", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_the_verdict_is_that_of_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `models` says is supported, `resolve` takes."""
    directory = write_directory(tmp_path / "tiny")
    _, verdict = _verdict(capsys, tmp_path, directory)
    files = resolve(str(directory), tmp_path / "cache")
    assert verdict["config"]["architecture"] == files.config.architecture
    assert set(verdict["encodings"]) == {entry.encoding for entry in files.tensors}


def test_machines_without_torch_have_it(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(directory)], check=True, timeout=50)
