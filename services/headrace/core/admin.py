"""Admin: who may look into a fleet and change it, by the key that is shown. Knows no transport."""

import hashlib
import hmac
from dataclasses import dataclass, field

from headrace.core.errors import Forbidden, Unauthenticated

_REMEDY = "Send it as `Authorization: Bearer <key>`; commands take --admin-api-key."


@dataclass(frozen=True, slots=True)
class Admin:
    """key: the operators'; empty: there is none. keyed: others are asked for keys of their own, so that without an
    admin key nobody is taken for an operator."""

    key: str = field(default="", repr=False)
    keyed: bool = False

    def require_to_look(self, shown: str) -> None:
        """Raises Unauthenticated or Forbidden for who may not ask of the fleet. shown: the key, or nothing."""
        if self.key:
            self._require(shown)

    def require_to_change(self, shown: str) -> None:
        """The same for who may not change the fleet."""
        if not self.key and self.keyed:
            raise Forbidden(
                "This needs an admin key, and none is set here.", remedy="Start the service with --admin-api-key."
            )
        self.require_to_look(shown)

    def _require(self, shown: str) -> None:
        if not shown:
            raise Unauthenticated("This needs the admin key, and no key was sent.", remedy=_REMEDY)
        if not same(shown, self.key):
            raise Forbidden("This needs the admin key, and the key that was sent is another.", remedy=_REMEDY)


def same(shown: str, known: str) -> bool:
    """Whether two keys are equal. Digests are compared, so that time tells neither how far they are nor how long."""
    return hmac.compare_digest(digest(shown), digest(known))


def digest(key: str) -> bytes:
    """Of one length for all keys."""
    return hashlib.sha256(key.encode()).digest()
