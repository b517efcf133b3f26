"""Directories in Hugging Face's layout and hub ids, from name to ModelFiles."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from fixtures.gguf_writer import TEMPLATE
from fixtures.hub_directory import TINY, TOKENIZER_CONFIG, safetensors_bytes, tiny_weights, write_directory

from headrace.core.errors import StartupError
from headrace.modelfiles import resolve as resolve_module
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.resolve import resolve


def test_describes_the_directory(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny-chat")
    files = resolve(str(directory), tmp_path / "cache")
    assert (files.name, files.config) == ("tiny-chat", TINY)
    assert files.tokenizer_json == directory / "tokenizer.json"
    assert (files.chat_template, files.bos_token, files.eos_token) == (TEMPLATE, "<|im_start|>", "<|im_end|>")
    assert (files.add_bos, files.stop_ids) == (False, (0, 2))
    norm = next(entry for entry in files.tensors if entry.name == "model.norm.weight")
    assert (norm.encoding, norm.shape, norm.nbytes, norm.permuted_heads) == ("BF16", (32,), 64, 0)


def test_a_second_start_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_directory(tmp_path / "tiny")
    first = resolve(str(directory), tmp_path / "cache")

    def read(snapshot: Any) -> ModelFiles:
        raise AssertionError(f"{snapshot} was read again")

    monkeypatch.setattr(resolve_module, "read", read)
    assert resolve(str(directory), tmp_path / "cache") == first


def test_offsets_point_at_the_tensors_bytes(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    weights = tiny_weights()
    weights["model.norm.weight"] = ("F32", (32,), struct.pack("<32f", *range(32)))
    (directory / "model.safetensors").write_bytes(safetensors_bytes(weights))
    files = resolve(str(directory), tmp_path / "cache")
    norm = next(entry for entry in files.tensors if entry.name == "model.norm.weight")
    assert struct.unpack("<32f", norm.path.read_bytes()[norm.offset :][: norm.nbytes]) == tuple(map(float, range(32)))


def test_every_file_that_matters_changes_the_digest(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    seen = {resolve(str(directory), tmp_path / "cache").digest}

    # 1. One bit in the middle of the weights, same size.
    weights = directory / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    seen.add(resolve(str(directory), tmp_path / "cache").digest)
    # 2. The configuration.
    write_directory(directory, rope_theta=5000.0)
    seen.add(resolve(str(directory), tmp_path / "cache").digest)
    # 3. The tokenizer.
    write_directory(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["model"]["merges"].reverse()
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    seen.add(resolve(str(directory), tmp_path / "cache").digest)
    assert len(seen) == 4

    # 4. Everything as it was, elsewhere and under another name.
    copy = write_directory(tmp_path / "copy")
    assert resolve(str(copy), tmp_path / "other cache").digest in seen


def test_sharded_weights(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    weights = list(tiny_weights().items())
    (directory / "model.safetensors").unlink()
    shards = {"model-00001-of-00002.safetensors": weights[:4], "model-00002-of-00002.safetensors": weights[4:]}
    for name, part in shards.items():
        (directory / name).write_bytes(safetensors_bytes(dict(part)))
    weight_map = {tensor: name for name, part in shards.items() for tensor, _ in part}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))

    files = resolve(str(directory), tmp_path / "cache")
    assert {entry.name: entry.path.name for entry in files.tensors} == weight_map
    assert resolve(str(directory), tmp_path / "cache") == files

    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(StartupError, match=r"lacks model-00002-of-00002\.safetensors, which its index names"):
        resolve(str(directory), tmp_path / "cache")
    for broken in ("[]", '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}', "{"):
        index.write_text(broken)
        with pytest.raises(StartupError, match="weight_map"):
            resolve(str(directory), tmp_path / "cache")


def test_transformers_5_writes_rope_parameters_and_a_template_file(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 123.0}
    directory = write_directory(tmp_path / "tiny", rope_theta=None, rope_parameters=rope, head_dim=16)
    (directory / "chat_template.jinja").write_text("newer")
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    files = resolve(str(directory), tmp_path / "cache")
    assert (files.config.rope_theta, files.chat_template, files.stop_ids) == (123.0, "newer", (0, 1, 2))


def test_a_post_processor_that_begins_with_bos_asks_for_it(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    begin = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}]}
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert resolve(str(directory), tmp_path / "cache").add_bos


def test_a_list_of_templates_has_a_default(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG | {"chat_template": named}))
    assert resolve(str(directory), tmp_path / "cache").chat_template == "D"
    (directory / "tokenizer_config.json").unlink()
    assert resolve(str(directory), tmp_path / "cache").chat_template is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "mamba"}, "architecture 'mamba'"),
    "missing number": ({"hidden_size": None}, "lacks a number that the model needs.*'hidden_size'"),
    "rope": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}},
        "needs the rotary embedding 'dynamic' in llama",
    ),
    "longrope": ({"rope_scaling": {"type": "longrope"}}, "needs the rotary embedding 'longrope' in llama"),
    "partial rope": ({"partial_rotary_factor": 0.5}, "needs rotary embedding of 0.5 of a head in llama"),
    "rope's number": ({"rope_scaling": {"type": "linear"}}, "lacks a number that the model needs.*'factor'"),
    "quantised": ({"quantization_config": {"quant_method": "awq"}}, r"needs quantised weights \(awq\)"),
    "activation": ({"hidden_act": "gelu"}, "needs the activation 'gelu'"),
    "layer types": ({"layer_types": ["linear_attention"]}, "needs layers of type 'linear_attention'"),
    "no direction": ({"use_bidirectional_attention": True}, "needs bidirectional attention"),
    "several": (
        {"hidden_act": "gelu", "quantization_config": {"bits": 4}},
        r"weights \(unnamed\), the activation 'gelu'",
    ),
    "heads": ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 attention heads are no multiple of 2"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    "a text": ({"hidden_size": "wide"}, "lacks a number that the model needs.*'wide'"),
    "bias": ({"attention_bias": True}, "lacks 4 tensors, among them 'model.layers.0.self_attn.k_proj.bias'"),
    "layers": ({"num_hidden_layers": 2}, "lacks 9 tensors"),
    "untied": ({"tie_word_embeddings": False}, "lacks 1 tensors, among them 'lm_head.weight'"),
    "shape": ({"vocab_size": 7}, "'model.embed_tokens.weight' has shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    changes, sentence = REFUSED[name]
    directory = write_directory(tmp_path / "tiny", **changes)
    with pytest.raises(StartupError, match=sentence) as caught:
        resolve(str(directory), tmp_path / "cache")
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_the_missing_file_is_named(tmp_path: Path, name: str) -> None:
    directory = write_directory(tmp_path / "tiny")
    (directory / name).unlink()
    with pytest.raises(StartupError, match=name):
        resolve(str(directory), tmp_path / "cache")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_broken_json_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    directory = write_directory(tmp_path / "tiny")
    (directory / name).write_bytes(content)
    with pytest.raises(StartupError, match=name):
        resolve(str(directory), tmp_path / "cache")


ODD_TOKENIZERS: dict[str, tuple[str, str]] = {
    "added tokens": ("tokenizer.json", '{"added_tokens": [1]}'),
    "post-processor": ("tokenizer.json", '{"post_processor": {"processors": [1]}}'),
    "templates": ("tokenizer_config.json", '{"chat_template": ["a"]}'),
    "template": ("chat_template.jinja", "\udcff"),
}


@pytest.mark.parametrize("name", ODD_TOKENIZERS)
def test_tokenizer_files_of_an_unknown_form_are_refused(tmp_path: Path, name: str) -> None:
    directory = write_directory(tmp_path / "tiny")
    file, content = ODD_TOKENIZERS[name]
    (directory / file).write_bytes(content.encode(errors="surrogateescape"))
    if name == "post-processor":
        (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>"}))
    with pytest.raises(StartupError, match=r"tokenizer's files .* are not in a known form"):
        resolve(str(directory), tmp_path / "cache")


def test_every_truncation_of_the_weights_is_refused(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "tiny")
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    for length in [*range(0, 2000, 13), len(whole) - 1]:
        weights.write_bytes(whole[:length])
        with pytest.raises(StartupError, match="not a readable safetensors file"):
            resolve(str(directory), tmp_path / "cache")


BAD_ENTRIES: dict[str, Any] = {
    "not an object": 7,
    "no dtype": {"shape": [32], "data_offsets": [0, 64]},
    "negative": {"dtype": "BF16", "shape": [32], "data_offsets": [-64, 0]},
    "size": {"dtype": "BF16", "shape": [32], "data_offsets": [0, 63]},
    "beyond": {"dtype": "BF16", "shape": [2**40], "data_offsets": [0, 2**41]},
    "float": {"dtype": "BF16", "shape": [32.0], "data_offsets": [0, 64]},
    "three offsets": {"dtype": "BF16", "shape": [32], "data_offsets": [0, 64, 128]},
    "unknown type": {"dtype": "F8_E4M3", "shape": [32], "data_offsets": [0, 32]},
    "type of no kind": {"dtype": ["BF16"], "shape": [32], "data_offsets": [0, 64]},
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_bad_header_entries_are_refused(tmp_path: Path, name: str) -> None:
    directory = write_directory(tmp_path / "tiny")
    header = json.dumps({"model.norm.weight": BAD_ENTRIES[name]}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(200))
    with pytest.raises(StartupError, match=r"model\.safetensors.*model\.norm\.weight"):
        resolve(str(directory), tmp_path / "cache")


def hub_snapshot(cache_dir: Path, commit: str = "0123abc") -> Path:
    repository = cache_dir / "hub" / "models--org--tiny-chat"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    return write_directory(repository / "snapshots" / commit)


def test_a_hub_id_is_found_in_the_local_hub_cache(tmp_path: Path) -> None:
    directory = hub_snapshot(tmp_path / "cache")
    said: list[str] = []
    files = resolve("org/tiny-chat", tmp_path / "cache", said.append)
    assert (files.name, files.tokenizer_json) == ("org/tiny-chat", directory / "tokenizer.json")
    assert not any("Downloading" in sentence for sentence in said)


def test_an_incomplete_snapshot_is_completed_by_the_hub_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (hub_snapshot(tmp_path / "cache") / "model.safetensors").unlink()
    said: list[str] = []
    with pytest.raises(StartupError) as caught:
        resolve("org/tiny-chat", tmp_path / "cache", said.append)
    assert said == ["Downloading org/tiny-chat from the hub ..."]
    assert caught.value.remedy


def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StartupError, match=r"org/absent is not in .* and could not be fetched from the hub"):
        resolve("org/absent", tmp_path / "cache")


@pytest.mark.parametrize("name", ["nothing", "./nothing.gguf", "/no/such/model.gguf", "dir/model.gguf", "a/b/c", ""])
def test_a_name_that_means_nothing_is_answered_with_what_would(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartupError, match=r"There is no model .* smollm2-135m"):
        resolve(name or str(tmp_path / "x"), tmp_path / "cache")
