"""Gumbel noise of tokens: a pure function of (seed, choice, position, token), and the draw it decides.

Owns how Philox's words become noise and the largest of score + noise (the Gumbel-max trick: it follows softmax of the
scores). A draw depends neither on the batch nor on what was drawn before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from headrace.engine.philox import philox

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_WORD = 2**32
_LOW = np.uint64(_WORD - 1)
_HALF = np.uint64(32)
# How far apart the noise of two tokens can be: the largest that 32 bits make, log(2^33), less the smallest.
NOISE_RANGE = float(np.log(2.0**33) + np.log(np.log(2.0**33)))
# What float32 may take from the bound of `_leaders`, with room to spare: the numbers stay below 100.
_SLACK = 1e-3
# Tokens from which on looking at bounds first is cheaper.
_MANY = 4096


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
    chosen = words[np.arange(len(tokens)), tokens & 3]
    noise: Floats = -np.log(-np.log((chosen.astype(np.float64) + 0.5) / _WORD))
    return noise


def draw(streams: list[Stream], tokens: list[Ids], scores: list[Floats]) -> list[int]:
    """One of each stream's `tokens` (ascending): the one whose score + noise is largest, of equals the lowest id.

    scores: at most 0, the best of each stream 0.
    """
    few = [_leaders(*one) if len(one[1]) > _MANY else one[1:] for one in zip(streams, tokens, scores, strict=True)]
    sizes = [len(ids) for ids, _ in few]
    noise = gumbel(streams, np.repeat(np.arange(len(streams)), sizes), np.concatenate([ids for ids, _ in few]))
    noises = np.split(noise, np.cumsum(sizes)[:-1])
    return [int(ids[(score + own).argmax()]) for (ids, score), own in zip(few, noises, strict=True)]


def _leaders(stream: Stream, tokens: Ids, scores: Floats) -> tuple[Ids, Floats]:
    """A few of many tokens with their scores, the winner among them.

    The noise -log(-log u) is at most -log(1 - u). Whoever's score + that bound stays below the true score + noise of
    one token cannot win, so most tokens need one float32 logarithm. Four neighbouring ids share a counter.
    """
    quads = np.arange((int(tokens[-1]) >> 2) + 1, dtype=np.uint64)
    position, choice, low, high = (
        np.array([value], dtype=np.uint64)
        for value in (stream.position, stream.choice, stream.seed % _WORD, (stream.seed >> 32) % _WORD)
    )
    words = philox((quads, position, choice, np.zeros(1, dtype=np.uint64)), (low, high)).ravel()[tokens]
    gap = torch.from_numpy((~words).astype(np.float32) + np.float32(0.5))
    raised = np.maximum(scores, -2.0 * NOISE_RANGE)  # whatever lies below cannot win either way
    bound = raised.astype(np.float32) - gap.log_().numpy() + np.float32(np.log(_WORD))
    lead = np.array([bound.argmax()])
    reached = scores[lead] + gumbel([stream], np.zeros(1, dtype=np.int64), tokens[lead])
    kept = bound >= reached[0] - _SLACK
    return tokens[kept], scores[kept]
