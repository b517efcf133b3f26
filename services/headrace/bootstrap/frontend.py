"""The control processes: router, gateway, or both in one (`frontend`), put together and taken apart in order.

Nothing here, nor what it imports, loads torch.
"""

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from functools import partial

from headrace.bootstrap import announce
from headrace.config import FrontendConfig, GatewayConfig, HttpConfig, RouterConfig
from headrace.core.address import joined
from headrace.core.admin import Admin
from headrace.gateway.app import build_app
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayServer
from headrace.modelfiles.resolve import resolve
from headrace.placement.stop import Stop
from headrace.prefix.redis_index import RedisIndex
from headrace.prefix.replica import Replica
from headrace.roster.redis_commons import RedisCommons
from headrace.roster.redis_roster import RedisRoster
from headrace.router.models import ServedModel
from headrace.router.options import RouterOptions
from headrace.router.policy import Disaggregation, Policy
from headrace.router.service import Router
from headrace.rpc.addresses import located, places
from headrace.rpc.clients import WorkerClient
from headrace.rpc.contracts import Fleet, Inference
from headrace.rpc.failover import FailoverInference
from headrace.rpc.fleet_failover import FailoverFleet
from headrace.rpc.routers import Pace, Routers, door_to
from headrace.rpc.server import Server, serve
from headrace.store.connection import Store
from headrace.telemetry.exposition import expose
from headrace.telemetry.metrics import GatewayMetrics, RouterMetrics
from headrace.text.model import TextModel

# The servers stay for as long as requests drain, and then only pass on how the others ended.
_SERVER_S = 1.0


async def run_frontend(config: FrontendConfig) -> None:
    """Gateway and router in one process; the call between them is in-process."""
    redis_url = announce.redis_of(config, "A router")
    announce.begin("frontend", config)
    stop = await Stop.arm(lifeline=config.lifeline)
    async with AsyncExitStack() as closing:
        router = await _router(config, redis_url, closing)
        grpc = await _grpc(config, router, closing)
        url = await _http(config, router, router, closing, grace_s=_SERVER_S)
        _drain_first(router, grpc, config, closing)
        announce.ready(url=url, grpc=_at(config, grpc))
        await stop.wait()


async def run_router(config: RouterConfig) -> None:
    """A router alone: gRPC only."""
    redis_url = announce.redis_of(config, "A router")
    announce.begin("router", config)
    stop = await Stop.arm(lifeline=config.lifeline)
    async with AsyncExitStack() as closing:
        router = await _router(config, redis_url, closing)
        grpc = await _grpc(config, router, closing)
        _drain_first(router, grpc, config, closing)
        announce.ready(grpc=_at(config, grpc))
        await stop.wait()


async def run_gateway(config: GatewayConfig) -> None:
    """A gateway alone, before routers elsewhere."""
    announce.begin("gateway", config)
    stop = await Stop.arm(lifeline=config.lifeline)
    async with AsyncExitStack() as closing:
        metrics = GatewayMetrics()
        metrics.process.watch(asyncio.get_running_loop())
        closing.callback(expose(config.host, config.metrics_port, metrics.registry))
        routers = await _routers(config, closing)
        inference, fleet = FailoverInference(routers), FailoverFleet(routers)
        announce.ready(url=await _http(config, inference, fleet, closing, grace_s=config.drain_s))
        await stop.wait()


async def _routers(config: GatewayConfig, closing: AsyncExitStack) -> Routers:
    wanted = places(config.router)
    pace = Pace(locate_s=0.0) if all(place.fixed for place in wanted) else Pace()
    reach = partial(door_to, admin_key=config.admin_api_key.get_secret_value())
    routers = Routers(lambda: located(wanted), reach, pace)
    closing.push_async_callback(routers.close)
    await routers.start()
    return routers


async def _router(config: RouterConfig, redis_url: str, closing: AsyncExitStack) -> Router:
    model = await asyncio.to_thread(_served_model, config)
    store = Store(redis_url)
    closing.push_async_callback(store.close)
    metrics = RouterMetrics()
    metrics.process.watch(asyncio.get_running_loop())
    metrics.redis_up.set_function(lambda: float(store.healthy))
    closing.callback(expose(config.grpc_host, config.metrics_port, metrics.registry))
    replica = Replica(RedisIndex(store, fleet=config.fleet))
    await replica.start()
    closing.push_async_callback(replica.close)
    router = Router(
        models=[model],
        roster=RedisRoster(store, fleet=config.fleet),
        connect=lambda info: WorkerClient(info.address),
        match=replica.match,
        commons=RedisCommons(store, fleet=config.fleet),
        metrics=metrics,
        options=RouterOptions(
            name=f"router-{secrets.token_hex(4)}",
            worker_token=config.worker_token.get_secret_value(),
            policy=Policy(disaggregation=Disaggregation(config.disaggregation), pull=config.kv_pull == "auto"),
            queue_limit=config.max_queue,
        ),
    )
    await router.start()
    closing.push_async_callback(router.stop, 0.0)
    return router


def _served_model(config: RouterConfig) -> ServedModel:
    files = resolve(config.model, config.cache_dir.expanduser())
    name = config.served_model_name or files.name
    text = TextModel.load(files)
    return ServedModel(name, text, files.config.max_position, int(time.time()), weights=files.digest)


async def _grpc(config: RouterConfig, router: Router, closing: AsyncExitStack) -> Server:
    keyed = isinstance(config, HttpConfig) and bool(config.api_keys)
    admin = Admin(config.admin_api_key.get_secret_value(), keyed=keyed)
    server = await serve(joined(config.grpc_host, config.grpc_port), inference=router, fleet=router, admin=admin)
    closing.push_async_callback(server.stop, _SERVER_S)
    await server.set_ready(True)
    return server


def _at(config: RouterConfig, server: Server) -> str:
    return joined(config.grpc_host, server.port)


def _drain_first(router: Router, server: Server, config: RouterConfig, closing: AsyncExitStack) -> None:
    """What happens before the servers stop, in order: gateways that watch learn of it, then requests get their time."""
    closing.push_async_callback(router.stop, config.drain_s)
    closing.push_async_callback(server.set_ready, False)


async def _http(
    config: HttpConfig, inference: Inference, fleet: Fleet, closing: AsyncExitStack, *, grace_s: float
) -> str:
    keys = tuple(key.get_secret_value() for key in config.api_keys)
    admin = config.admin_api_key.get_secret_value()
    options = GatewayOptions(api_keys=keys, admin_api_key=admin, request_timeout_s=config.request_timeout_s)
    server = GatewayServer(build_app(inference, fleet, options), config.host, config.port)
    await server.start()
    closing.push_async_callback(server.stop, grace_s)
    return f"http://{joined(config.host, server.port)}"
