"""GatewayOptions: everything a gateway can be told. Values come from `config`; nothing here reads them."""

from dataclasses import dataclass, field

from headrace.core.admin import Admin
from headrace.core.generation import DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """api_keys: who may ask; empty lets everybody. admin_api_key: of who may ask of the fleet and change it; it is good
    for all else too. Empty: whoever may ask may ask of the fleet, and change it only where there are no keys at all.

    max_body_bytes: larger bodies are refused with 413.
    max_generations: answers being written at once (each choice counts); more are refused with 429.
    max_choices: answers one request may ask for (prompts x n). request_timeout_s: one answer's time.
    keepalive_s: silence after which a stream carries a comment, so that proxies keep the connection.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_api_key: str = field(default="", repr=False)
    max_body_bytes: int = 16 * 1024 * 1024
    max_generations: int = 1024
    max_choices: int = 64
    request_timeout_s: float = DEFAULT_TIMEOUT_S
    keepalive_s: float = 10.0

    @property
    def admin(self) -> Admin:
        return Admin(self.admin_api_key, keyed=bool(self.api_keys))

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every key that lets somebody ask; none where everybody may."""
        return (*self.api_keys, self.admin_api_key) if self.api_keys and self.admin_api_key else self.api_keys
