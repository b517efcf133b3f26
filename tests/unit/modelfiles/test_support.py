"""The table of what is supported, and the page that explains it, name the same things."""

from pathlib import Path

import pytest

from headrace.modelfiles.support import ARCHITECTURES, ROPE_VARIANTS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text().splitlines()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_page_has_every_architecture(name: str) -> None:
    (row,) = [line for line in PAGE if line.startswith(f"| `{name}` |")]
    assert ARCHITECTURES[name].source.removeprefix("arXiv ") in row
    (gguf,) = [line for line in PAGE if line.startswith("| GGUF |")]
    assert (name in gguf.replace("|", ",").replace(" ", "").split(",")) is ARCHITECTURES[name].gguf


@pytest.mark.parametrize("variant", ROPE_VARIANTS)
def test_the_page_has_every_rotary_variant(variant: str) -> None:
    (row,) = [line for line in PAGE if line.startswith(f"| {variant} |")]
    assert ROPE_VARIANTS[variant] in row


def test_an_architecture_has_known_variants() -> None:
    assert {variant for each in ARCHITECTURES.values() for variant in each.ropes} == ROPE_VARIANTS.keys()
