"""Log-probabilities of tokens, as workers report them and callers read them."""

from dataclasses import dataclass

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token under the raw distribution: log-softmax of the model's logits, before temperature, penalties and
    filters change them.

    rank: 1 for the likeliest token. top: the likeliest (token id, logprob), best first, as many as were asked for;
    among equals the lowest id comes first. It need not hold the token itself.
    The router, which knows the vocabulary, fills in the rest. piece: the bytes that the token stands for, which may
    be part of a character; a control token's are its name. top_pieces: the same for each of `top`. offset: how many
    characters of the answer, or of the prompt, come before the token.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()
    piece: bytes = b""
    top_pieces: tuple[bytes, ...] = ()
    offset: int = 0
