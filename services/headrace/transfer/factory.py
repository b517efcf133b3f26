"""The table of links: which name makes which, and what each needs. The one place where a link is picked."""

from headrace.core.errors import StartupError
from headrace.transfer.data_address import ANY_PORT, own_address
from headrace.transfer.link import Link, LinkFactory
from headrace.transfer.loopback import LoopbackLink, Switchboard
from headrace.transfer.tcp import TcpLink

LINK_NAMES = ("ucx", "tcp", "nccl", "loopback")


def make_link(
    name: str,
    host: str = "127.0.0.1",
    *,
    tls: str = "tcp,self",
    ports: range = ANY_PORT,
    switchboard: Switchboard | None = None,
) -> LinkFactory:
    """A factory to be called on the transfer thread.

    host: the address of this host at which peers reach this worker; links listen there only, and announce it as an IP
    address. tls: UCX transports (`tcp,posix,self` adds shared memory). ports: where tcp and ucx may listen.
    switchboard: for `loopback`, shared by the workers of the process. Raises StartupError.
    """
    if name == "ucx":
        return LinkFactory(name, lambda: _open_ucx(own_address(host), tls, ports))
    if name == "tcp":
        return LinkFactory(name, lambda: TcpLink(own_address(host), ports))
    if name == "nccl" and ports:
        raise StartupError(
            "The nccl link listens on any free ports.",
            remedy="Leave out --data-port-range, or choose --link ucx or tcp.",
        )
    if name == "nccl":
        return LinkFactory(name, lambda: _open_nccl(own_address(host)))
    if name == "loopback" and switchboard is not None:
        return LinkFactory(name, lambda: LoopbackLink(switchboard))
    if name == "loopback":
        raise StartupError("The loopback link joins workers of one process only.", remedy="Choose ucx, tcp or nccl.")
    raise StartupError(f"There is no transfer link {name!r}.", remedy=f"Choose one of {', '.join(LINK_NAMES)}.")


def _open_ucx(host: str, tls: str, ports: range) -> Link:
    # UCX is large and not on every platform: it is loaded by those who chose it.
    try:
        from headrace.transfer.ucx import UcxLink  # noqa: PLC0415
    except ImportError as error:
        raise StartupError(
            f"The ucx link needs the UCX bindings, and they do not load here ({error}).",
            remedy="Install them with `pip install 'headrace[worker]'`, or choose --link tcp.",
        ) from error
    return UcxLink(host, tls, ports)


def _open_nccl(host: str) -> Link:
    # torch is large: it is loaded by those who chose it.
    try:
        from headrace.transfer.nccl import NcclLink  # noqa: PLC0415
    except ImportError as error:
        raise StartupError(
            f"The nccl link needs torch, and it does not load here ({error}).",
            remedy="Install it with `pip install 'headrace[worker]'`, or choose --link tcp.",
        ) from error
    return NcclLink(host)
