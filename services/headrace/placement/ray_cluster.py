"""The launcher of a Ray cluster: a placement group a process, and an actor in it that runs the process.

The only importer of Ray. Connects to a cluster or starts one on this machine; what it starts it stops.
"""

import asyncio
import contextlib
import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import ray
import structlog
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headrace.core.errors import StartupError
from headrace.placement.fit import require_fit, said, together
from headrace.placement.preflight import require_reachable
from headrace.placement.processes import Bundle, ProcessSpec
from headrace.placement.ray_actor import Outcome, ProcessActor

log = structlog.get_logger()

Inherit = Callable[[], Mapping[str, str]]
_NAMESPACE = "headrace"
_RESERVE_WITHIN_S = 4.0
_MACHINE_WITHIN_S = 5.0
_ACTOR_WITHIN_S = 60.0
_STOP_SLACK_S = 5.0
_ASK_FOR_LESS = "Ask for less, or give Ray more machines."
_TOKEN = "If it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
# We keep no objects in Ray; its default is a third of the memory.
_OBJECTS_BYTES = 100 * 2**20
_LOST = -signal.SIGKILL
_TRIES = 3
# What Ray's client server says when the process that was to serve a client did not begin.
_NOT_FORKED = "Starting Ray client server failed"


class RayLauncher:
    """Implements Launcher. One a process: Ray keeps its connection in globals.

    With a name to be kept as, groups and actors outlive this process if it dies, and the next launcher of that name
    takes over those that it reserves again and ends the others.
    """

    def __init__(self, address: str, inherit: Inherit, *, keep_as: str = "", grace_s: float = 10.0) -> None:
        """address: host:port on a machine of the cluster, ray://host:port from elsewhere; empty: start a Ray here.

        inherit: runs where a process is placed; the part of that machine's environment that the process gets under its
        own variables. grace_s: for processes that are found running and not wanted.
        """
        self._address = address
        self._inherit = inherit
        self._keep_as = keep_as
        self._grace_s = grace_s
        # On Linux the processes of a Ray that we start end with the thread that started them: it has to last.
        self._thread = ThreadPoolExecutor(1, "ray")
        # Sockets of a Ray that we start lie there, and their paths may not be long.
        self._files = "" if address else tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._joined = False
        self._groups: dict[str, PlacementGroup] = {}
        self._actors: dict[str, Any] = {}

    async def reserve(self, specs: Sequence[ProcessSpec]) -> None:
        """As Launcher.reserve. The first one joins or starts Ray, which may itself take seconds."""
        if not self._address:
            # Ray takes longer to start than anybody who asks for too much wants to wait.
            cores = [replace(spec, bundles=tuple(Bundle(need.cpus) for need in spec.bundles)) for spec in specs]
            require_fit(cores, [Bundle(psutil.cpu_count() or 1)], _ASK_FOR_LESS)
        await self._join()
        require_fit(specs, await asyncio.to_thread(_machines), _ASK_FOR_LESS)
        left = await self._left_over(specs)
        groups = {spec.name: await asyncio.to_thread(_group, spec, self._kept(spec.name)) for spec in specs}
        try:
            await _placed(specs, groups)
        except BaseException:
            await _remove(group for name, group in groups.items() if self._kept(name) not in left)
            raise
        self._groups |= groups

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
            reason = _reason(error) or f"it has no actor after {_ACTOR_WITHIN_S:g} s"
            raise StartupError(f"Ray did not start {spec.name}: {reason}.") from None

    async def close(self) -> None:
        if self._joined:
            self._joined = False
            for name in list(self._actors):
                self._drop(name)
            await _remove(self._groups.values())
            await asyncio.get_running_loop().run_in_executor(self._thread, ray.shutdown)
        if self._files:
            shutil.rmtree(self._files, ignore_errors=True)

    async def _join(self) -> None:
        if self._joined:
            return
        if self._address:
            # Ray itself would try for a minute and print what it tries.
            await require_reachable(self._address.removeprefix("ray://"), "Ray", "--ray-address")
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, _connect, self._address, self._files)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            place = f"at {self._address}" if self._address else "on this machine"
            sentence = f"Ray {place} cannot be used: {_reason(error)}."
            raise StartupError(sentence, remedy=_TOKEN if self._address else "") from None
        self._joined = True
        # Ray's own handler prints a stack; setting ours again takes it off.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    async def _begin(self, spec: ProcessSpec, address: str) -> "RayLife":
        """A life in the actor that is there, which spares Ray's start of another one, or in a new one."""
        actor = self._actors.get(spec.name) or self._actor(spec)
        self._actors[spec.name] = actor
        pid = await _answer(actor.start.remote(spec, address, self._grace_s))
        return RayLife(spec, actor, pid)

    def _actor(self, spec: ProcessSpec) -> Any:
        """An actor inside the first bundle: outside it would wait for ever for what the group holds."""
        need = spec.bundles[0]
        place = PlacementGroupSchedulingStrategy(self._groups[spec.name], placement_group_bundle_index=0)
        options: dict[str, Any] = {"num_cpus": need.cpus, "num_gpus": need.gpus, "scheduling_strategy": place}
        if kept := self._kept(spec.name):
            options |= {"name": kept, "lifetime": "detached", "get_if_exists": True}
        return ray.remote(ProcessActor).options(**options).remote(self._inherit)

    def _drop(self, name: str) -> None:
        with contextlib.suppress(RayError, KeyError):
            ray.kill(self._actors.pop(name))

    async def _left_over(self, specs: Sequence[ProcessSpec]) -> set[str]:
        """The groups of an earlier launcher of our name that go on. Those that this plan does not have, or has with
        other needs, are ended."""
        if not self._keep_as:
            return set()
        wanted = {self._kept(spec.name): _bundles(spec) for spec in specs}
        left = await asyncio.to_thread(_left, self._kept(""))
        unwanted = {name for name, bundles in left.items() if wanted.get(name) != bundles}
        for name in unwanted:
            log.info("placement.unwanted", name=name)
            await _clear(name, self._grace_s)
        return left.keys() - unwanted

    def _kept(self, name: str) -> str:
        """The name in Ray of what outlives us; "" where nothing does."""
        return f"{self._keep_as}/{name}" if self._keep_as else ""


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


def _connect(address: str, files: str) -> None:
    """Ray's client server forks a process for each client while gRPC's threads run, and now and then that process dies
    or hangs in gRPC's fork handlers before it begins (its head can forbid them: GRPC_ENABLE_FORK_SUPPORT=0). The server
    then says so after half a minute, and the next try is another process."""
    for left in reversed(range(_TRIES)):
        try:
            _init(address, files)
            return
        except (OSError, RuntimeError) as error:
            if not left or _NOT_FORKED not in str(error):
                raise
            log.warning("placement.ray_again", reason=_reason(error))
            ray.shutdown()


def _init(address: str, files: str) -> None:
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    here = {"include_dashboard": False, "object_store_memory": _OBJECTS_BYTES, "_temp_dir": files}
    options: dict[str, Any] = quiet if address else quiet | here | {"num_cpus": psutil.cpu_count() or 1}
    # A call after Ray was lost would start another Ray.
    ray._private.auto_init_hook.enable_auto_connect = False
    # What Ray hears of dead actors it prints on standard output whatever it was told. We say it ourselves.
    ray._private.worker._worker_logs_enabled = False
    ray.init(address or "local", namespace=_NAMESPACE, **options)


async def _placed(specs: Sequence[ProcessSpec], groups: Mapping[str, PlacementGroup]) -> None:
    """Wait until all groups have their machines. Raises StartupError if that takes too long."""
    deadline = asyncio.get_running_loop().time() + _RESERVE_WITHIN_S
    for spec in specs:
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        if not await asyncio.to_thread(groups[spec.name].wait, left):
            raise StartupError(await asyncio.to_thread(_taken, spec), remedy="Free some, or ask for less.")


async def _remove(groups: Iterable[PlacementGroup]) -> None:
    for group in groups:
        await asyncio.to_thread(remove_placement_group, group)


def _machines() -> list[Bundle]:
    """What each machine of the cluster has, taken or not."""
    return [_bundle(node["Resources"]) for node in _nodes() if node["Alive"]]


def _nodes() -> list[dict[str, Any]]:
    return list(ray.nodes())  # type: ignore[no-untyped-call]


def _bundle(resources: Mapping[str, float]) -> Bundle:
    return Bundle(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def _bundles(spec: ProcessSpec) -> list[dict[str, float]]:
    """As Ray writes them: what is not needed is left out."""
    return [{"CPU": need.cpus} | ({"GPU": need.gpus} if need.gpus else {}) for need in spec.bundles]


def _group(spec: ProcessSpec, kept: str) -> PlacementGroup:
    """The group of this name, or a new one. It may be placed later or never."""
    group: PlacementGroup
    if kept and kept in _left(kept):
        group = ray.util.get_placement_group(kept)
    else:
        options = {"name": kept, "lifetime": "detached"} if kept else {}
        group = placement_group(_bundles(spec), strategy="STRICT_PACK", **options)
    return group


def _left(prefix: str) -> dict[str, list[dict[str, float]]]:
    """The bundles of all groups whose name begins so."""
    table = [each for each in placement_group_table().values() if each["state"] != "REMOVED"]
    return {each["name"]: list(each["bundles"].values()) for each in table if each["name"].startswith(prefix)}


async def _clear(name: str, grace_s: float) -> None:
    with contextlib.suppress(ValueError, RayError, TimeoutError):
        actor = ray.get_actor(name)
        async with asyncio.timeout(grace_s + _STOP_SLACK_S):
            await _answer(actor.clear.remote(grace_s))
        ray.kill(actor)
    with contextlib.suppress(ValueError):
        await asyncio.to_thread(remove_placement_group, ray.util.get_placement_group(name))


def _taken(spec: ProcessSpec) -> str:
    need = together(spec.bundles)
    free = _bundle(ray.available_resources())  # type: ignore[no-untyped-call]
    return f"{spec.name} needs {said(need)} on one machine of Ray's, and {said(free, need)} are free in all."


def _address(group: PlacementGroup) -> str:
    """Where the group's machine is reached. A group that lost its machine is given another first."""
    if not group.wait(_MACHINE_WITHIN_S):
        raise TimeoutError("there is no machine for it now")
    placed = placement_group_table(group)["bundles_to_node_id"]
    found = {node["NodeID"]: node["NodeManagerAddress"] for node in _nodes()}
    return str(found[next(iter(placed.values()))])


def _reason(error: BaseException) -> str:
    """The last line: before it Ray tells how it came to that."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""


async def _answer(ref: Any) -> Any:
    """An actor's answer. Who gives up waiting disturbs nothing: Ray completes the future all the same."""
    future = asyncio.wrap_future(ref.future())
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(future)
