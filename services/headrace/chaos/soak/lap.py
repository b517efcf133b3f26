"""One lap: the crowd and the blows together, then a quiet point at which nothing may be left of either.

Owns the order of things. What is done, asked, sampled and judged stands elsewhere.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from headrace.chaos.client import Heard
from headrace.chaos.cluster import Cluster
from headrace.chaos.rest import Complaints, silent, until_at_rest, until_whole
from headrace.chaos.soak.blows import Blows
from headrace.chaos.soak.crowd import Begun, Crowd, Done
from headrace.chaos.soak.plan import Lap, Turn
from headrace.chaos.soak.quiet import Quiet
from headrace.chaos.soak.sample import Sample
from headrace.chaos.verdict import Counts, Judged, finished, judge, total

# A prompt on which two workers died is refused for half a minute.
_ANSWERED_S = 45.0
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Where laps are played. references: what each request of the mix hears undisturbed."""

    cluster: Cluster
    client: httpx.AsyncClient
    crowd: Crowd
    blows: Blows
    quiet: Quiet
    references: Mapping[str, Heard]


@dataclass(slots=True)
class LapRow:
    """What a lap came to. states: requests by how they ended. errors: what those that failed were told, and how many.
    rest_s: from the last answer to the quiet point.

    broken: the cluster did not become whole and quiet again.
    """

    lap: Lap
    states: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    complaints: list[str] = field(default_factory=list)
    samples: Sequence[Sample] = ()
    seconds: float = 0.0
    rest_s: float = 0.0
    broken: bool = False

    def complain(self, counts: Counts, sentences: Sequence[str]) -> None:
        self.counts += counts
        self.complaints += sentences


async def play(stage: Stage, lap: Lap) -> LapRow:
    """Raises HeadraceError if a process does not come up."""
    began = time.monotonic()
    row = LapRow(lap)
    done = await _under_blows(stage, row)
    answered = time.monotonic()
    await stage.cluster.launch_missing()
    await _aftermath(stage, row, done)
    row.samples = await stage.quiet.samples()
    row.seconds, row.rest_s = time.monotonic() - began, time.monotonic() - answered
    return row


async def _under_blows(stage: Stage, row: LapRow) -> list[Done]:
    begun, lap = Begun(), row.lap
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stage.crowd.serve(lap.turns, begun, f"lap{lap.number}"))
        struck = group.create_task(stage.blows.fall(lap.strokes, begun))
    row.complain(Counts(hung=len(struck.result())), struck.result())
    judged = [_judged(stage, one) for one in asked.result()]
    row.states = Counter(one.state for one in judged)
    row.errors = Counter(str(error.get("message")) for one in asked.result() for error in one.heard.errors)
    row.complain(total([one.counts for one in judged]), [line for one in judged for line in one.complaints])
    return asked.result()


def _judged(stage: Stage, done: Done) -> Judged:
    return judge(done.request, done.heard, stage.references[done.turn.ask], may_be_cut=done.broken)


async def _aftermath(stage: Stage, row: LapRow, done: Sequence[Done]) -> None:
    """All is whole again, who was not answered asks again and is, and nothing is held any more."""
    amiss = await until_whole(stage.client, stage.cluster)
    row.complain(Counts(hung=len(amiss)), amiss)
    turned_away = [one.turn for one in done if not (one.heard.left or finished(one.heard))]
    unanswered = await _ask_again(stage, turned_away, f"lap{row.lap.number}-again")
    row.complain(Counts(endings=len(unanswered)), unanswered)
    held, _ = await until_at_rest(stage.client, stage.cluster)
    row.complain(Counts(leaks=len(held)), held)
    mute = await silent(stage.client, stage.cluster)
    row.complain(Counts(hung=len(mute)), mute)
    died = stage.cluster.take_deaths()
    row.complain(Counts(died=len(died)), died)
    row.broken = bool(amiss or held or mute)


async def _ask_again(stage: Stage, turns: Sequence[Turn], word: str) -> Complaints:
    """Until each is answered, and rightly; one sentence for each that is not in time."""
    left = [Turn(turn.ask, "gateway", turn.salt, None) for turn in turns]
    deadline = time.monotonic() + _ANSWERED_S
    tries, complaints = 0, []
    while left:
        done = await stage.crowd.serve(left, Begun(), f"{word}{tries}")
        judged = [(one, _judged(stage, one)) for one in done]
        complaints += [line for _, verdict in judged for line in verdict.complaints]
        late = time.monotonic() > deadline
        left = [one.turn for one in done if not finished(one.heard)]
        if late:
            return [*complaints, *(f"{turn.ask} was not answered once all was whole again" for turn in left)]
        if left:
            await asyncio.sleep(_AGAIN_S)
        tries += 1
    return complaints
