"""What UCX is told: which transports a choice stands for, which of them are refused, and the settings that follow.

Pure decisions on words; it knows no UCX object. The names and groups are those of UCX 1.21.
"""

from dataclasses import dataclass

from headrace.core.errors import StartupError
from headrace.transfer.tcp_patience import CALL_AGAIN, PROBE_AFTER_S, PROBE_EVERY_S, PROBES

_MAPPED = frozenset({"posix", "sysv", "xpmem"})
_SHARED = _MAPPED | {"knem", "cma"}
# UCX's own names for several transports at once, as far as they hold any that matter here.
_GROUPS = {"mm": _MAPPED, "sm": _SHARED, "shm": _SHARED, "all": _SHARED}
_INSIDE_A_HOST = _SHARED | set(_GROUPS) | {"self", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy"}
_ALWAYS = {
    # Forced rendezvous: a send completes only when it was received.
    "RNDV_THRESH": "0",
    # Keeps UCX from writing to standard error about peers that die.
    "LOG_LEVEL": "fatal",
    "WARN_UNUSED_ENV_VARS": "n",
    # Connections that UCX calls for. Those that it accepts have it from their listeners: see UcxLink.
    "KEEPALIVE_INTERVAL": f"{PROBE_AFTER_S}s",
    "TCP_KEEPIDLE": f"{PROBE_AFTER_S}s",
    "TCP_KEEPINTVL": f"{PROBE_EVERY_S}s",
    "TCP_KEEPCNT": str(PROBES),
    "TCP_SYN_CNT": str(CALL_AGAIN),
    "TCP_CM_SYN_CNT": str(CALL_AGAIN),
    # A fixed port can be had again at once after a restart.
    "TCP_CM_REUSEADDR": "y",
}


@dataclass(frozen=True, slots=True)
class Lanes:
    """The transports that UCX may use. tls: as they are handed to it. error_handling: whether endpoints notice the
    death of their peer, which shared memory rules out. tcp_only: whether all that leaves the host goes over TCP."""

    tls: str
    error_handling: bool
    tcp_only: bool


def choose_lanes(tls: str) -> Lanes:
    """tls: UCX_TLS's own language: names and groups with commas between, or all but those after a `^`.

    Raises StartupError if cma is among them, by whatever name: a killed sender would abort its receiver.
    """
    negated = tls.startswith("^")
    named = frozenset(filter(None, map(_plain, tls.removeprefix("^").split(","))))
    members = named.union(*(_GROUPS.get(name, frozenset()) for name in named))
    shared = _SHARED - members if negated or not named else _SHARED & members
    if "cma" in shared:
        raise StartupError(
            f"The transports {tls!r} hold cma, whose lanes abort this process when a peer is killed.",
            remedy="Name the transports without cma, such as tcp,self or tcp,posix,self.",
        )
    return Lanes(tls, not shared, tcp_only=not negated and named - _INSIDE_A_HOST <= {"tcp"})


def ucx_settings(lanes: Lanes, interface: str, ports: range) -> dict[str, str]:
    """UCX's settings, without its prefix. interface: the one that has the worker's address; ports: where TCP lanes may
    listen, empty for anywhere."""
    settings = _ALWAYS | {"TLS": lanes.tls}
    if lanes.tcp_only:
        # Each TCP lane listens on its interface's address. RDMA devices have other names, so these lanes stay free.
        settings["NET_DEVICES"] = interface
        # A host's address may be its bridge's, which UCX passes over unless told.
        settings["TCP_BRIDGE_ENABLE"] = "y"
        if lanes.error_handling:
            # What UCX chooses between hosts. Of the loopback interface it thinks less, and copies piece by piece there:
            # a quarter of the rate, and not what was tested then. Shared memory has no such writes.
            settings["RNDV_SCHEME"] = "put_zcopy"
    if ports:
        settings["TCP_PORT_RANGE"] = f"{ports[0]}-{ports[-1]}"
    return settings


def _plain(name: str) -> str:
    """A transport's name without UCX's marks: `\\name` (no group of that name), `name:aux` (for connecting only)."""
    return name.strip().removeprefix("\\").partition(":")[0]
