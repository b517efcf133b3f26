"""Aiming: one request is held at the phase of a case, or one of its frames is to be damaged, and we hear that it was.

Knows the workers' control socket; strikes nobody.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from headrace.chaos.cells import Cell, Fault, Moment
from headrace.chaos.control import Control, Damage, FrameKind, Hold, Phase, WireFault
from headrace.chaos.members import Kind
from headrace.chaos.proxies import Proxies
from headrace.chaos.tcp_fault import Harm, TcpFault
from headrace.core.errors import HeadraceError
from headrace.transfer.tcp_head import Verb

# A request that is held waits in line before, behind whatever else was asked.
HELD_S = 12.0
_CHUNK_TOKENS = 32
_MESSAGES_APART = 4
_CHUNKS, _FIRST_TOKENS, _TOKENS_APART = 3, 3, 5
_HOLDERS = {
    Moment.BEFORE_GRANT: Kind.DECODE,
    Moment.AFTER_GRANT: Kind.PREFILL,
    Moment.MID_CHUNK: Kind.PREFILL,
    Moment.BEFORE_COMMIT: Kind.PREFILL,
    Moment.AFTER_COMMIT: Kind.DECODE,
    Moment.MID_DECODE: Kind.DECODE,
}


def holder(cell: Cell) -> Kind:
    """Whose workers are armed: those of the role that reaches the phase. Frames of pages leave a prefill worker, and
    all that is said of them on tcp goes through the connection that it makes to the decode worker."""
    return Kind.DECODE if cell.proxied else _HOLDERS.get(cell.moment, Kind.PREFILL)


def hold_of(cell: Cell, request: str) -> Hold:
    at = 0
    if cell.moment is Moment.MID_CHUNK:
        at = _CHUNK_TOKENS * (1 + cell.seed % _CHUNKS)
    elif cell.moment is Moment.MID_DECODE:
        at = _FIRST_TOKENS + _TOKENS_APART * cell.seed
    return Hold(Phase[cell.moment.name], request, at)


def fault_of(cell: Cell, request: str) -> WireFault:
    """Of a unit the first or the second; there is one End."""
    nth = cell.seed % 2 if cell.moment is Moment.UNIT else 0
    return WireFault(Damage[cell.fault.name], FrameKind[cell.moment.name], nth, request_prefix=request)


def message_fault_of(cell: Cell) -> TcpFault:
    """Of that message, for whichever request it is, the first or the fifth."""
    name = "CORRUPTED_HEAD" if cell.fault is Fault.CORRUPTED_HEADER else cell.fault.name
    return TcpFault(Harm[name], Verb[cell.moment.name], nth=_MESSAGES_APART * cell.seed)


@asynccontextmanager
async def armed(control: Control, workers: Sequence[str], order: Hold | WireFault) -> AsyncIterator[None]:
    """Every one of the workers is armed, and is disarmed again if it still lives."""
    for worker in workers:
        await (control.arm(worker, order) if isinstance(order, Hold) else control.arm_wire(worker, order))
    try:
        yield
    finally:
        await disarm(control, workers)


async def disarm(control: Control, workers: Sequence[str]) -> None:
    """Those that still live."""
    for worker in workers:
        with contextlib.suppress(HeadraceError):
            await control.disarm(worker)


async def first_held(control: Control, workers: Sequence[str]) -> str:
    """The worker at which the request is held now; "" if that does not come to be."""
    return await _first(workers, lambda worker: control.held(worker, HELD_S))


async def first_struck(control: Control, workers: Sequence[str]) -> str:
    """The worker whose frame was damaged; "" if none was."""
    return await _first(workers, lambda worker: control.struck(worker, HELD_S))


async def first_harmed(proxies: Proxies, workers: Sequence[str]) -> str:
    """The worker before which a message was harmed; "" if none was."""
    return await _first(workers, lambda worker: proxies.struck(worker, HELD_S))


async def release(control: Control, worker: str) -> None:
    """Let it go on. One that was struck goes on by itself, or not at all."""
    with contextlib.suppress(HeadraceError):
        await control.release(worker)


async def _first(workers: Sequence[str], wait: Callable[[str], Awaitable[object]]) -> str:
    async def one(worker: str) -> str:
        with contextlib.suppress(HeadraceError):
            await wait(worker)
            return worker
        return ""

    tasks = [asyncio.create_task(one(worker)) for worker in workers]
    try:
        for finished in asyncio.as_completed(tasks):
            if name := await finished:
                return name
        return ""
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
