"""Rotary position embedding (Su et al., arXiv 2104.09864) over the halves of a head, and its scaled variants.

Owns the frequencies of every variant. Sources: linear, Chen et al., arXiv 2306.15595; yarn, Peng et al., arXiv
2309.00071; longrope, Ding et al., arXiv 2402.13753; llama3, Meta's reference code of Llama 3.1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.errors import StartupError
from headrace.engine.models.turns import power, turns
from headrace.modelfiles.files import ModelConfig, RopeScaling

Floats = npt.NDArray[np.float32]

# Positions.
_PIECE = 512


@dataclass(frozen=True, slots=True)
class RopeTables:
    """cosines, sines: [position, rotary dim], float32, for whoever computes to round.

    Keys in pages that workers exchange were turned by the same bits, so these are the same on every machine (turns.py).
    Angles are products in float32, as the architectures' own code has them.
    """

    cosines: Floats
    sines: Floats


def rope_tables(config: ModelConfig, length: int) -> RopeTables:
    """For positions 0 .. length - 1, with the model's scaling."""
    return _tables(config, config.rope_theta, config.rope_scaling, length)


def local_rope_tables(config: ModelConfig, length: int) -> RopeTables:
    """For the layers with a window, where these rotate by another base."""
    return _tables(config, config.local_rope_theta, RopeScaling(), length)


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
    rotary = config.rotary_dim or config.head_dim
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    frequencies = scaled(_powers(theta, exponents), theta, scaling, length)
    # In pieces that stay in the cache: a table of a long context in float64 is a gigabyte with what it is made of.
    pieces = [_turned(start, min(start + _PIECE, length), frequencies) for start in range(0, length, _PIECE)]
    halves = (np.concatenate(each) * np.float32(scaling.attention_factor) for each in zip(*pieces, strict=True))
    return RopeTables(*(np.concatenate((half, half), axis=1) for half in halves))


def _turned(start: int, stop: int, frequencies: Floats) -> tuple[Floats, Floats]:
    """Cosines and sines of [position, rotary dim / 2]."""
    angles = np.outer(np.arange(start, stop, dtype=np.float32), frequencies)
    cosines, sines = turns(angles.astype(np.float64))
    return cosines.astype(np.float32), sines.astype(np.float32)


def _powers(theta: float, exponents: Floats) -> Floats:
    """1 / theta^exponent, each step rounded as in the architectures' own code."""
    return np.float32(1.0) / np.array([power(theta, float(each)) for each in exponents], dtype=np.float32)


def _unscaled(frequencies: Floats, theta: float, scaling: RopeScaling, length: int) -> Floats:
    return frequencies


def _linear(frequencies: Floats, theta: float, scaling: RopeScaling, length: int) -> Floats:
    return frequencies / scaling.factor


def _llama3(frequencies: Floats, theta: float, scaling: RopeScaling, length: int) -> Floats:
    """Slow turns are slowed by `factor`, fast ones stay, those between are mixed by how often they turn."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clip(0, 1)
    slowed: Floats = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    return slowed


def _yarn(frequencies: Floats, theta: float, scaling: RopeScaling, length: int) -> Floats:
    """Between the frequencies that turn beta_fast and beta_slow times in the original context the slowing sets in."""
    count = len(frequencies)

    def place(turns: float) -> float:
        return count * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / math.log(theta)

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * count - 1)
    high += 0.001 if low == high else 0.0
    slowed: Floats = ((np.arange(count, dtype=np.float32) - np.float32(low)) / np.float32(high - low)).clip(0, 1)
    mixed: Floats = frequencies / np.float32(scaling.factor) * slowed + frequencies * (1 - slowed)
    return mixed


def _longrope(frequencies: Floats, theta: float, scaling: RopeScaling, length: int) -> Floats:
    """One divisor a frequency. The served context decides which, so that keys in pages stay valid as a prompt grows."""
    factors = scaling.long_factors if _is_long(scaling, length) else scaling.short_factors
    divisors: Floats = np.array(factors, dtype=np.float32)
    return frequencies / divisors


def _is_long(scaling: RopeScaling, length: int) -> bool:
    return length > scaling.original_max_position


_VARIANTS: dict[str, Callable[[Floats, float, RopeScaling, int], Floats]] = {
    "default": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
