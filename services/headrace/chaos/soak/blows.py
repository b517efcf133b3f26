"""The blows of a soak: every stroke of its plan in its own time, several at once if it falls so.

Owns who is struck now: nobody meets two strokes at a time. It starts again whoever it ended.
"""

import asyncio
import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx

from headrace.chaos.cluster import STOP_S, Cluster
from headrace.chaos.control import Control
from headrace.chaos.members import DOORS, Kind, Member, of_kind
from headrace.chaos.probes import fleet, not_ready
from headrace.chaos.soak.crowd import Begun
from headrace.chaos.soak.doors import Doors
from headrace.chaos.soak.plan import Deed, Stroke
from headrace.core.errors import HeadraceError

_DIES_S = 5.0
_SERVES_S = 20.0
_GRACE_S = 3.0
_DRAIN_S = 30.0
_DAMAGE_S = 10.0
_POLL_S = 0.05
# As whoever stands before doors does: between sending nobody there any more and asking the door to end, so that all who
# were sent have arrived.
_SENT_S = 1.0


@dataclass(slots=True)
class Blows:
    """client: for questions to processes. complaints: what did not do as it should, in sentences, since last taken."""

    cluster: Cluster
    control: Control
    client: httpx.AsyncClient
    doors: Doors
    _complaints: list[str] = field(default_factory=list)
    _busy: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def fall(self, strokes: Sequence[Stroke], begun: Begun) -> list[str]:
        """All of them, each once so many requests have begun; returns what did not do as it should, in sentences."""
        async with asyncio.TaskGroup() as group:
            for stroke in strokes:
                group.create_task(self._strike(stroke, begun))
        complaints, self._complaints = self._complaints, []
        return complaints

    async def _strike(self, stroke: Stroke, begun: Begun) -> None:
        await begun.until(stroke.at)
        async with AsyncExitStack() as locks:
            # In one order, so that two strokes never wait for each other.
            for name in sorted(filter(None, (stroke.victim, stroke.other))):
                await locks.enter_async_context(self._busy[name])
            try:
                await self._do(stroke)
            except HeadraceError as error:
                self._complaints.append(f"{stroke.words}: {error}")

    async def _do(self, stroke: Stroke) -> None:
        match stroke.deed:
            case Deed.KILL:
                await self._kill(stroke.victim)
            case Deed.DRAIN:
                await self._drain(self.cluster.member(stroke.victim))
            case Deed.FREEZE:
                await self._freeze(stroke.victim, stroke.seconds)
            case Deed.PART:
                await self._part(stroke)
            case Deed.DAMAGE:
                await self._damage(stroke)

    async def _kill(self, victim: str) -> None:
        self.doors.close(victim, breaking=True)
        self.cluster.signal(victim, signal.SIGKILL)
        await self.cluster.ended(victim, _DIES_S)
        await self._start(victim)

    async def _drain(self, member: Member) -> None:
        """It gives what it has to others, ends by itself, and is started again."""
        self.doors.close(member.name, breaking=False)
        if member.kind is Kind.ROUTER:
            await asyncio.sleep(_SENT_S)
            self.cluster.signal(member.name, signal.SIGTERM)
        else:
            await self._ask_to_leave(member.name)
        if not await self.cluster.ended(member.name, STOP_S):
            self._complaints.append(f"{member.name} did not end within {STOP_S:g} s of being drained")
            self.cluster.signal(member.name, signal.SIGKILL)
            await self.cluster.ended(member.name, _DIES_S)
        await self._start(member.name)

    async def _ask_to_leave(self, worker: str) -> None:
        """As an operator does, at a router that has the worker."""
        router = of_kind(self.cluster.members, Kind.ROUTER)[0]
        await self._until_attached(router, worker)
        self.cluster.may_leave(worker)
        settings = self.cluster.settings
        words = (settings.python, "-m", "headrace.cli", "drain", worker, f"--url={router.url}")
        limits = (f"--grace-s={_GRACE_S:g}", f"--timeout-s={_DRAIN_S:g}")
        process = await asyncio.create_subprocess_exec(
            *words,
            *limits,
            env=dict(settings.environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_DRAIN_S + STOP_S):
                said, _ = await process.communicate()
        except TimeoutError:
            self._complaints.append(f"`headrace drain {worker}` did not end in its time")
            return
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode:
            self._complaints.append(f"`headrace drain {worker}` said: {said.decode(errors='replace').strip()}")

    async def _until_attached(self, router: Member, worker: str) -> None:
        deadline = time.monotonic() + _SERVES_S
        while time.monotonic() < deadline:
            seen = await fleet(self.client, router)
            refs = [each["info"]["ref"] for each in (seen or {"workers": []})["workers"] if each["attached"]]
            if {"worker": worker, "incarnation": self.cluster.incarnations[worker]} in refs:
                return
            await asyncio.sleep(_POLL_S)

    async def _start(self, name: str) -> None:
        """It runs again, and is a door again once it would answer."""
        await self.cluster.launch(name)
        member = self.cluster.member(name)
        deadline = time.monotonic() + _SERVES_S
        while member.kind in DOORS and await not_ready(self.client, member) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        self.doors.open(name)

    async def _freeze(self, victim: str, seconds: float) -> None:
        self.cluster.signal(victim, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.cluster.signal(victim, signal.SIGCONT)

    async def _part(self, stroke: Stroke) -> None:
        assert self.cluster.networks is not None, "nobody is parted by a plan without partitions"
        try:
            await self.cluster.networks.cut(stroke.victim, (stroke.other,))
            await asyncio.sleep(stroke.seconds)
        finally:
            await self.cluster.networks.heal(stroke.victim)

    async def _damage(self, stroke: Stroke) -> None:
        """One frame of whichever request comes. That none comes in time is no fault."""
        assert stroke.fault is not None
        await self.control.arm_wire(stroke.victim, stroke.fault)
        with contextlib.suppress(HeadraceError):
            await self.control.struck(stroke.victim, _DAMAGE_S)
        await self.control.disarm(stroke.victim)
