"""Philox4x32-10, the counter-based random generator of Random123 (Salmon et al., SC 2011), vectorised.

Owns the bits only: counter and key in, four words out, the same on every machine.
"""

import numpy as np
import numpy.typing as npt

_Words = npt.NDArray[np.uint64]

_HALF = np.uint64(32)
# Each half of the state is a pair (high word, low word); its products come from the other half.
_MULTIPLIERS = np.array([[0xCD9E8D57], [0xD2511F53]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64) << _HALF
_ROUNDS = 10


def philox(counter: tuple[_Words, _Words, _Words, _Words], key: tuple[_Words, _Words]) -> npt.NDArray[np.uint32]:
    """Four 32-bit words a counter, [n, 4]. Counter and key are 32-bit values in uint64 arrays, [n] or [1]."""
    first, second, third, fourth = counter
    count = max(len(word) for word in (*counter, *key))
    state = np.empty((2, count), dtype=np.uint64)
    state[0] = (first << _HALF) | second
    state[1] = (third << _HALF) | fourth
    keys = np.stack(np.broadcast_arrays(*key)) << _HALF
    products = np.empty_like(state)
    for _ in range(_ROUNDS):
        np.right_shift(state[::-1], _HALF, out=products)
        np.multiply(products, _MULTIPLIERS, out=products)
        np.left_shift(state, _HALF, out=state)
        np.bitwise_xor(state, products, out=state)
        np.bitwise_xor(state, keys, out=state)
        keys += _KEY_STEPS  # wraps at 32 bits: a key is the high half of its word
    # Each pair becomes one 64-bit word whose first half in memory is the pair's first word.
    words = np.empty((count, 2), dtype="<u8")
    words[:] = ((state << _HALF) | (state >> _HALF)).T
    return words.view("<u4")
