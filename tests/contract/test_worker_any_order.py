"""Whatever routers and carriers do in whatever order: every submit is answered once, and every page comes back."""

import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from test_worker_transfer_states import PEER, ticket_for
from worker_harness import Router, Serving, attached, fake_engine, job, served

from headrace.core.jobs import Abort, Activate, JobKey, JobKind
from headrace.transfer.carrier import TransferStatus

KINDS = st.sampled_from([JobKind.PREFILL, JobKind.DECODE, JobKind.LOCAL])
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), KINDS, st.sampled_from([0.001, 60.0])),
    st.tuples(st.just("again"), KINDS, st.sampled_from([0.001, 60.0]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["activate", "abort"]), st.integers(0, 9)),
    st.tuples(st.just("report"), st.integers(0, 9), st.sampled_from(list(TransferStatus))),
    st.tuples(st.just("turns"), st.integers(1, 30)),
)


class Story:
    """A worker, its router and the jobs so far."""

    def __init__(self, here: Serving, router: Router) -> None:
        assert here.carrier is not None
        self.here, self.router, self.carrier = here, router, here.carrier
        self.keys: list[JobKey] = []

    async def tell(self, action: tuple[object, ...]) -> None:
        match action:
            case ("submit", JobKind() as kind, float() as timeout_s):
                self.submit(kind, timeout_s, len(self.keys))
            case ("again", JobKind() as kind, float() as timeout_s, int() as at) if self.keys:
                self.submit(kind, timeout_s, int(self.keys[at % len(self.keys)].request))
            case ("activate", int() as at) if self.keys:
                self.router.say(Activate(self.keys[at % len(self.keys)], 7))
            case ("abort", int() as at) if self.keys:
                self.router.say(Abort(self.keys[at % len(self.keys)]))
            case ("report", int() as at, TransferStatus() as status):
                self.report(at, status)
            case ("turns", int() as turns):
                for _ in range(turns):
                    await asyncio.sleep(0)

    def submit(self, kind: JobKind, timeout_s: float, request: int) -> None:
        """A new attempt at a request, maybe the first."""
        attempt = len(self.keys) + 1
        prompt, salt = 20 + 9 * (request % 4), request % 3
        asked = job(str(request), kind, prompt=prompt, attempt=attempt, salt=salt, timeout_s=timeout_s, peer=PEER)
        transfer = attempt.to_bytes(16, "big")
        if kind is JobKind.PREFILL:
            asked = replace(asked, ticket=ticket_for(self.here, asked, transfer=transfer))
        self.keys.append(self.router.submit(asked))

    def report(self, at: int, status: TransferStatus) -> None:
        legs = self.carrier.received | self.carrier.sent
        open_ones = [transfer for transfer, leg in legs.items() if not leg.done]
        if open_ones:
            transfer = open_ones[at % len(open_ones)]
            self.carrier.close_transfer(transfer, status, 0)

    async def end(self) -> None:
        """Abort everything, fence everything: each submit has by then had one answer, and no more."""
        self.carrier.answers_cancel = True
        for transfer in self.carrier.cancelled:
            legs = self.carrier.received | self.carrier.sent
            if not legs[transfer].done:
                self.carrier.close_transfer(transfer, TransferStatus.CANCELLED)
        for key in self.keys:
            self.router.say(Abort(key))
        await self.router.until(lambda heard: all(heard.endings[key] or key in heard.busy for key in self.keys))
        await self.here.quiet()
        heard = self.router.heard
        assert all(len(heard.endings[key]) + (key in heard.busy) == 1 for key in self.keys)


async def play(actions: list[tuple[object, ...]]) -> None:
    async with served(fake_engine(blocks=16, max_jobs=3)) as here, attached(here.worker) as router:
        story = Story(here, router)
        for action in actions:
            await story.tell(action)
        await story.end()


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=25))
def test_every_submit_is_answered_once(actions: list[tuple[object, ...]]) -> None:
    asyncio.run(play(actions))
