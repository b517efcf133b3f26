"""The plan of a soak: who asks what, who leaves when, and who is struck how, lap by lap.

Pure: the same shape gives the same plan.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.chaos.client import Leave
from headrace.chaos.messages import Damage, FrameKind, WireFault


class Deed(Enum):
    """kill: SIGKILL, and its supervisor starts it again. drain: it is asked to leave, a worker by `headrace drain`, a
    router by SIGTERM, and is started again. freeze: SIGSTOP for a while. part: the network between it and another one
    drops everything for a while. damage: one frame that it sends is harmed."""

    KILL = "kill"
    DRAIN = "drain"
    FREEZE = "freeze"
    PART = "part"
    DAMAGE = "damage"


MORTAL = ("router-1", "prefill-1", "decode-1")
"""Those that are killed and drained; all others live as long as the cluster."""

_PREFILLS, _DECODES, _ROUTERS = ("prefill-0", "prefill-1"), ("decode-0", "decode-1"), ("router-0", "router-1")
# Workers die more often than routers do.
_DYING = (*MORTAL, "prefill-1", "decode-1")
_FROZEN = (*_PREFILLS, *_DECODES, *_ROUTERS, "gateway", "redis")
_DOORS = ("gateway", "gateway", *_ROUTERS)
_DEEDS = (Deed.KILL, Deed.DRAIN, Deed.DAMAGE, Deed.DRAIN, Deed.KILL, Deed.FREEZE, Deed.DAMAGE, Deed.PART)
_REQUESTS_A_STROKE, _LEAST_STROKES = 50, 2
# Strokes fall between these shares of a lap's requests, so that they end before its requests do.
_FIRST, _LAST = 0.05, 0.75
_LEAVING, _SHARED = 0.25, 0.5
_SALTS_SHARED = 4
_ANSWER_EVENTS, _ANSWER_S = 30, 1.5
_OUTAGE_S = (0.5, 4.0)
_DAMAGES = tuple(damage for damage in Damage if damage is not Damage.SWALLOWED)
_ENDS, _UNITS = 0.25, 4


@dataclass(frozen=True, slots=True)
class Shape:
    """requests: of the whole soak, at least. asks: names of the mix. partitions: whether anybody can be parted."""

    seed: int
    requests: int
    laps: int
    asks: Sequence[str]
    partitions: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: of the mix, to which door, with whose pages. leave: None: its client stays to the end."""

    ask: str
    door: str
    salt: str
    leave: Leave | None


@dataclass(frozen=True, slots=True)
class Stroke:
    """One deed, once `at` requests of its lap have begun. seconds: how long it lasts. other: from whom it is parted.
    fault: what befalls a frame."""

    deed: Deed
    victim: str
    at: int
    seconds: float = 0.0
    other: str = ""
    fault: WireFault | None = None

    @property
    def words(self) -> str:
        aside = f" from {self.other}" if self.other else ""
        if self.fault is not None:
            aside = f"'s {self.fault.frame.value} ({self.fault.kind.value})"
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.deed.value} {self.victim}{aside}{lasting}"


@dataclass(frozen=True, slots=True)
class Lap:
    """number: from 1."""

    number: int
    turns: tuple[Turn, ...]
    strokes: tuple[Stroke, ...]


def plan(shape: Shape) -> tuple[Lap, ...]:
    """Laps of equally many requests."""
    each = -(-shape.requests // shape.laps)
    return tuple(_lap(shape, number, each) for number in range(1, shape.laps + 1))


def describe(lap: Lap) -> str:
    leaving = sum(turn.leave is not None for turn in lap.turns)
    strokes = "; ".join(f"at {stroke.at} {stroke.words}" for stroke in lap.strokes)
    return f"lap {lap.number}: {len(lap.turns)} requests, {leaving} of whose clients leave; {strokes}"


def _lap(shape: Shape, number: int, requests: int) -> Lap:
    dice = random.Random(f"{shape.seed}/{number}")
    turns = tuple(_turn(dice, shape.asks, f"{number}-{place}", number) for place in range(requests))
    deeds = [deed for deed in _DEEDS if shape.partitions or deed is not Deed.PART]
    count = min(len(deeds), max(_LEAST_STROKES, requests // _REQUESTS_A_STROKE))
    # Short laps have a part of the deeds each, and all laps together all of them.
    chosen = [deeds[((number - 1) * count + place) % len(deeds)] for place in range(count)]
    span = (_LAST - _FIRST) / count
    times = [int(requests * (_FIRST + span * (place + dice.random()))) for place in range(count)]
    return Lap(number, turns, tuple(_stroke(dice, deed, at) for deed, at in zip(chosen, times, strict=True)))


def _turn(dice: random.Random, asks: Sequence[str], own: str, lap: int) -> Turn:
    salt = f"{lap}-shared-{dice.randrange(_SALTS_SHARED)}" if dice.random() < _SHARED else own
    return Turn(dice.choice(asks), dice.choice(_DOORS), salt, _leave(dice) if dice.random() < _LEAVING else None)


def _leave(dice: random.Random) -> Leave:
    """In the midst of the answer by its events, or at any moment of the request, its first milliseconds included."""
    if dice.random() < 0.5:
        return Leave(dice.randrange(1, _ANSWER_EVENTS), _ANSWER_S * 4)
    return Leave(_ANSWER_EVENTS * 4, _ANSWER_S * dice.random() ** 2)


def _stroke(dice: random.Random, deed: Deed, at: int) -> Stroke:
    seconds = dice.uniform(*_OUTAGE_S)
    match deed:
        case Deed.KILL:
            return Stroke(deed, dice.choice(_DYING), at)
        case Deed.DRAIN:
            return Stroke(deed, dice.choice(_DYING), at)
        case Deed.FREEZE:
            return Stroke(deed, dice.choice(_FROZEN), at, seconds)
        case Deed.PART:
            victim, others = dice.choice(((dice.choice(_PREFILLS), _DECODES), (dice.choice(_DECODES), _ROUTERS)))
            return Stroke(deed, victim, at, seconds, other=dice.choice(others))
        case Deed.DAMAGE:
            return Stroke(deed, dice.choice(_PREFILLS), at, fault=_fault(dice))


def _fault(dice: random.Random) -> WireFault:
    if dice.random() < _ENDS:
        return WireFault(dice.choice(_DAMAGES), FrameKind.END)
    return WireFault(dice.choice(_DAMAGES), FrameKind.UNIT, nth=dice.randrange(_UNITS))
