"""The address of a Redis or another server, for people. It needs no client library."""

import re

_HIDDEN = "***"


def without_secrets(url: str) -> str:
    """The address of a server as it may be shown and logged. Of one that is not well formed, where a part of the
    password may look like a host, path or query, less is shown rather than more."""
    scheme, separator, rest = url.partition("://")
    shown, *behind = re.split("[?#]", rest)
    if not separator or any("@" in part for part in behind):
        return f"{scheme}://{_HIDDEN}" if separator else _HIDDEN
    # A path that begins at once, as a socket's does, has no name and password before it.
    return f"{scheme}://{shown if shown.startswith('/') else shown.rpartition('@')[2]}"
