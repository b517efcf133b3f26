"""The processes of the cluster that is struck: who there is, where each listens and how it is started.

Pure. Two frontends are the routers, each with a door of its own; the gateway is a door before both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(Enum):
    REDIS = "redis"
    ROUTER = "router"
    GATEWAY = "gateway"
    PREFILL = "prefill"
    DECODE = "decode"


WORKERS = (Kind.PREFILL, Kind.DECODE)
DOORS = (Kind.GATEWAY, Kind.ROUTER)
MODEL = "chaos"


@dataclass(frozen=True, slots=True)
class Member:
    """One process. port: of gRPC, or Redis's own, or of a gateway's metrics. page: of HTTP for a door, of metrics for a
    worker; 0: it has none."""

    name: str
    kind: Kind
    host: str
    port: int
    page: int = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.page}"

    @property
    def metrics_url(self) -> str:
        """Where a process other than Redis shows its own metrics; a router adds those of its workers, by labels."""
        return f"http://{self.host}:{self.port if self.kind is Kind.GATEWAY else self.page}/metrics"


NAMES: Mapping[str, Kind] = {
    "redis": Kind.REDIS,
    "router-0": Kind.ROUTER,
    "router-1": Kind.ROUTER,
    "gateway": Kind.GATEWAY,
    "prefill-0": Kind.PREFILL,
    "prefill-1": Kind.PREFILL,
    "decode-0": Kind.DECODE,
    "decode-1": Kind.DECODE,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the whole cluster is told. python: the interpreter. socket: where workers let themselves be aimed at.

    timeout_s: that of a request. routers_of_gateway: how many of the routers the gateway is given.
    """

    python: str
    environment: Mapping[str, str]
    model: Path
    cache: Path
    link: str
    socket: Path
    timeout_s: float = 20.0
    routers_of_gateway: int = 2


def members(hosts: Mapping[str, str], ports: Sequence[int]) -> tuple[Member, ...]:
    """hosts: address by name. ports: two for each, all different if the hosts are not."""
    pairs = zip(ports[::2], ports[1::2], strict=True)
    return tuple(
        Member(name, kind, hosts[name], port, 0 if kind is Kind.REDIS else page)
        for (name, kind), (port, page) in zip(NAMES.items(), pairs, strict=True)
    )


def of_kind(all_members: Sequence[Member], *kinds: Kind) -> tuple[Member, ...]:
    return tuple(member for member in all_members if member.kind in kinds)


def words(member: Member, everyone: Sequence[Member], settings: Settings) -> tuple[str, ...]:
    """The command line of every member but Redis."""
    start = (settings.python, "-m", "headrace.cli")
    if member.kind is Kind.GATEWAY:
        return (*start, "gateway", *_gateway(member, everyone, settings))
    (redis,) = of_kind(everyone, Kind.REDIS)
    shared = (
        str(settings.model),
        f"--served-model-name={MODEL}",
        f"--redis-url=redis://{redis.address}",
        f"--cache-dir={settings.cache}",
        "--lifeline",
    )
    if member.kind is Kind.ROUTER:
        return (*start, "frontend", *shared, *_router(member, settings))
    return (*start, "worker", *shared, *_worker(member, settings))


def _gateway(member: Member, everyone: Sequence[Member], settings: Settings) -> tuple[str, ...]:
    routers = of_kind(everyone, Kind.ROUTER)[: settings.routers_of_gateway]
    return (
        f"--router={','.join(router.address for router in routers)}",
        f"--host={member.host}",
        f"--port={member.page}",
        f"--metrics-port={member.port}",
        f"--request-timeout-s={settings.timeout_s:g}",
        "--lifeline",
    )


def _router(member: Member, settings: Settings) -> tuple[str, ...]:
    return (
        f"--host={member.host}",
        f"--port={member.page}",
        f"--grpc-host={member.host}",
        f"--grpc-port={member.port}",
        f"--request-timeout-s={settings.timeout_s:g}",
    )


def _worker(member: Member, settings: Settings) -> tuple[str, ...]:
    """Prompts take several steps, and all workers together have enough of everything for the requests of a case."""
    return (
        f"--role={member.kind.value}",
        f"--name={member.name}",
        f"--host={member.host}",
        f"--port={member.port}",
        f"--metrics-port={member.page}",
        f"--link={settings.link}",
        f"--chaos-socket={settings.socket}",
        "--dtype=float32",
        "--batch-invariant",
        "--threads=1",
        "--max-num-seqs=32",
        "--max-num-batched-tokens=32",
        f"--kv-cache-memory-bytes={32 * 2**20}",
        "--lease-ttl-s=3",
        "--lease-every-s=0.5",
    )
