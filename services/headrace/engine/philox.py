"""Philox4x32-10, the counter-based random generator of Random123 (Salmon et al., SC 2011), vectorised.

Owns the bits only: counter and key in, four words out, the same on every machine.
"""

import numpy as np
import numpy.typing as npt

_Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox(counter: tuple[_Words, _Words, _Words, _Words], key: tuple[int, int]) -> _Words:
    """Four 32-bit words a counter, [n, 4]. Counter words are 32-bit values in uint64 arrays of one shape [n]."""
    first, second, third, fourth = counter
    for turn in range(_ROUNDS):
        low_key, high_key = (
            np.uint64((word + turn * step) & 0xFFFFFFFF) for word, step in zip(key, _KEY_STEPS, strict=True)
        )
        left, right = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second, third, fourth = (
            (right >> _HALF) ^ second ^ low_key,
            right & _LOW,
            (left >> _HALF) ^ fourth ^ high_key,
            left & _LOW,
        )
    return np.stack((first, second, third, fourth), axis=1)
