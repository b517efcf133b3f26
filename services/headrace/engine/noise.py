"""Gumbel noise of tokens: a pure function of (seed, choice, position, token), and the draw it decides.

Owns how Philox's words become noise and the largest of score + noise (the Gumbel-max trick: it follows softmax of the
scores). A draw depends neither on the batch nor on what was drawn before.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine.philox import philox

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_WORD = 2**32
_LOW = np.uint64(_WORD - 1)
_HALF = np.uint64(32)
# How far apart the noise of two tokens can be: the largest that 32 bits make, log(2^33), less the smallest.
NOISE_RANGE = float(np.log(2.0**33) + np.log(np.log(2.0**33)))
# What float32 may take from the bounds of `leaders`, with room to spare: those that matter stay below 100.
_SLACK = 1e-3
# Of _log: the bits of sqrt(1/2), the logarithm of 2 in two parts, and the coefficients.
_ROOT_HALF = np.int64(0x3FE6A09E667F3BCD)
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ODD = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_EVEN = (6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01, 1.479819860511658591e-01)


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a draw's noise comes from. position: of the token among the generated ones."""

    seed: int
    choice: int
    position: int


def gumbel(streams: list[Stream], owner: Ids, tokens: Ids) -> Floats:
    """Noise of each token in the stream streams[owner]."""
    table = np.array([(one.seed, one.choice, one.position) for one in streams], dtype=np.int64).view(np.uint64)
    seed, choice, position = table[owner].T
    counter = ((tokens >> 2).view(np.uint64), position, choice, np.zeros(1, dtype=np.uint64))
    words = philox(counter, (seed & _LOW, seed >> _HALF))
    return _noise(words[np.arange(len(tokens)), tokens & 3])


def draw(streams: list[Stream], tokens: list[Ids], scores: list[Floats]) -> list[int]:
    """One of each stream's `tokens` (ascending): the one whose score + noise is largest, of equals the lowest id."""
    sizes = [len(ids) for ids in tokens]
    noise = gumbel(streams, np.repeat(np.arange(len(streams)), sizes), np.concatenate(tokens))
    noises = np.split(noise, np.cumsum(sizes)[:-1])
    return [int(ids[(score + own).argmax()]) for ids, score, own in zip(tokens, scores, noises, strict=True)]


def leaders(stream: Stream, scores: npt.NDArray[np.float32]) -> Ids:
    """A few ids of a whole vocabulary (ascending), the one that `draw` would draw among them. The best score is 0.

    The noise -log(-log u) is at most -log(1 - u). Whoever's score + that bound stays below the true score + noise of
    one token cannot win, so that most tokens cost one float32 logarithm. Four neighbouring ids share a counter.
    """
    words = _words(stream, len(scores))
    gap = (~words).astype(np.float32) + np.float32(0.5)  # (1 - u) 2^32
    bound = scores - np.log(gap, out=gap)
    lead = int(bound.argmax())
    reached = float(scores[lead] + _noise(words[lead : lead + 1])[0])
    return np.flatnonzero(bound >= np.float32(reached - _SLACK - math.log(_WORD)))


def _noise(words: npt.NDArray[np.uint32]) -> Floats:
    return -_log(-_log((words.astype(np.float64) + 0.5) / _WORD))


def _log(x: Floats) -> Floats:
    """Natural logarithm of positive normal numbers: fdlibm's (Sun Microsystems, 1993), without its short cuts.

    Only operations that round alike everywhere: what numpy or C calls log differs in its last bit between processors,
    and a draw must not.
    """
    bits = x.view(np.int64)
    power = (bits - _ROOT_HALF) >> 52  # x / 2^power lies between sqrt(1/2) and sqrt(2)
    k, f = power.astype(np.float64), (bits - (power << 52)).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = w * (_ODD[0] + w * (_ODD[1] + w * _ODD[2]))
    even = z * (_EVEN[0] + w * (_EVEN[1] + w * (_EVEN[2] + w * _EVEN[3])))
    half = 0.5 * f * f
    logs: Floats = k * _LN2_HIGH - ((half - (s * (half + (even + odd)) + k * _LN2_LOW)) - f)
    return logs


def _words(stream: Stream, count: int) -> npt.NDArray[np.uint32]:
    """Philox's words of the ids below `count`."""
    quads = np.arange(-(-count // 4), dtype=np.uint64)
    position, choice, zero, low, high = (
        np.array([value], dtype=np.uint64)
        for value in (stream.position, stream.choice, 0, stream.seed % _WORD, (stream.seed >> 32) % _WORD)
    )
    return philox((quads, position, choice, zero), (low, high)).ravel()[:count]
