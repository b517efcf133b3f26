"""Rotary tables: what workers may share, what is refused, and a rotation that leaves the rest of a head alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files
from torch import Tensor

from headrace.core.errors import StartupError
from headrace.engine import ops
from headrace.engine.build import build_engine
from headrace.engine.models.rope import rope_tables
from headrace.engine.options import EngineOptions
from headrace.modelfiles.files import ModelConfig, RopeScaling

LONG = RopeScaling(
    "longrope", original_max_position=64, short_factors=tuple(range(1, 9)), long_factors=tuple(range(3, 11))
)


def _digest(directory: Path, config: ModelConfig, length: int) -> bytes:
    options = EngineOptions(dtype="float32", kv_cache_memory_bytes=2**20, max_model_len=length)
    return build_engine(tiny_files(directory, config), VOCABULARY, options).info.model_digest


def test_workers_share_pages_unless_longrope_turns_them_differently(tmp_path: Path) -> None:
    assert _digest(tmp_path, CONFIG, 64) == _digest(tmp_path, CONFIG, 65)
    config = replace(CONFIG, rope_scaling=LONG)
    below, at, above, far = (_digest(tmp_path, config, length) for length in (48, 64, 65, 400))
    assert below == at != above == far


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="'spiral' is not supported"):
        _digest(tmp_path, replace(CONFIG, rope_scaling=RopeScaling("spiral")), 64)


def _angles(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """[position, 1, rotary]"""
    tables = rope_tables(config, length)
    return torch.from_numpy(tables.cosines)[:, None], torch.from_numpy(tables.sines)[:, None]


@pytest.mark.parametrize("part", [4, 8, 12, 0])
def test_a_rotation_keeps_lengths_and_what_lies_beyond(part: int) -> None:
    tables = _angles(replace(CONFIG, rotary_dim=part), 40)
    states = torch.randn(40, 3, CONFIG.head_dim, generator=torch.Generator().manual_seed(1))
    turned = ops.rotate(states, *tables)
    turning = part or CONFIG.head_dim
    assert torch.equal(turned[..., turning:], states[..., turning:])
    torch.testing.assert_close(turned.norm(dim=-1), states.norm(dim=-1))
    assert torch.equal(turned[0], states[0])
    assert not torch.isclose(turned[1, 0, :turning], states[1, 0, :turning]).all()


def test_scores_depend_on_distances_alone() -> None:
    cosines, sines = _angles(CONFIG, 60)
    query, key = torch.randn(2, 1, 1, CONFIG.head_dim, generator=torch.Generator().manual_seed(2))

    def score(at: int, back: int) -> float:
        turned = (
            ops.rotate(state, cosines[[place]], sines[[place]]) for state, place in ((query, at), (key, at - back))
        )
        return float(torch.stack(list(turned)).prod(0).sum())

    for back in (0, 3, 20):
        assert score(50, back) == pytest.approx(score(25, back), abs=1e-4)
