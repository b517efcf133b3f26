"""A GGUF from its name to ModelFiles: what is read, what is kept beside it, what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.gguf_writer import F32, Tensor, gguf_bytes, tiny_metadata, tiny_tensors, tokens, write_tiny
from fixtures.hub_directory import TINY

from headrace.core.errors import StartupError
from headrace.modelfiles import gguf as gguf_module
from headrace.modelfiles.resolve import resolve


def refuse_to_read(path: Path) -> Any:
    raise AssertionError(f"{path} was read again")


def test_describes_the_model_in_hugging_face_terms(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    files = resolve(str(path), tmp_path / "cache")

    assert files.name == "tiny"
    assert files.config == TINY
    by_name = {entry.name: entry for entry in files.tensors}
    query = by_name["model.layers.0.self_attn.q_proj.weight"]
    assert (query.encoding, query.shape, query.permuted_heads, query.path) == ("Q4_1", (32, 32), 2, path)
    assert by_name["model.layers.0.self_attn.k_proj.weight"].permuted_heads == 1
    assert by_name["model.layers.0.self_attn.v_proj.weight"].permuted_heads == 0
    assert by_name["model.embed_tokens.weight"].encoding == "Q8_0"
    assert (files.bos_token, files.eos_token, files.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert files.stop_ids == (0, 2)
    assert len(files.digest) == 16


def test_the_sidecar_spares_the_second_start_and_follows_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    said: list[str] = []

    # 1. The first start reads the file.
    first = resolve(str(path), tmp_path / "cache", said.append)
    assert said == ["Reading tiny.gguf for the first time ..."]
    assert (tmp_path / "tiny.gguf.headrace" / "tokenizer.json") == first.tokenizer_json

    # 2. The second one does not, and knows the same.
    with monkeypatch.context() as patched:
        patched.setattr(gguf_module, "read_gguf", refuse_to_read)
        assert resolve(str(path), tmp_path / "cache", said.append) == first
    assert len(said) == 1

    # 3. A changed file is read again and has another digest.
    write_tiny(path, **{"llama__rope__freq_base": 5000.0})
    changed = resolve(str(path), tmp_path / "cache")
    assert changed.config.rope_theta == 5000.0
    assert changed.digest != first.digest

    # 4. The first content again: the first digest again, whatever the file's date.
    write_tiny(path)
    os.utime(path, ns=(1, 1))
    assert resolve(str(path), tmp_path / "cache").digest == first.digest


@pytest.mark.parametrize("damage", ["cut", "garbage", "version", "tokenizer", "missing_key", "no_tokenizer"])
def test_a_damaged_sidecar_is_made_again(tmp_path: Path, damage: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    first = resolve(str(path), tmp_path / "cache")
    model = first.tokenizer_json.with_name("model.json")
    document = json.loads(model.read_text())
    if damage == "cut":
        model.write_bytes(model.read_bytes()[:-40])
    elif damage == "garbage":
        model.write_bytes(b"\xff\x00[")
    elif damage == "version":
        model.write_text(json.dumps(document | {"version": 0, "stop_ids": [1]}))
    elif damage == "tokenizer":
        first.tokenizer_json.write_text("{}")
    elif damage == "no_tokenizer":
        first.tokenizer_json.unlink()
    else:
        del document["tensors"]
        model.write_text(json.dumps(document))

    assert resolve(str(path), tmp_path / "cache") == first
    assert "merges" in first.tokenizer_json.read_text()


def test_where_nothing_can_be_written_beside_the_file_the_cache_holds_the_sidecar(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    # A file where the directory would go stops every user, root as well.
    path.with_name("tiny.gguf.headrace").write_text("")
    files = resolve(str(path), tmp_path / "cache")
    assert files.tokenizer_json.is_relative_to(tmp_path / "cache" / "sidecars")
    assert resolve(str(path), tmp_path / "cache") == files


def test_where_nothing_can_be_written_at_all_the_user_is_told(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    path.with_name("tiny.gguf.headrace").write_text("")
    (tmp_path / "cache").write_text("")
    with pytest.raises(StartupError, match="cannot be used"):
        resolve(str(path), tmp_path / "cache")


def test_processes_that_start_together_all_get_the_model(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    program = (
        "import sys; from pathlib import Path; from headrace.modelfiles.resolve import resolve;"
        "print(resolve(sys.argv[1], Path(sys.argv[2])).digest.hex())"
    )
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "cache")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate(timeout=30)[0] for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert digests == {resolve(str(path), tmp_path / "cache").digest.hex() + "\n"}


def test_a_separate_output_matrix_unties_the_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "untied.gguf"
    output = Tensor("output.weight", (len(tokens()), 32), F32, bytes(len(tokens()) * 32 * 4))
    path.write_bytes(gguf_bytes(tiny_metadata(), [*tiny_tensors(), output]))
    files = resolve(str(path), tmp_path / "cache")
    assert not files.config.tied_embeddings
    assert "lm_head.weight" in {entry.name for entry in files.tensors}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"general__architecture": "mamba"}, "architecture 'mamba', which is not supported"),
    "no architecture": ({"general__architecture": None}, "'general.architecture' is missing"),
    "pre-tokenizer": ({"tokenizer__ggml__pre": "exotic"}, "pre-tokenizer 'exotic' is not known"),
    "no pre-tokenizer": ({"tokenizer__ggml__pre": None}, "'tokenizer.ggml.pre' is missing"),
    "tokenizer": ({"tokenizer__ggml__model": "llama"}, "tokenizer 'llama' is not byte-level BPE"),
    "type": ({"llama__block_count": "one"}, "'llama.block_count' is not of type int"),
    "zero": ({"llama__attention__head_count": 0}, "'llama.attention.head_count' is 0"),
    "shape": ({"llama__feed_forward_length": 32}, r"has shape \[64, 32\], the model's configuration asks"),
    "missing tensors": ({"llama__block_count": 2}, "lacks 9 tensors, among them 'model.layers.1"),
    "experts": ({"llama__expert_count": 8}, "mixtures of experts"),
    "rope": (
        {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0},
        "scaled rotary embeddings are not supported",
    ),
    "split": ({"split__count": 3}, "one part of a file that was split"),
    "types": ({"tokenizer__ggml__token_type": [1, 2]}, "token types and tokens differ in number"),
    "duplicate tokens": ({"tokenizer__ggml__tokens": ["a"] * len(tokens())}, "does not fit"),
    "too many tokens": ({"tokenizer__ggml__tokens": [*tokens(), "more"]}, "does not fit"),
    "bos": ({"tokenizer__ggml__bos_token_id": 99999}, "bos token 99999 is outside the vocabulary"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    changes, sentence = REFUSED[name]
    path = write_tiny(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(StartupError, match=sentence) as caught:
        resolve(str(path), tmp_path / "cache")
    assert caught.value.remedy


def test_a_tensor_that_the_architecture_does_not_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bias.gguf"
    path.write_bytes(
        gguf_bytes(tiny_metadata(), [*tiny_tensors(), Tensor("blk.0.attn_q.bias", (32,), F32, bytes(128))])
    )
    with pytest.raises(StartupError, match=r"'blk\.0\.attn_q\.bias' that a llama model does not have"):
        resolve(str(path), tmp_path / "cache")


def test_a_file_cut_inside_its_weights_is_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(StartupError, match="it ends before tensor"):
        resolve(str(path), tmp_path / "cache")
