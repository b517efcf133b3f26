"""What leaves no doubt whether the taker has all pages: whoever was to send them has not begun."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from scripted_worker import ScriptedWorker, expected, worker_info
from toy_cluster import ToyCluster, ask, cluster, collect, ids, options

from headrace.core.fleet import Role
from headrace.core.jobs import Command, Freeze, JobKind

FOR_EVER_S = 60.0


class Distracted(ScriptedWorker):
    """Takes no further command after a Freeze, while `deaf`."""

    deaf = False

    async def _read(self, commands: AsyncIterator[Command]) -> None:
        await super()._read(self._heard(commands))

    async def _heard(self, commands: AsyncIterator[Command]) -> AsyncIterator[Command]:
        async for command in commands:
            yield command
            if self.deaf and isinstance(command, Freeze):
                await asyncio.Event().wait()


async def _goes_away(toy: ToyCluster, old: Distracted, new: ScriptedWorker) -> None:
    """Its stream breaks while the export waits to be sent."""
    old.deaf = True
    old.report_load(draining=True)
    await new.passed("activate")
    old.die()


async def _has_no_room(toy: ToyCluster, old: Distracted, new: ScriptedWorker) -> None:
    old.busy_times = 1
    old.report_load(draining=True)


@pytest.mark.parametrize("trouble", [_goes_away, _has_no_room])
async def test_an_export_that_never_began_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, trouble: Callable[[ToyCluster, Distracted, ScriptedWorker], object]
) -> None:
    """1. An answer stands on the old worker. 2. It is to leave with its pages, and they do not come. 3. It is computed
    again, at once and for no retry."""
    monkeypatch.setattr("headrace.router.doubt._DOUBT_S", FOR_EVER_S)
    async with cluster(prefill=1, with_options=options(move_s=FOR_EVER_S)) as toy:
        old, new = (make(worker_info(name, Role.DECODE)) for make, name in ((Distracted, "d1"), (ScriptedWorker, "d2")))
        old.gate("token 3")
        await toy.join(old)
        await toy.attached(2)
        asking = asyncio.create_task(collect(toy, ask()))
        await old.passed("token 3")
        activating = new.gate("activate")
        toy.worker("p1").at["submit"] = activating.set
        await toy.join(new)
        await toy.attached(3)
        before = toy.budget
        await trouble(toy, old, new)
        assert ids(await asking) == expected(3, 6)
        assert [job.kind for job in toy.worker("p1").submits] == [JobKind.PREFILL] * 2
        assert toy.budget == before
        await toy.quiet()
