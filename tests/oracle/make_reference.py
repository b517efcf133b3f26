"""Makes reference.json: prompts and the greedy tokens that transformers gives them in float32.

    make oracle                          the same prompts anew
    make oracle ARGS="--prompts DIR"     other prompts, out of DIR's mt_bench, vicuna_bench, humaneval and multilingual
                                         .jsonl files

Each token comes with the gap between the two best logits: where it is small, another order of additions may
rightly choose the other one.
"""

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fixtures.references import REFERENCE_FILE, Reference, load_references

from headrace.core.generation import ChatPrompt, Message, TextPrompt
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.resolve import resolve
from headrace.text.model import TextModel

MODEL = "smollm2-135m"
CACHE = Path("~/.cache/headrace").expanduser()
TOKENS = 64
LONGEST = 320


def load_transformers(files: ModelFiles) -> Any:
    """The same file through transformers' own GGUF reader, in float32 (needs the gguf package)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        path = str(files.tensors[0].path)
        config = AutoConfig.for_model(**load_gguf_checkpoint(path)["config"])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
        missing = model.load_state_dict(tensors, strict=False).missing_keys
        model.tie_weights()
        assert not set(missing) - {"lm_head.weight"}
        return model


def greedy(model: Any, prompt: tuple[int, ...], count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """`count` tokens after `prompt`, ends of text included, and their gaps."""
    model.generation_config.eos_token_id = None
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [logits[0].topk(2).values for logits in out.logits]
    tokens = out.sequences[0, len(prompt) :].tolist()
    return tuple(tokens), tuple(round(float(first - second), 6) for first, second in best)


def choose(prompts: Path) -> Iterator[tuple[str, str, str]]:
    """(source, kind, text): chats of two benches, code to complete, sentences of many scripts."""
    for name, stride in (("mt_bench", 9), ("vicuna_bench", 12)):
        for row in islice(_rows(prompts, name), 0, 5 * stride, stride):
            yield f"{name}/{row['question_id']}", "chat", row["turns"][0] if "turns" in row else row["text"]
    for row in islice(_rows(prompts, "humaneval"), 0, 5 * 20, 20):
        yield row["task_id"], "text", row["prompt"]
    rows = list(_rows(prompts, "multilingual"))
    for row in rows[:: max(1, len(rows) // 5)][:5]:
        yield f"multilingual/{row['id']}", "text", row["text"]


def _rows(prompts: Path, name: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, (prompts / f"{name}.jsonl").read_text().splitlines())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--prompts", type=Path)
    prompts = arguments.parse_args().prompts
    chosen = list(choose(prompts)) if prompts else [(one.source, one.kind, one.text) for one in load_references()]
    files = resolve(MODEL, CACHE, print)
    text_model, model = TextModel.load(files), load_transformers(files)
    references = []
    for source, kind, text in chosen:
        ids = text_model.encode(ChatPrompt((Message("user", text),)) if kind == "chat" else TextPrompt(text))
        references.append(Reference(source, kind, text, ids[:LONGEST], *greedy(model, ids[:LONGEST], TOKENS)))
        print(f"{source}: {len(ids)} prompt tokens, smallest gap {min(references[-1].gaps)}")
    rows = (json.dumps(asdict(reference), ensure_ascii=False) for reference in references)
    REFERENCE_FILE.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
