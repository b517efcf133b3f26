"""Numbers for attempts: none twice in a router's life, and none that another router gives to the same request.

Knows no requests. A worker tells jobs apart by request id and attempt; two routers, or two lives of one, that are
asked under one id must not name two jobs alike.
"""

import itertools
import secrets
from collections.abc import Iterator

_START_BITS = 31
"""A number travels in 32 bits, so that at least 2**31 follow whatever the start."""


def attempt_numbers() -> Iterator[int]:
    """Rising by one from a start that nobody else has drawn, but for one chance in two thousand million."""
    return itertools.count(1 + secrets.randbits(_START_BITS))
