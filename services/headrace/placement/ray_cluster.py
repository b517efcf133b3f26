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
        """Join the cluster at `address` (host:port on one of its machines, ray://host:port from elsewhere), or start one
        on this machine where it is empty. inherit: runs on the machine that a process is placed on; the part of its
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
            raise StartupError(f"Ray cannot place this: {lacking}", remedy="Ask for less, or add machines to the cluster.")
        groups = {spec.name: await asyncio.to_thread(_group, spec) for spec in specs}
        self._groups |= groups
        deadline = asyncio.get_running_loop().time() + _RESERVE_WITHIN_S
        for spec in specs:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            if not await asyncio.to_thread(groups[spec.name].wait, left):
                await self._release(groups)
                raise StartupError(await asyncio.to_thread(_taken, spec), remedy="Free some, or ask for less.")

    async def launch(self, spec: ProcessSpec) -> "RayLife":
        need, group = spec.bundles[0], self._groups[spec.name]
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        kind = ray.remote(ProcessActor).options(
            num_cpus=need.cpus, num_gpus=need.gpus, scheduling_strategy=place, max_restarts=0
        )
        actor = self._actors[spec.name] = kind.remote(self._inherit)
        try:
            async with asyncio.timeout(_ACTOR_WITHIN_S):
                address = await asyncio.to_thread(_address, group)
                return RayLife(spec, actor, await _answer(actor.start.remote(spec, address)))
        except (RayError, TimeoutError) as error:
            _end(actor)
            reason = " ".join(str(error).split()) or f"no actor after {_ACTOR_WITHIN_S:g} s"
            raise StartupError(f"Ray did not start {spec.name}: {reason}.") from None

    async def close(self) -> None:
        for actor in self._actors.values():
            _end(actor)
        await self._release(self._groups)
        await asyncio.to_thread(ray.shutdown)

    async def _release(self, groups: Mapping[str, PlacementGroup]) -> None:
        for name, group in list(groups.items()):
            del self._groups[name]
            await asyncio.to_thread(remove_placement_group, group)


class RayLife:
    """Implements Life over an actor."""

    def __init__(self, spec: ProcessSpec, actor: Any, pid: int) -> None:
        self.spec = spec
        self.pid = pid
        self._actor = actor

    async def ready(self, within_s: float) -> dict[str, str]:
        try:
            outcome: Outcome = await _answer(self._actor.ready.remote(within_s))
        except RayActorError:
            raise StartupError(f"{self.spec.name} did not start: its actor or machine was lost.") from None
        facts, sentence, remedy = outcome
        if sentence:
            raise StartupError(sentence, remedy=remedy)
        return facts

    async def ended(self) -> int:
        try:
            code = int(await _answer(self._actor.ended.remote()))
        except RayActorError:
            code = _LOST
        _end(self._actor)
        return code

    async def stop(self, grace_s: float) -> int:
        try:
            async with asyncio.timeout(grace_s + _STOP_SLACK_S):
                return int(await _answer(self._actor.stop.remote(grace_s)))
        except (RayActorError, TimeoutError):
            return _LOST
        finally:
            _end(self._actor)


def _init(address: str) -> None:
    own = {"include_dashboard": False} if not address else {}
    ray.init(
        address or "local",
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        **own,
    )


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
    return f"Ray cannot place {spec.name} now: it needs {said(together(spec.bundles))} on one machine, {said(there)} are free."


def _address(group: PlacementGroup) -> str:
    """Where the group's machine is reached. A group that lost its machine gets another first."""
    group.wait(_ACTOR_WITHIN_S)
    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
    found = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return str(found[next(iter(nodes))])


async def _answer(ref: Any) -> Any:
    """An actor's answer. Giving up waiting does not disturb Ray, which would still complete the future."""
    return await asyncio.shield(asyncio.wrap_future(ref.future()))


def _end(actor: Any) -> None:
    with contextlib.suppress(RayError):
        ray.kill(actor)
