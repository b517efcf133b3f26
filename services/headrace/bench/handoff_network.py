"""What stands between the two processes of a hand-off: nothing, or a network of a given rate.

Owns the sender's namespace for as long as it is needed.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headrace.bench.handoff_end import Wiring
from headrace.core.errors import StartupError
from headrace.testbed.namespaces import namespaces, obstacle

_SENDER = "sender"


@dataclass(frozen=True, slots=True)
class Between:
    """prefix: words before the sender's command. receiver, sender: where each is reached."""

    prefix: tuple[str, ...] = ()
    receiver: str = "127.0.0.1"
    sender: str = "127.0.0.1"

    def joined(self, wiring: Wiring) -> Wiring:
        """The same way, between these addresses."""
        return replace(wiring, receiver=self.receiver, sender=self.sender)


@contextmanager
def between(gbits: float) -> Iterator[Between]:
    """gbits: 10^9 bits a second; 0: this host alone. Raises StartupError where no network can be made."""
    if not gbits:
        yield Between()
        return
    if why := obstacle(("ip", "tc")):
        raise StartupError(f"There can be no network of namespaces: {why}.", remedy="Leave --gbits out.")
    with asyncio.Runner() as runner:
        there = namespaces((_SENDER,), gbits)
        made = runner.run(there.__aenter__())
        try:
            yield Between(made.inside(_SENDER), made.outside, made.hosts[_SENDER])
        finally:
            runner.run(there.__aexit__(None, None, None))
