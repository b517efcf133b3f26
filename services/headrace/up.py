"""`headrace up`: a whole cluster on this machine, from an empty one to `ready` and back.

Owns the order of things: preflight, model, Redis, processes, ready, drain. What each process does is its own affair.
The processes load for longer than all this takes: what is not needed to start them is imported after that.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil

from headrace import config as configuration
from headrace.bootstrap.launcher import command_line, open_launcher, worker_spec
from headrace.bootstrap.logs_directory import put_away
from headrace.config import EngineConfig, FrontendConfig, ProcessConfig, UpConfig, WorkerConfig
from headrace.core.errors import StartupError, Unavailable
from headrace.core.layout import DEFAULT_KV_BYTES
from headrace.engine.weights.size import weight_bytes
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.resolve import resolve
from headrace.placement.preflight import require_free_port, require_memory
from headrace.placement.processes import Bundle, ProcessSpec
from headrace.placement.stop import Stop
from headrace.placement.supervisor import Supervisor
from headrace.store.address import without_secrets
from headrace.store.server import EmbeddedRedis
from headrace.telemetry import logs

_READY_WITHIN_S = 120.0
# What a process may take, once its requests are done or cut off, to tell their callers and to close.
_AFTER_DRAIN_S = 7.0
_FRONTEND = "frontend"
_REDIS = "redis"
_INTERRUPTED = 130


async def run(config: UpConfig) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Returns the exit code: 130 if it was stopped before it was ready.

    Raises StartupError if the cluster cannot come up; nothing is left then but, where a process ran, the logs."""
    logs.setup("up", level=_quiet(config.log_level), as_json=config.log_json)
    stop = await Stop.arm(lifeline=config.lifeline)
    files = await asyncio.to_thread(_preflight, config)
    directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    _say("logs", f"{directory}")
    stop.last_act = partial(_end, directory, keep=True)
    supervisor: Supervisor | None = None
    own_redis: EmbeddedRedis | None = None
    ended_well = was_ready = False
    try:
        async with _redis(config.redis_url.get_secret_value(), directory) as (redis_url, own_redis):
            _say(_REDIS, without_secrets(redis_url))
            board = _Board(config, without_secrets(redis_url), directory)
            async with open_launcher(config.placement, config.ray_address) as launcher:
                supervisor = Supervisor(board.on_ready, launcher, grace_s=config.drain_s + _AFTER_DRAIN_S)
                try:
                    specs = process_specs(config, redis_url, directory)
                    if await stop.unless_asked(_start(supervisor, board, specs)):
                        was_ready = True
                        _say("ready", f"{board.url}/v1  ({_summary(config, files)})")
                        await stop.wait()
                        _say("drain", f"answers have {config.drain_s:g} s to finish; Ctrl-C again stops at once")
                finally:
                    await supervisor.stop()
        ended_well = True
    finally:
        deaths = sum(kept.deaths for kept in (supervisor, own_redis) if kept is not None)
        _end(directory, keep=not ended_well or deaths > 0)
    return 0 if was_ready else _INTERRUPTED


def _end(logs_directory: Path, *, keep: bool) -> None:
    stays = put_away(logs_directory, keep=keep)
    _say("ended", f"the logs stay in {logs_directory}" if stays else "nothing is left")


def _quiet(level: str) -> str:
    """What is told in plain sentences need not be logged as well: only what went wrong is, unless more is wanted."""
    return "warning" if level == "info" else level


def process_specs(config: UpConfig, redis_url: str, directory: Path) -> list[ProcessSpec]:
    """One spec a process: the workers in role order, then the frontend, which is stopped first."""
    roles = config.roles()
    total = sum(roles.values())
    threads = config.threads or max(1, (os.cpu_count() or 1) // max(1, total))
    shared = {"redis_url": redis_url, "lifeline": True}
    specs = []
    for role, count in roles.items():
        for index in range(count):
            name = f"{role}-{index}"
            own = {"role": role, "name": name, "threads": threads, "host": configuration.LOOPBACK, "port": 0}
            worker = configuration.derive(WorkerConfig, config, **shared, **own, **_memory_share(config, total))
            # Child processes share the cores, however many they are.
            gpus = 1 if config.device == "cuda" else 0
            bundle = Bundle(threads, gpus) if config.placement == "ray" else Bundle(cpus=0)
            specs.append(worker_spec(worker, threads, directory, config.placement, bundle))
    frontend = configuration.derive(FrontendConfig, config, **shared)
    return [*specs, _frontend_spec(frontend, directory)]


def _memory_share(config: UpConfig, workers: int) -> dict[str, float]:
    """Workers measure the same free memory at the same time, so each gets its part of the share."""
    share = config.gpu_memory_utilization
    return {} if share is None else {"gpu_memory_utilization": share / workers}


@asynccontextmanager
async def _redis(url: str, directory: Path) -> AsyncIterator[tuple[str, EmbeddedRedis | None]]:
    """The address of a Redis: the one given, or one of our own for as long as the block runs, and that one.

    directory: of the logs."""
    if url:
        await _require_redis(url)
        yield url, None
        return
    own = directory / _REDIS
    own.mkdir()
    async with EmbeddedRedis(own) as server:
        yield server.url, server


async def _require_redis(url: str) -> None:
    from headrace.store.connection import Store  # noqa: PLC0415 - slow to import, and seldom needed

    store = Store(url)
    try:
        await store.ping()
    except Unavailable as error:
        raise StartupError(error.message, remedy="Start it, correct --redis-url, or leave the flag out.") from None
    finally:
        await store.close()


def _frontend_spec(config: FrontendConfig, directory: Path) -> ProcessSpec:
    environment = configuration.child_environment(config, threads=1)
    return ProcessSpec(_FRONTEND, command_line("frontend", config), environment, directory / f"{_FRONTEND}.log")


def _preflight(config: UpConfig) -> ModelFiles:
    if sum(config.roles().values()) == 0:
        raise StartupError("There is no worker to start.", remedy="Give --local 1, or --prefill 1 --decode 1.")
    if not config.roles()["decode"] and not config.roles()["local"]:
        raise StartupError("Nothing would decode: there are prefill workers only.", remedy="Give --decode 1.")
    require_free_port(config.host, config.port, "--port")
    require_free_port(config.grpc_host, config.grpc_port, "--grpc-port")
    files = resolve(config.model, config.cache_dir.expanduser(), lambda line: _say("model", line))
    _say("model", f"{files.name}, digest {files.digest.hex()[:12]}")
    if _told(config):
        from headrace.bootstrap.feasible import require_feasible  # noqa: PLC0415 - slow to import, and seldom needed

        require_feasible(config, files)
    if config.engine == "torch" and config.device == "cpu":
        require_memory(
            sum(config.roles().values()),
            _weight_bytes(files, config),
            _kv_bytes(config),
            psutil.virtual_memory().available,
        )
    return files


def _told(config: UpConfig) -> bool:
    """Whether something about the engine is not as it is by default, which is known to be possible."""
    fields = {name for name in EngineConfig.model_fields if name not in ProcessConfig.model_fields}
    return any(getattr(config, name) != UpConfig.model_fields[name].default for name in fields)


def _weight_bytes(files: ModelFiles, config: UpConfig) -> int:
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    return weight_bytes(files, dtype, quantization=config.quantization)


def _kv_bytes(config: UpConfig) -> int:
    """What each worker's pages need for certain: a share of the memory takes what there is."""
    if config.gpu_memory_utilization is not None:
        return 0
    return DEFAULT_KV_BYTES if config.kv_cache_memory_bytes is None else config.kv_cache_memory_bytes


async def _start(supervisor: Supervisor, board: "_Board", specs: list[ProcessSpec]) -> None:
    _, until_ready = await asyncio.gather(supervisor.start(specs), asyncio.to_thread(_readiness))
    obstacle = await until_ready(lambda: board.url, _READY_WITHIN_S)
    if obstacle:
        raise StartupError(
            f"All processes run but the cluster is not ready after {_READY_WITHIN_S:.0f} s: {obstacle}",
            remedy=f"Read the logs in {specs[0].log.parent}.",
        )


def _readiness() -> Callable[[Callable[[], str], float], Awaitable[str]]:
    from headrace.bootstrap.readiness import until_ready  # noqa: PLC0415 - slow to import: meanwhile processes load

    return until_ready


def _summary(config: UpConfig, files: ModelFiles) -> str:
    counts = [f"{count} {role}" for role, count in config.roles().items() if count]
    return f"model {config.served_model_name or files.name}, {', '.join(counts)}"


def _say(what: str, sentence: str) -> None:
    # In one piece: where Python does not buffer, print would write a line's end by itself.
    sys.stdout.write(f"{what:<5}  {sentence}\n")
    sys.stdout.flush()


class _Board:
    """What runs where, kept in the state file for whoever wants to look."""

    def __init__(self, config: UpConfig, redis_url: str, directory: Path) -> None:
        self._file = config.state_file
        self._state: dict[str, dict[str, str]] = {_REDIS: {"url": redis_url}, "logs": {"path": str(directory)}}
        self.url = ""

    def on_ready(self, spec: ProcessSpec, pid: int, said: dict[str, str]) -> None:
        self._state[spec.name] = {"pid": str(pid), **said}
        if spec.name == _FRONTEND:
            self.url = said["url"]
        _say("start", f"{spec.name} serves, pid {pid}")
        if self._file is not None:
            self._write(self._file)

    def _write(self, file: Path) -> None:
        draft = file.with_suffix(".tmp")
        try:
            draft.write_text(json.dumps(self._state, indent=2))
            draft.replace(file)
        except OSError as error:
            sentence = f"The state file {file} cannot be written: {error.strerror or error}."
            raise StartupError(sentence, remedy="Choose another with --state-file.") from None
