"""Admission: requests wait here until a route is possible, by priority and then first come first served. Nothing
waits in a worker that could still go elsewhere.

Knows nothing of workers: it is handed a way to try, and is woken when trying again may help.
"""

import asyncio
import bisect
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable

from headrace.core.errors import DeadlineExceeded, HeadraceError, Overloaded, Unavailable
from headrace.core.route import Route
from headrace.router.choose import NoRoute

Take = Callable[[], Route | NoRoute]
"""Finds a route and spends its credits in one go, or says why not."""
Need = tuple[int, ...]
"""How much room a request needs: whoever needs at least as much of everything cannot do with less."""
Place = tuple[bool, int, int]
"""Where one waits: who was served before in front, then the lowest priority, then who came first."""


class _Waiter:
    def __init__(self, place: Place, take: Take, group: Hashable, need: Need, grace_s: float) -> None:
        self.place = place
        self.take = take
        self.group = group
        self.need = need
        self.route: asyncio.Future[Route] = asyncio.get_running_loop().create_future()
        self.refusal: NoRoute | None = None
        self._grace_s = grace_s
        self._timer: asyncio.TimerHandle | None = None

    def told(self, refusal: NoRoute) -> None:
        """While nobody could serve the request even with room, the grace runs down."""
        self.refusal = refusal
        if refusal.served:
            self.close()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)

    def fail(self, error: Exception) -> None:
        if not self.route.done():
            self.route.set_exception(error)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        assert self.refusal is not None
        self.fail(Unavailable(self.refusal.reason, retry_after_s=self.refusal.retry_after_s))


class Admission:
    """limit: how many requests may wait. grace_s: how long one waits while no worker could serve it at all,
    comeback_s: how long one that has been served before does, so that a restarted worker can take it on.

    A full queue gives the place of its last waiter to a newcomer of better priority. Priorities are strict: under
    lasting overload those of worse priority wait until their time runs out.
    """

    def __init__(
        self, limit: int, grace_s: float, gauge: Callable[[float], object], *, comeback_s: float = 15.0
    ) -> None:
        self._limit = limit
        self._grace_s = grace_s
        self._comeback_s = comeback_s
        self._gauge = gauge
        self._queue: list[_Waiter] = []
        self._numbers = itertools.count()
        self._scheduled: asyncio.Handle | None = None
        self._alarms: set[asyncio.TimerHandle] = set()
        self._closed: HeadraceError | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def admit(
        self,
        take: Take,
        group: Hashable,
        deadline: float,
        *,
        need: Need = (),
        ahead: bool = False,
        priority: int = 0,
    ) -> Route:
        """A route, its credits spent. Raises Overloaded (queue full), Unavailable (nobody could serve it),
        DeadlineExceeded (`deadline`, loop time, passed).

        group: requests of one group want the same workers, so none overtakes another that is in front and needs no
        more. ahead: the request has been served before and waits in front, whatever the limit. priority: the lowest
        is served first.
        """
        if self._closed is not None:
            raise self._closed
        place = (not ahead, priority, next(self._numbers))
        refusal: NoRoute | None = None
        if ahead or not any(waiter.group == group and waiter.place < place for waiter in self._queue):
            outcome = take()
            if isinstance(outcome, Route):
                return outcome
            refusal = outcome
        if not ahead:
            self._make_room(place, 1.0 if refusal is None else refusal.retry_after_s)
        waiter = _Waiter(place, take, group, need, self._comeback_s if ahead else self._grace_s)
        return await self._wait(waiter, refusal, deadline)

    def wake(self) -> None:
        """Something changed that may make a route possible: try those who wait, soon and once."""
        if self._queue and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._serve)

    def wake_after(self, seconds: float) -> None:
        """Something will have changed by then."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        self._alarms = {alarm for alarm in self._alarms if alarm.when() > due}
        self._alarms.add(loop.call_later(seconds, self.wake))

    def close(self, error: HeadraceError) -> None:
        """Refuse all who wait and all who come."""
        self._closed = error
        for waiter in self._queue:
            waiter.fail(error)
        if self._scheduled is not None:
            self._scheduled.cancel()
        for alarm in self._alarms:
            alarm.cancel()

    def _make_room(self, place: Place, retry_after_s: float) -> None:
        """Raises Overloaded where there is none and no waiter of worse priority to give up its own."""
        waiting = [waiter for waiter in self._queue if not waiter.route.done()]
        if len(waiting) < self._limit:
            return
        full = Overloaded(
            f"{len(waiting)} requests are waiting, which is the limit.",
            remedy="Try again later.",
            retry_after_s=retry_after_s,
        )
        if not waiting or waiting[-1].place[:2] <= place[:2]:
            raise full
        waiting[-1].fail(full)

    async def _wait(self, waiter: _Waiter, refusal: NoRoute | None, deadline: float) -> Route:
        if refusal is not None:
            waiter.told(refusal)
        else:
            self.wake()
        bisect.insort(self._queue, waiter, key=lambda one: one.place)
        self._gauge(len(self._queue))
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter.route
        except TimeoutError:
            why = waiter.refusal.reason if waiter.refusal is not None else "Others were waiting in front."
            raise DeadlineExceeded(f"The request's time ran out while it waited for a worker. {why}") from None
        finally:
            waiter.close()
            self._queue.remove(waiter)
            self._gauge(len(self._queue))

    def _serve(self) -> None:
        self._scheduled = None
        refused: list[tuple[_Waiter, NoRoute]] = []
        for waiter in self._queue:
            if waiter.route.done():
                continue
            shared = _shared(refused, waiter)
            outcome = shared or _look(waiter.take)
            if isinstance(outcome, Exception):
                waiter.fail(outcome)
            elif isinstance(outcome, Route):
                waiter.route.set_result(outcome)
            else:
                if outcome is not shared:
                    refused.append((waiter, outcome))
                waiter.told(outcome)


def _shared(refused: Iterable[tuple[_Waiter, NoRoute]], waiter: _Waiter) -> NoRoute | None:
    """The refusal of another of the group that needs no more than `waiter`: looking again would say the same."""
    for other, refusal in refused:
        if other.group == waiter.group and all(map(operator.le, other.need, waiter.need)):
            return refusal
    return None


def _look(take: Take) -> Route | NoRoute | Exception:
    """A look that fails is its request's affair: it must not keep those behind it from theirs."""
    try:
        return take()
    except Exception as error:
        return error
