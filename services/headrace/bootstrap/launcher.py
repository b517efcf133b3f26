"""Which launcher places workers, and what it is told of one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace import config as configuration
from headrace.config import ProcessConfig, WorkerConfig
from headrace.core.errors import StartupError
from headrace.placement.launcher import Launcher
from headrace.placement.local import ProcessLauncher
from headrace.placement.processes import Bundle, ProcessSpec


@asynccontextmanager
async def open_launcher(placement: str, ray_address: str, keep_as: str = "") -> AsyncIterator[Launcher]:
    """The launcher of "process" or "ray", for as long as the block runs. Raises StartupError.

    keep_as: the name under which the next launcher finds what this one placed, should this process die.
    """
    launcher = ProcessLauncher() if placement == "process" else _ray(ray_address, keep_as)
    try:
        yield launcher
    finally:
        await launcher.close()


def _ray(address: str, keep_as: str) -> Launcher:
    try:
        from headrace.placement.ray_cluster import RayLauncher  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise StartupError("Ray is not installed here.", remedy="pip install 'headrace[ray]'") from None
    return RayLauncher(address, configuration.inherited_environment, keep_as=keep_as)


def worker_spec(config: WorkerConfig, threads: int, logs: Path, placement: str, bundle: Bundle) -> ProcessSpec:
    """One worker, named as its configuration says. bundle: what each of its ranks needs."""
    argv, log = command_line("worker", config), logs / f"{config.name}.log"
    environment = configuration.own_environment(config, threads)
    if placement == "process":
        environment = configuration.child_environment(config, threads)
    return ProcessSpec(config.name, argv, environment, log, (bundle,))


def command_line(command: str, config: ProcessConfig) -> tuple[str, ...]:
    """What starts a process of ours with this configuration, but its secrets."""
    return (configuration.python(), "-m", "headrace.cli", command, *configuration.arguments(config))
