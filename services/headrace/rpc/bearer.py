"""Bearer: a key in the metadata of a call, as HTTP has it in its header."""

from collections.abc import Iterable

_KEY = "authorization"
_SCHEME = "Bearer "

Metadata = tuple[tuple[str, str], ...]


def showing(key: str) -> Metadata:
    """The metadata of a call that shows `key`; nothing for an empty one."""
    return ((_KEY, f"{_SCHEME}{key}"),) if key else ()


def shown_key(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The key that a call shows, or nothing."""
    values = (value for name, value in metadata if name == _KEY and isinstance(value, str))
    scheme, _, key = next(values, "").partition(" ")
    return key.strip() if scheme.lower() == _SCHEME.strip().lower() else ""
