"""The fault matrix: every case as a value, and which of them are asked for.

Pure. What a fault does is `strike`'s and the wire's affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from itertools import product


class Target(Enum):
    """What a case strikes."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"
    GATEWAY = "gateway"
    REDIS = "redis"
    WIRE = "wire"


class Fault(Enum):
    """What happens to it: first those of a process, then those of a frame under way."""

    KILL = "kill"
    FREEZE = "freeze"
    PARTITION = "partition"
    RESTART = "restart"
    DUPLICATED = "duplicated"
    DELAYED = "delayed"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    CORRUPTED = "corrupted"
    CORRUPTED_HEADER = "corrupted-header"
    LOST = "lost"
    CUT = "cut"


class Moment(Enum):
    """When: a phase of the request that is held there, or, for a fault of the wire, the frame that it befalls, or the
    message of the tcp link, between the link and its peer."""

    BEFORE_GRANT = "before-grant"
    AFTER_GRANT = "after-grant"
    MID_CHUNK = "mid-chunk"
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    MID_DECODE = "mid-decode"
    UNIT = "unit"
    END = "end"
    OFFER = "offer"
    PULL = "pull"
    DATA = "data"
    TAKEN = "taken"


LINKS = ("ucx", "tcp")
PROCESS_FAULTS = (Fault.KILL, Fault.FREEZE, Fault.PARTITION, Fault.RESTART)
MESSAGE_FAULTS = tuple(fault for fault in Fault if fault not in PROCESS_FAULTS)
WIRE_FAULTS = tuple(fault for fault in MESSAGE_FAULTS if fault is not Fault.CUT)
FRAMES = (Moment.UNIT, Moment.END)
MESSAGES = (Moment.OFFER, Moment.PULL, Moment.DATA, Moment.TAKEN)
PHASES = tuple(moment for moment in Moment if moment not in (*FRAMES, *MESSAGES))
WORKERS = (Target.PREFILL, Target.DECODE)
CONTROL = (Target.ROUTER, Target.GATEWAY, Target.REDIS)
_WORKER_SEEDS, _CONTROL_SEEDS, _WIRE_SEEDS, _MESSAGE_SEEDS = 3, 2, 4, 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One case. seed: which request is held, where within the phase, and how the fault is done where it has ways."""

    target: Target
    fault: Fault
    moment: Moment
    link: str
    seed: int

    @property
    def proxied(self) -> bool:
        """Whether it needs proxies before the links; a worker behind one cannot be parted from its peers."""
        return self.moment in MESSAGES

    @property
    def id(self) -> str:
        return f"{self.target.value}.{self.fault.value}.{self.moment.value}.{self.link}.{self.seed}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Cells that have, of each axis, one of the values named here; an empty tuple asks for nothing."""

    target: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()
    moment: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    seed: tuple[int, ...] = ()

    def passes(self, cell: Cell) -> bool:
        return all(
            not (wanted := getattr(self, axis.name)) or _plain(cell, axis.name) in wanted for axis in fields(self)
        )


def _plain(cell: Cell, axis: str) -> str | int:
    value: Enum | str | int = getattr(cell, axis)
    return str(value.value) if isinstance(value, Enum) else value


def matrix() -> tuple[Cell, ...]:
    """Every case: those that one cluster serves stand together."""
    cells = [
        *(Cell(*axes) for axes in product(WORKERS, PROCESS_FAULTS, PHASES, LINKS, range(_WORKER_SEEDS))),
        *(
            Cell(target, fault, phase, LINKS[seed % len(LINKS)], seed)
            for target, fault, phase, seed in product(CONTROL, PROCESS_FAULTS, PHASES, range(_CONTROL_SEEDS))
        ),
        *(Cell(Target.WIRE, *axes) for axes in product(WIRE_FAULTS, FRAMES, LINKS, range(_WIRE_SEEDS))),
        *(Cell(Target.WIRE, *axes) for axes in product(MESSAGE_FAULTS, MESSAGES, ("tcp",), range(_MESSAGE_SEEDS))),
    ]
    return by_cluster(cells)


def ci_subset() -> tuple[Cell, ...]:
    """Each process fault on each target once, and each fault of the wire: phases, links and frames take turns, so
    that each value of each axis is there."""
    struck = []
    for place, (target, fault) in enumerate(product((*WORKERS, *CONTROL), PROCESS_FAULTS)):
        turn = (place + place // len(PROCESS_FAULTS)) % len(LINKS)
        # In the matrix a seed of the control processes goes with one link.
        seed = turn if target in CONTROL else place % _WORKER_SEEDS
        struck.append(Cell(target, fault, PHASES[place * 5 % len(PHASES)], LINKS[turn], seed))
    befallen = [
        Cell(Target.WIRE, fault, FRAMES[place % 2], LINKS[place // 2 % 2], 0) for place, fault in enumerate(WIRE_FAULTS)
    ]
    said = [
        Cell(Target.WIRE, fault, message, "tcp", 0)
        for fault, message in zip(
            (Fault.CORRUPTED_HEADER, Fault.CUT, Fault.TRUNCATED, Fault.REORDERED), MESSAGES, strict=True
        )
    ]
    return by_cluster([*struck, *befallen, *said])


def select(cells: Sequence[Cell], wanted: Filter, limit: int = 0) -> tuple[Cell, ...]:
    """Those that pass, at most `limit` of them, evenly spread over all; 0: every one."""
    passing = [cell for cell in cells if wanted.passes(cell)]
    if limit and len(passing) > limit:
        passing = [passing[place * len(passing) // limit] for place in range(limit)]
    return tuple(passing)


def by_cluster(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    return tuple(sorted(cells, key=lambda cell: (LINKS.index(cell.link), cell.proxied)))
