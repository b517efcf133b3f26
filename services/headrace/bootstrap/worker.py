"""A worker process: engine, carrier, gRPC service, lease and index entry, put together and taken apart in order."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from headrace.bootstrap import announce
from headrace.bootstrap.engine_options import engine_options
from headrace.config import WorkerConfig
from headrace.core.address import joined
from headrace.core.errors import StartupError
from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.pages import PagePort
from headrace.engine.build import build_engine
from headrace.engine.engine import Engine
from headrace.engine.fake import build_fake_engine
from headrace.modelfiles.resolve import resolve
from headrace.placement.stop import Stop
from headrace.prefix.publisher import Publisher
from headrace.prefix.redis_index import RedisIndex
from headrace.roster.lease import Lease
from headrace.roster.redis_roster import RedisRoster
from headrace.rpc.server import Server, serve
from headrace.store.address import without_secrets
from headrace.store.connection import Store
from headrace.telemetry.exposition import expose
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import TransferReport
from headrace.transfer.data_address import port_range
from headrace.transfer.factory import make_link
from headrace.transfer.link import LinkFactory
from headrace.transfer.site import TransferOptions
from headrace.transfer.thread import TransferThread
from headrace.worker.identity import Identity
from headrace.worker.service import Worker

if TYPE_CHECKING:
    from headrace.engine.tensor_parallel.ranks import Ranks

log = structlog.get_logger()

_SERVER_GRACE_S = 1.0
_JOIN_S = 3.0
_LEAST_SLABS = 64
_MOST_SLABS = 256
_CRIPPLED = 1


async def run(config: WorkerConfig, link: LinkFactory | None = None) -> int:
    """Serve until asked to stop (exit code 0) or until it is of no more use (1). Raises StartupError.

    link: the one that workers of one process share; by default what the configuration names.
    """
    name = config.name or f"{config.role}-{socket.gethostname()}-{os.getpid()}"
    redis_url = announce.redis_of(config, "A worker")
    ports = port_range(config.data_port_range)
    announce.begin(name, config)
    link = link or make_link(config.link, _reached_at(config), tls=config.ucx_tls, ports=ports)
    stop = await Stop.arm(lifeline=config.lifeline)
    model, engine, ranks = await asyncio.to_thread(_load, config)
    ref = WorkerRef(name, secrets.token_hex(8))
    identity = Identity(ref, Role(config.role), config.served_model_name or model, link.name)
    async with AsyncExitStack() as closing:
        if config.chaos_socket is not None:
            engine, link = await _under_chaos(config.chaos_socket, ref, engine, link, closing=closing)
        kept = []
        if ranks is not None:
            closing.push_async_callback(asyncio.to_thread, ranks.stop)
            kept.append(_keep(closing, "ranks", ranks.watch()))
        store = Store(redis_url)
        closing.push_async_callback(store.close)
        publisher = Publisher(RedisIndex(store, fleet=config.fleet), ref, ttl_s=config.lease_ttl_s)
        worker, info, server = await _serve(config, identity, engine, link, publisher=publisher, closing=closing)
        lease = _lease(config, store, info, publisher)
        kept.append(_keep(closing, "lease", lease.run()))
        kept.append(_keep(closing, "publisher", publisher.run()))
        closing.push_async_callback(retire, worker, server, config.drain_s)
        kept.append(_keep(closing, "readiness", _be_ready(worker, server, lease, info, without_secrets(redis_url))))
        return await until_over(stop, worker.failed, kept, worker.leaving)


def _load(config: WorkerConfig) -> tuple[str, Engine, "Ranks | None"]:
    """The model's name, its engine, and the ranks beside this process."""
    files = resolve(config.model, config.cache_dir.expanduser())
    options = engine_options(config, config.threads)
    if config.engine == "fake":
        pause = partial(time.sleep, config.fake_step_ms / 1000) if config.fake_step_ms else None
        return files.name, build_fake_engine(files, files.vocabulary, options, before_step=pause), None
    if options.tensor_parallel_size > 1:
        from headrace.engine.tensor_parallel.build import build_ranked_engine  # noqa: PLC0415 - torch takes seconds

        return files.name, *build_ranked_engine(files, files.vocabulary, options)
    return files.name, build_engine(files, files.vocabulary, options), None


async def _under_chaos(
    path: Path, ref: WorkerRef, engine: Engine, link: LinkFactory, *, closing: AsyncExitStack
) -> tuple[Engine, LinkFactory]:
    """Both, so that the harness that listens at `path` can hold the one and damage the other."""
    from headrace.chaos import inject  # noqa: PLC0415 - a worker under no harness knows nothing of it

    agent = await asyncio.to_thread(inject.dial, path, ref)
    closing.push_async_callback(asyncio.to_thread, agent.close)
    return inject.held(engine, agent), inject.faulty(link, agent)


async def _serve(
    config: WorkerConfig,
    identity: Identity,
    engine: Engine,
    link: LinkFactory,
    *,
    publisher: Publisher,
    closing: AsyncExitStack,
) -> tuple[Worker, WorkerInfo, Server]:
    """The worker behind its gRPC port, not ready yet. Closing ends the worker first: routers hear its last words."""
    metrics = WorkerMetrics()
    metrics.process.watch(asyncio.get_running_loop())
    closing.callback(expose(config.host, config.metrics_port, metrics.registry))

    def make_carrier(pages: PagePort, report: Callable[[TransferReport], None]) -> TransferThread:
        return TransferThread(
            link, pages, report, metrics.transfer, slabs_for(config.max_num_seqs), on_broken=worker.link_broke
        )

    token = config.worker_token.get_secret_value()
    worker = Worker(
        engine,
        make_carrier,
        identity,
        metrics=metrics,
        publish=publisher.publish,
        token=token,
        stall_s=config.stall_s,
    )
    await worker.start()
    try:
        server = await serve(joined(config.host, config.port), worker=worker)
    except BaseException:
        await worker.stop(0.0)
        raise
    closing.push_async_callback(server.stop, _SERVER_GRACE_S)
    closing.push_async_callback(worker.stop, config.drain_s)
    return worker, worker.announce(joined(_reached_at(config), server.port)), server


def slabs_for(max_jobs: int) -> TransferOptions:
    """A slab for each transfer that a worker of so many jobs may have under way, within reason: credits end there."""
    slabs = min(max(max_jobs, _LEAST_SLABS), _MOST_SLABS)
    return TransferOptions(send_slabs=slabs, receive_slabs=slabs)


async def _be_ready(worker: Worker, server: Server, lease: Lease, info: WorkerInfo, redis: str) -> None:
    """Say that the worker is ready once routers can know of it, then whenever that changes, until cancelled.

    It waits for a Redis that is away and does not end: what it loaded stays loaded, and a fleet that restarts during
    an outage comes back with Redis and not a restart later (I7).
    """
    try:
        async with asyncio.timeout(_JOIN_S):
            await lease.joined()
    except TimeoutError:
        sentence = f"not ready: waiting for Redis at {redis} to take its lease"
        log.warning("worker.waiting", reason=sentence, remedy="Start that Redis or correct --redis-url.")
        await lease.joined()

    async def tell(ready: bool) -> None:
        await server.set_ready(ready, worker.obstacle)

    await tell(worker.ready)
    ref = info.ref
    log.info("worker.ready", worker=str(ref), role=info.role.value)
    announce.ready(worker=ref.worker, incarnation=ref.incarnation, role=info.role.value, address=info.address)
    await worker.watch(tell)


async def retire(worker: Worker, server: Server, drain_s: float) -> None:
    """What comes before the lease is left and the server stops: whoever asks for readiness sends nothing more, then
    routers hear it, then the jobs end or move. drain_s: what they get unless who asked the worker to leave said."""
    await server.set_ready(False)
    asked_s = worker.leaving.result() if worker.leaving.done() else 0.0
    await worker.retire(asked_s or drain_s)


def _reached_at(config: WorkerConfig) -> str:
    """The address that stands in leases and tickets: no peer can reach "every address"."""
    if config.advertise_host or config.host not in {"0.0.0.0", "::"}:
        return config.advertise_host or config.host
    raise StartupError(
        f"A worker that listens on {config.host} must say where others reach it.",
        remedy="Give --advertise-host, in Kubernetes the pod's IP.",
    )


def _lease(config: WorkerConfig, store: Store, info: WorkerInfo, publisher: Publisher) -> Lease:
    return Lease(
        RedisRoster(store, fleet=config.fleet),
        info,
        renew_also=publisher.renew,
        leave_also=publisher.drop,
        ttl_s=config.lease_ttl_s,
        every_s=config.lease_every_s,
    )


def _keep(closing: AsyncExitStack, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run `work` beside everything else until the stack closes."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.wait({task})

    closing.push_async_callback(end)
    return task


async def until_over(
    stop: Stop,
    failed: asyncio.Future[BaseException],
    kept: Sequence[asyncio.Task[None]],
    leaving: asyncio.Future[float],
) -> int:
    """The exit code once the process was asked to stop (0) or a router asked it to leave (0), its engine `failed`, or
    one of the `kept` tasks ended (1): a worker without its lease or its index entry looks well and is not; its next
    incarnation is."""
    asked = asyncio.create_task(stop.wait())
    either: set[asyncio.Future[Any]] = {asked, failed, leaving, *kept}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    if failed.done():
        log.error("worker.failed", reason=repr(failed.result()))
        return _CRIPPLED
    for task in kept:
        if task.done():
            log.error("worker.crippled", task=task.get_name(), exc_info=task.exception())
            return _CRIPPLED
    return 0
