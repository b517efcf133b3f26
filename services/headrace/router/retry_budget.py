"""How much the fleet may be asked to repeat: each request earns a fraction of a retry, for all its routers.

Keeps this router's side of the account. Nothing is in two hands, and nothing gets lost between them.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RetryBudget:
    """The retries that this router has in hand, so that a sick fleet is not asked for ever more.

    most: kept in hand. per_request: earned by each. left: in hand now, below zero where more was lent than the fleet
    could spare. earned: not yet in anybody's hand. lent: of those in hand, what the fleet does not know of: a router
    that has just begun has a few, which its first share pays back.
    """

    most: float = 20.0
    per_request: float = 0.2
    left: float = 5.0
    earned: float = 0.0
    lent: float = field(init=False)

    def __post_init__(self) -> None:
        self.lent = self.left

    @property
    def wanted(self) -> float:
        """How many it would take from the fleet, those that it was lent among them."""
        return max(0.0, (self.most - self.left + self.lent) // 1.0)

    def earn(self) -> None:
        self.earned += self.per_request

    def spend(self) -> bool:
        """False if there is none left."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def take_earned(self) -> float:
        """What was earned, for the fleet to share."""
        earned, self.earned = self.earned, 0.0
        return earned

    def keep_earned(self) -> None:
        """There is nobody to share it with now."""
        self._hold(self.take_earned())

    def add(self, share: float) -> None:
        """What the fleet gave, of which the loan is paid."""
        lent, self.lent = self.lent, 0.0
        self._hold(share - lent)

    def give_back(self) -> float:
        """All of it, for others: there will be no more requests here. What was spent of a loan is a debt."""
        everything = self.left - self.lent + self.earned
        self.left = self.lent = self.earned = 0.0
        return everything

    def _hold(self, retries: float) -> None:
        """Into this router's hand; what does not fit is for others."""
        kept = min(retries, self.most - self.left)
        self.left += kept
        self.earned += retries - kept
