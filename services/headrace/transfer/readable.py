"""Waiting for file descriptors, of any number: `select` knows none above 1023, and a busy worker has more."""

import math
import select
from collections.abc import Iterable


def wait_readable(fds: Iterable[int], timeout_s: float) -> frozenset[int]:
    """Those of `fds` that can be read now or within `timeout_s`, which is rounded up to milliseconds."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return frozenset(fd for fd, _ in poll.poll(math.ceil(timeout_s * 1000)))
