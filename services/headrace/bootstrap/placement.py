"""A placement process: the worker pools of a configuration file, kept placed until it is asked to stop."""

from collections.abc import Mapping

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.bootstrap import announce
from headrace.bootstrap.launcher import open_launcher, worker_spec
from headrace.config import NAMES, PlacementConfig, WorkerConfig, derive, read
from headrace.config_file import POOL_ONLY, Document, load
from headrace.core.errors import StartupError
from headrace.placement.processes import MACHINE_ADDRESS, Bundle, ProcessSpec
from headrace.placement.stop import Stop
from headrace.placement.supervisor import Supervisor

log = structlog.get_logger()

# What a worker may take, once its requests are done or cut off, to tell their routers and to close.
_AFTER_DRAIN_S = 7.0
_EVERY_ADDRESS = {"0.0.0.0", "::"}


class PoolSize(BaseModel):
    """What a pool says of its placement. cpus and gpus are those of one worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int = Field(1, ge=0, le=1024)
    cpus: float = Field(1.0, gt=0)
    gpus: float = Field(0.0, ge=0)


async def run(config: PlacementConfig) -> None:
    """Place every pool's workers and keep them running until asked to stop. Raises StartupError."""
    specs = worker_specs(config)
    announce.begin("placement", config)
    stop = await Stop.arm(lifeline=config.lifeline)
    async with open_launcher(config.placement, config.ray_address, keep_as=config.fleet) as launcher:
        supervisor = Supervisor(_on_ready, launcher, grace_s=config.drain_s + _AFTER_DRAIN_S, ready_s=config.ready_s)
        try:
            if await stop.unless_asked(supervisor.start(specs)):
                announce.ready(workers=len(specs))
                await stop.wait()
        finally:
            await supervisor.stop()


def worker_specs(config: PlacementConfig) -> list[ProcessSpec]:
    """One spec a replica, in the order of the file. Raises StartupError for a file without workers."""
    if config.config is None:
        raise StartupError("A placement needs a configuration file with pools.", remedy="Give --config FILE.")
    document = load(config.config, NAMES)
    if not config.redis_url.get_secret_value():
        raise StartupError("Workers need the fleet's Redis.", remedy="Give --redis-url, or redis_url in the file.")
    specs = [spec for pool in document.pools for spec in _pool(config, document, pool)]
    if not specs:
        raise StartupError(f"{config.config} has no worker to place.", remedy="Add a pool with replicas.")
    return specs


def _pool(config: PlacementConfig, document: Document, pool: str) -> list[ProcessSpec]:
    size = pool_size(document, pool)
    told = read(WorkerConfig, [f"--config={document.path}", f"--pool={pool}"])
    threads = told.threads or max(1, int(size.cpus))
    logs = config.cache_dir / "logs" / config.fleet
    workers = [derive(WorkerConfig, told, **_own(told, f"{pool}-{index}", threads)) for index in range(size.replicas)]
    return [worker_spec(worker, threads, logs, config.placement, Bundle(size.cpus, size.gpus)) for worker in workers]


def _own(told: WorkerConfig, name: str, threads: int) -> Mapping[str, object]:
    """What is a worker's own where several may share a machine: name, any free port, the machine's address."""
    everywhere = told.host in _EVERY_ADDRESS and not told.advertise_host
    address = MACHINE_ADDRESS if everywhere else told.advertise_host
    return {
        "name": name,
        "pool": "",
        "threads": threads,
        "port": 0,
        "metrics_port": 0,
        "advertise_host": address,
        "lifeline": True,
    }


def pool_size(document: Document, pool: str) -> PoolSize:
    """Raises StartupError for a number that is none."""
    try:
        return PoolSize(**{key: value for key, value in document.pools[pool].items() if key in POOL_ONLY})
    except ValidationError as error:
        mistakes = [f"{item['loc'][0]}: {item['msg']}." for item in error.errors()]
        raise StartupError(f"Pool {pool} in {document.path} cannot be placed.", remedy=" ".join(mistakes)) from None


def _on_ready(spec: ProcessSpec, pid: int, said: Mapping[str, str]) -> None:
    log.info("worker.placed", name=spec.name, pid=pid, incarnation=said["incarnation"], address=said["address"])
