"""How much the fleet may be asked to repeat: each request earns a fraction of a retry, for all its routers."""

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """The retries that this router has in hand, so that a sick fleet is not asked for ever more.

    most: kept in hand. per_request: earned by each. left: in hand now; a router that has just begun has a few.
    earned: not yet in anybody's hand.
    """

    most: float = 20.0
    per_request: float = 0.2
    left: float = 5.0
    earned: float = 0.0

    @property
    def wanted(self) -> float:
        """How many more it would take."""
        return max(0.0, (self.most - self.left) // 1.0)

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
        """There is nobody to share it with."""
        self.add(self.take_earned())

    def add(self, retries: float) -> None:
        """Into this router's hand."""
        self.left = min(self.most, self.left + retries)
