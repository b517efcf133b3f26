"""Who may ask: API keys, and the tenant salt that keeps one key's prefix cache from another's (decision 9)."""

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.core.admin import same
from headrace.core.errors import Unauthenticated
from headrace.gateway.context import PROBES, context_of
from headrace.gateway.errors import error_response

_SALT_LABEL = b"headrace tenant salt"


def tenant_salt(key: str) -> str:
    """A name for the key's holder from which the key cannot be found."""
    return hmac.new(_SALT_LABEL, key.encode(), hashlib.sha256).hexdigest()[:32]


class AuthMiddleware:
    """Lets only holders of one of `keys` past, except to probes. Without keys everybody passes, unsalted."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        key = bearer(scope)
        if key is None or not self._known(key):
            await error_response(_refusal(key))(scope, receive, send)
            return
        context_of(scope).tenant_salt = tenant_salt(key)
        await self._app(scope, receive, send)

    def _known(self, key: str) -> bool:
        """Compares with every key, so that time does not tell which."""
        matches = [same(key, known) for known in self._keys]
        return any(matches)


def bearer(scope: Scope) -> str | None:
    """The key that a request shows."""
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _refusal(key: str | None) -> Unauthenticated:
    remedy = "Send it as `Authorization: Bearer <key>`."
    return Unauthenticated("No API key was sent." if key is None else "The API key is not known here.", remedy=remedy)
