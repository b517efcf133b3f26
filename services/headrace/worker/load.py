"""Load: dispatch credits, which say how many more jobs a worker will take, and the gauges of a step."""

from dataclasses import replace

from headrace.core.fleet import Load
from headrace.engine.engine import StepOutput
from headrace.telemetry.metrics import WorkerMetrics


def with_credits(load: Load, *, live: int, max_jobs: int, blocks_per_job: float, free_slabs: int, open: bool) -> Load:
    """`load` with its credits: as many jobs as find a slot, pages and a staging slab.

    live: jobs that still hold something. blocks_per_job: what a job needs, as far as the last ones tell. free_slabs:
    those that no transfer under way has a claim to; with fewer slabs than transfers on both sides, two workers could
    wait for each other. An empty worker has one credit whatever pages are free: what cannot fit even there must be
    refused, not waited for. Slabs come back by themselves, so for them it waits.
    """
    if not open:
        return replace(load, credits=0)
    slots = min(max_jobs - live, free_slabs)
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


def observe(metrics: WorkerMetrics, output: StepOutput) -> None:
    """Count what a step brought."""
    load = output.load
    metrics.generated_tokens.inc(len(output.sampled))
    metrics.running.set(load.running)
    metrics.waiting.set(load.waiting)
    metrics.free_blocks.set(load.free_blocks)
    metrics.total_blocks.set(load.total_blocks)
    metrics.kv_usage.set(1 - load.free_blocks / load.total_blocks)
    if output.preempted:
        metrics.preemptions.inc(output.preempted)
    metrics.kv_waste.set(1 - output.kv.used / output.kv.allocated if output.kv.allocated else 0.0)
