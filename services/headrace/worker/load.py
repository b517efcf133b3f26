"""Dispatch credits: how many more jobs a worker says that it will take. Pure arithmetic."""

from dataclasses import replace

from headrace.core.fleet import Load


def with_credits(load: Load, *, live: int, max_jobs: int, blocks_per_job: float, open: bool) -> Load:
    """`load` with its credits: as many jobs as find both a slot and pages.

    live: jobs that still hold something. blocks_per_job: what a job needs, as far as the last ones tell. An
    empty worker always has one credit: what cannot fit even there must be refused, not waited for.
    """
    if not open:
        return replace(load, credits=0)
    slots = max_jobs - live
    by_pages = int(load.free_blocks / max(1.0, blocks_per_job))
    floor = 0 if live else 1
    return replace(load, credits=max(0, min(slots, max(floor, by_pages))))


class JobSize:
    """The blocks a job needs: a moving mean over about the last sixteen."""

    _WEIGHT = 1 / 16

    def __init__(self) -> None:
        self.blocks = 1.0

    def see(self, blocks: int) -> None:
        self.blocks += (blocks - self.blocks) * self._WEIGHT
