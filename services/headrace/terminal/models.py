"""`headrace models`: which models can be run; and of one, whether it can, or what stands against it."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.core.errors import StartupError
from headrace.modelfiles.examine import Verdict, examine
from headrace.modelfiles.gguf import ENCODINGS as GGUF_ENCODINGS
from headrace.modelfiles.safetensors import ENCODINGS as SAFETENSORS_ENCODINGS
from headrace.modelfiles.support import ACTIVATIONS, ARCHITECTURES, ROPE_VARIANTS, TOKENIZERS
from headrace.modelfiles.wheels import WHEEL_MODELS
from headrace.text.tokenizer import ModelTokenizer

_SAFETENSORS = tuple(SAFETENSORS_ENCODINGS)
_GGUF = tuple(each.name for each in GGUF_ENCODINGS.values())


@dataclass(frozen=True, slots=True)
class ModelsOptions:
    """checkpoint: the model asked about, "" for the list. cache_dir: where downloads are."""

    checkpoint: str
    cache_dir: Path
    as_json: bool


def show(options: ModelsOptions) -> int:
    """Print it. Exit code 0; 1 if the model asked about cannot be run."""
    if not options.checkpoint:
        print(json.dumps(_listing(), indent=2)) if options.as_json else _print_listing()
        return 0
    verdict = _read_tokenizer(
        examine(options.checkpoint, options.cache_dir, lambda sentence: print(sentence, file=sys.stderr))
    )
    print(json.dumps(_as_json(verdict), indent=2) if options.as_json else _sentences(verdict))
    return 0 if verdict.supported else 1


def _read_tokenizer(verdict: Verdict) -> Verdict:
    """The verdict with what the start of a frontend would say of the tokenizer."""
    if verdict.tokenizer_json is None:
        return verdict
    try:
        ModelTokenizer(verdict.tokenizer_json)
    except StartupError as error:
        return replace(verdict, against=(*verdict.against, error.message))
    return verdict


def _listing() -> dict[str, object]:
    return {
        "architectures": [
            {
                "model_type": each.model_type,
                "models": each.models,
                "features": each.features,
                "rope_variants": each.ropes,
                "formats": _formats(each.gguf),
                "source": each.source,
            }
            for each in ARCHITECTURES.values()
        ],
        "rope_variants": dict(ROPE_VARIANTS),
        "activations": list(ACTIVATIONS),
        "encodings": {"safetensors": _SAFETENSORS, "gguf": _GGUF},
        "tokenizers": list(TOKENIZERS),
        "names": list(WHEEL_MODELS),
    }


def _formats(gguf: bool) -> list[str]:
    return ["safetensors", "gguf"] if gguf else ["safetensors"]


def _print_listing() -> None:
    table = Table("model_type", "models", "what is its own", "files", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for each in ARCHITECTURES.values():
        table.add_row(each.model_type, each.models, each.features, ", ".join(_formats(each.gguf)))
    console = Console()
    console.print(table)
    rows = {
        "rope": [_where(variant) for variant in ROPE_VARIANTS],
        "activations": ACTIVATIONS,
        "safetensors": _SAFETENSORS,
        "gguf": _GGUF,
        "tokenizers": TOKENIZERS,
        "names": WHEEL_MODELS,
    }
    console.print()
    for name, values in rows.items():
        console.print(f"{name:<12} {', '.join(values)}", highlight=False)


def _where(variant: str) -> str:
    """A rotary variant, with the fewest words on which architectures have it."""
    having = [each.model_type for each in ARCHITECTURES.values() if variant in each.ropes]
    lacking = [name for name in ARCHITECTURES if name not in having]
    if not lacking:
        return variant
    words = f"only {', '.join(having)}" if len(having) < len(lacking) else f"not {', '.join(lacking)}"
    return f"{variant} ({words})"


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "model": verdict.name,
        "supported": verdict.supported,
        "against": verdict.against,
        "unseen": verdict.unseen,
        "encodings": verdict.encodings,
        "config": None if verdict.config is None else asdict(verdict.config),
    }


def _sentences(verdict: Verdict) -> str:
    if not verdict.supported:
        return "\n".join([f"{verdict.name} is not supported.", *(f"  {reason}" for reason in verdict.against)])
    facts, unseen = "", f" Not looked at: {verdict.unseen}." if verdict.unseen else ""
    if verdict.config is not None:
        rope = f"rope {verdict.config.rope_scaling.variant}"
        facts = f" ({', '.join((verdict.config.architecture, rope, *verdict.encodings))})"
    return f"{verdict.name} is supported{facts}.{unseen}"
