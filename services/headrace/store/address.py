"""The address of a Redis, for people. It needs no client library."""

from urllib.parse import urlsplit


def without_secrets(url: str) -> str:
    """The address of a Redis as it may be shown and logged."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
