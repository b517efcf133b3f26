"""A process's own Prometheus page, on a port of its own, for scrapers that read processes singly."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, start_http_server

from headrace.core.address import joined
from headrace.core.errors import StartupError


def expose(host: str, port: int, registry: CollectorRegistry) -> Callable[[], None]:
    """Serve `registry` on `host:port` (0: not at all); returns what ends it. Raises StartupError."""
    if port == 0:
        return lambda: None
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise StartupError(
            f"Cannot serve metrics on {joined(host, port)}: {error.strerror or error}.",
            remedy="Free the port or choose another with --metrics-port.",
        ) from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
