"""Addresses in writing: `host:port`, an IPv6 address in brackets, as URLs and gRPC have it. Resolves nothing."""


def joined(host: str, port: int) -> str:
    """One address. host: a name or an address, in brackets or not."""
    return f"[{bare(host)}]:{port}" if ":" in host else f"{host}:{port}"


def parted(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError, whose text is the end of a sentence about `address`."""
    host, _, port = address.rpartition(":")
    if ":" in host and bare(host) == host:
        raise ValueError("it has an IPv6 address that is not in brackets, as in [::1]:9000")
    # The resolver would take a larger number for another port, silently.
    if not (bare(host) and port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise ValueError("it is not host:port with a port below 65536")
    return bare(host), int(port)


def bare(host: str) -> str:
    """Without brackets, as sockets take it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
