"""What the routers of one fleet share: the retries it may still be asked for, and the prompts on which workers died."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Deposit:
    """What a router brings. earned: retries, in fractions; below zero where it spent more than it was given. wanted:
    how many it would take along.

    deaths: fingerprints of prompts on which workers died, each with the seconds for which it is to be refused.
    """

    earned: float = 0.0
    wanted: float = 0.0
    deaths: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """What it takes along. retries: so many of those wanted. refused: all such fingerprints and the seconds left."""

    retries: float
    refused: tuple[tuple[bytes, float], ...]


class Commons(Protocol):
    """Kept where all routers of the fleet reach it."""

    async def exchange(self, router: str, sequence: int, deposit: Deposit) -> Share:
        """Leave a deposit and take a share, atomically. router: its name, no other's, for one life of it.

        sequence: counts its exchanges up; one that comes once more, or late, leaves nothing and is answered as the last
        one was. Raises Unavailable while it cannot be reached: the deposit may then have been left or not.
        """
        ...
