"""A request that is held in its handover: its caller has the first token, and neither worker says more of it."""

import asyncio
from dataclasses import dataclass

from scripted_worker import ScriptedWorker, expected
from toy_cluster import ToyCluster, ask, collect, ids

from headrace.core.generation import Chunk


@dataclass(frozen=True, slots=True)
class HeldHandover:
    """p: has yet to say that it handed over. d: waits at a point until `go_on` is set. asking: the caller."""

    p: ScriptedWorker
    d: ScriptedWorker
    go_on: asyncio.Event
    asking: asyncio.Task[list[Chunk]]

    async def answered(self) -> None:
        """`d` goes on, and the answer is what it is when nothing happens."""
        self.go_on.set()
        assert ids(await self.asking) == expected(3, 6)


async def held_handover(toy: ToyCluster, at: str = "commit") -> HeldHandover:
    """Of a request that `toy` is asked now. at: where d1 waits."""
    p, d = toy.worker("p1"), toy.worker("d1")
    p.gate("handover")
    go_on = d.gate(at)
    asking = asyncio.create_task(collect(toy, ask()))
    await d.passed(at)
    return HeldHandover(p, d, go_on, asking)
