"""Rotary position embedding (Su et al., arXiv 2104.09864) over the halves of a head, and its scaled variants.

Owns the frequencies of every variant. Sources: linear, Chen et al., arXiv 2306.15595; yarn, Peng et al., arXiv
2309.00071; longrope, Ding et al., arXiv 2402.13753; llama3, Meta's reference code of Llama 3.1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.errors import StartupError
from headrace.modelfiles.files import ModelConfig, RopeScaling

Angles = tuple[Tensor, Tensor]
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class RopeTables:
    """cosines, sines: [position, 1, rotary dim], in the model's dtype, computed in float32."""

    cosines: Tensor
    sines: Tensor

    def at(self, positions: Tensor) -> Angles:
        """[token] to cosines and sines of [token, 1, rotary dim]."""
        return self.cosines[positions], self.sines[positions]

    def to(self, device: torch.device, dtype: torch.dtype) -> "RopeTables":
        return RopeTables(self.cosines.to(device, dtype), self.sines.to(device, dtype))


def rope_tables(config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device = _CPU) -> RopeTables:
    """For positions 0 .. length - 1, with the model's scaling. Computed on the CPU, wherever they go: keys in pages
    that workers exchange were turned by the same bits."""
    return _tables(config, config.rope_theta, config.rope_scaling, length).to(device, dtype)


def local_rope_tables(config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device = _CPU) -> RopeTables:
    """For the layers with a window, where these rotate by another base."""
    return _tables(config, config.local_rope_theta, RopeScaling(), length).to(device, dtype)


def rope_recipe(config: ModelConfig, length: int) -> str:
    """What keys in pages depend on beyond the configuration, "" for nothing: longrope turns by other frequencies once
    the served context is longer than the original one, so workers on either side of it must not share pages."""
    return " long rope" if config.rope_scaling.variant == "longrope" and _is_long(config.rope_scaling, length) else ""


def _tables(config: ModelConfig, theta: float, scaling: RopeScaling, length: int) -> RopeTables:
    scaled = _VARIANTS.get(scaling.variant)
    if scaled is None:
        raise StartupError(
            f"The rotary embedding {scaling.variant!r} is not supported.", remedy=f"Supported: {', '.join(_VARIANTS)}."
        )
    exponents = torch.arange(0, config.rotary_dim or config.head_dim, 2, dtype=torch.float32)
    frequencies = scaled(1.0 / theta ** (exponents / (config.rotary_dim or config.head_dim)), theta, scaling, length)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    factor = scaling.attention_factor
    return RopeTables(angles.cos() * factor, angles.sin() * factor)


def _unscaled(frequencies: Tensor, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    return frequencies


def _linear(frequencies: Tensor, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    return frequencies / scaling.factor


def _llama3(frequencies: Tensor, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    """Slow turns are slowed by `factor`, fast ones stay, those between are mixed by how often they turn."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn(frequencies: Tensor, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    """Between the frequencies that turn beta_fast and beta_slow times in the original context the slowing sets in."""
    count = len(frequencies)

    def place(turns: float) -> float:
        return count * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / math.log(theta)

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * count - 1)
    high += 0.001 if low == high else 0.0
    slowed = ((torch.arange(count, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)


def _longrope(frequencies: Tensor, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    """One divisor a frequency. The served context decides which, so that keys in pages stay valid as a prompt grows."""
    factors = scaling.long_factors if _is_long(scaling, length) else scaling.short_factors
    return frequencies / torch.tensor(factors, dtype=torch.float32)


def _is_long(scaling: RopeScaling, length: int) -> bool:
    return length > scaling.original_max_position


_VARIANTS: dict[str, Callable[[Tensor, float, RopeScaling, int], Tensor]] = {
    "default": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
