"""The launcher of a Ray cluster: a placement group a process, and an actor in it that runs the process.

The only importer of Ray. Connects to a cluster or starts one on this machine; what it starts it stops.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import structlog
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headrace.core.errors import StartupError
from headrace.placement.fit import said, shortfall, together
from headrace.placement.processes import Bundle, ProcessSpec
from headrace.placement.ray_actor import Outcome, ProcessActor

log = structlog.get_logger()

_RESERVE_WITHIN_S = 4.0
_REACH_WITHIN_S = 3.0
_ACTOR_WITHIN_S = 60.0
_STOP_SLACK_S = 5.0
_LOST = -signal.SIGKILL


class RayLauncher:
    """Implements Launcher. One a process: Ray keeps its connection in globals."""

    def __init__(self, inherit: Callable[[], Mapping[str, str]]) -> None:
        self._inherit = inherit
        self._groups: dict[str, PlacementGroup] = {}
        self._actors: dict[str, Any] = {}

    @staticmethod
    async def connect(address: str, inherit: Callable[[], Mapping[str, str]]) -> "RayLauncher":
        """Join the cluster at `address` (host:port on one of its machines, ray://host:port from elsewhere), or start
        one on this machine where it is empty. inherit: runs where a process is placed; the part of that machine's
        environment that the process gets under its own variables. Raises StartupError."""
        if address:
            await _require_reachable(address)
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            await asyncio.to_thread(_init, address)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise StartupError(f"Ray {address or 'on this machine'} cannot be used: {reason}.") from None
        # Ray's own handler prints a stack; setting ours again takes it off.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        return RayLauncher(inherit)

    async def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        machines = await asyncio.to_thread(_machines)
        if lacking := shortfall(specs, machines):
            raise StartupError(f"Ray cannot place this: {lacking}", remedy="Ask for less, or add machines to it.")
        groups = {spec.name: await asyncio.to_thread(_group, spec) for spec in specs}
        self._groups |= groups
        deadline = asyncio.get_running_loop().time() + _RESERVE_WITHIN_S
        for spec in specs:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            if not await asyncio.to_thread(groups[spec.name].wait, left):
                await self._release(groups)
                raise StartupError(await asyncio.to_thread(_taken, spec), remedy="Free some, or ask for less.")

    async def launch(self, spec: ProcessSpec) -> "RayLife":
        try:
            async with asyncio.timeout(_ACTOR_WITHIN_S):
                address = await asyncio.to_thread(_address, self._groups[spec.name])
                try:
                    return await self._begin(spec, address)
                except RayActorError:
                    self._drop(spec.name)
                    return await self._begin(spec, address)
        except (RayError, TimeoutError) as error:
            self._drop(spec.name)
            reason = " ".join(str(error).split()) or f"it has no actor after {_ACTOR_WITHIN_S:g} s"
            raise StartupError(f"Ray did not start {spec.name}: {reason}.") from None

    async def close(self) -> None:
        for name in list(self._actors):
            self._drop(name)
        await self._release(self._groups)
        await asyncio.to_thread(ray.shutdown)

    async def _begin(self, spec: ProcessSpec, address: str) -> "RayLife":
        """A life in the actor that is there, which spares Ray's start of another one, or in a new one."""
        actor = self._actors.get(spec.name) or self._actor(spec)
        self._actors[spec.name] = actor
        pid = await _answer(actor.start.remote(spec, address))
        return RayLife(spec, actor, pid)

    def _actor(self, spec: ProcessSpec) -> Any:
        """An actor inside the first bundle: outside it would wait for ever for what the group holds."""
        need = spec.bundles[0]
        place = PlacementGroupSchedulingStrategy(self._groups[spec.name], placement_group_bundle_index=0)
        kind = ray.remote(ProcessActor)
        return kind.options(num_cpus=need.cpus, num_gpus=need.gpus, scheduling_strategy=place).remote(self._inherit)

    def _drop(self, name: str) -> None:
        with contextlib.suppress(RayError, KeyError):
            ray.kill(self._actors.pop(name))

    async def _release(self, groups: Mapping[str, PlacementGroup]) -> None:
        for name, group in list(groups.items()):
            self._groups.pop(name, None)
            await asyncio.to_thread(remove_placement_group, group)


class RayLife:
    """Implements Life over an actor. What a lost actor leaves running ends by its lifeline."""

    def __init__(self, spec: ProcessSpec, actor: Any, pid: int) -> None:
        self.spec = spec
        self.pid = pid
        self._actor = actor
        self._code: int | None = None

    async def ready(self, within_s: float) -> dict[str, str]:
        try:
            outcome: Outcome = await _answer(self._actor.ready.remote(self.pid, within_s))
        except RayError:
            raise StartupError(f"{self.spec.name} did not start: its actor or machine was lost.") from None
        facts, sentence, remedy = outcome
        if sentence:
            raise StartupError(sentence, remedy=remedy)
        return facts

    async def ended(self) -> int:
        if self._code is None:
            try:
                self._code = int(await _answer(self._actor.ended.remote(self.pid)))
            except RayError:
                self._code = _LOST
        return self._code

    async def stop(self, grace_s: float) -> int:
        if self._code is None:
            try:
                async with asyncio.timeout(grace_s + _STOP_SLACK_S):
                    self._code = int(await _answer(self._actor.stop.remote(self.pid, grace_s)))
            except (RayError, TimeoutError):
                with contextlib.suppress(RayError):
                    ray.kill(self._actor)
                self._code = _LOST
        return self._code


def _init(address: str) -> None:
    own = {"include_dashboard": False} if not address else {}
    ray.init(address or "local", log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **own)
    # What Ray hears of dead actors it prints on standard output whatever it was told. We say it ourselves.
    ray._private.worker._worker_logs_enabled = False


async def _require_reachable(address: str) -> None:
    """Ray itself would try for a minute and print what it tries."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        async with asyncio.timeout(_REACH_WITHIN_S):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
    except ValueError:
        raise StartupError(f"{address!r} is no Ray address.", remedy="Write host:port or ray://host:port.") from None
    except (OSError, TimeoutError, socket.gaierror):
        raise StartupError(f"No Ray answers at {address}.", remedy="Start it or correct --ray-address.") from None


def _machines() -> list[Bundle]:
    """What each machine of the cluster has, taken or not."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Bundle(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]


def _group(spec: ProcessSpec) -> PlacementGroup:
    bundles = [{"CPU": bundle.cpus} | ({"GPU": bundle.gpus} if bundle.gpus else {}) for bundle in spec.bundles]
    return placement_group(bundles, strategy="STRICT_PACK")


def _taken(spec: ProcessSpec) -> str:
    free = ray.available_resources()
    there = Bundle(free.get("CPU", 0.0), free.get("GPU", 0.0))
    need = said(together(spec.bundles))
    return f"Ray cannot place {spec.name} now: it needs {need} on one machine, and {said(there)} are free in all."


def _address(group: PlacementGroup) -> str:
    """Where the group's machine is reached. A group that lost its machine gets another first."""
    group.wait(_ACTOR_WITHIN_S)
    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
    found = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return str(found[next(iter(nodes))])


async def _answer(ref: Any) -> Any:
    """An actor's answer. Who gives up waiting disturbs nothing: Ray completes the future all the same."""
    future = asyncio.wrap_future(ref.future())
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(future)
