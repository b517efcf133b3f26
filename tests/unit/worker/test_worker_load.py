"""Dispatch credits: never more than fit, never none at an empty worker."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fleet import Load
from headrace.engine.engine import KvUse, StepOutput
from headrace.telemetry.metrics import WorkerMetrics
from headrace.worker.load import JobSize, observe, with_credits


@given(
    free=st.integers(0, 1000),
    live=st.integers(0, 80),
    max_jobs=st.integers(1, 64),
    size=st.floats(0, 500),
    slabs=st.integers(-4, 100),
    open=st.booleans(),
)
def test_credits_stay_in_bounds(*, free: int, live: int, max_jobs: int, size: float, slabs: int, open: bool) -> None:
    load = Load(free_blocks=free, total_blocks=1000, running=3)
    told = with_credits(load, live=live, max_jobs=max_jobs, blocks_per_job=size, free_slabs=slabs, open=open)
    assert 0 <= told.credits <= max(0, min(max_jobs - live, slabs))
    assert (told.running, told.free_blocks) == (3, free)
    if not open:
        assert told.credits == 0
    elif live == 0:
        assert told.credits >= 1 or slabs < 1
    elif told.credits:
        assert told.credits * size <= free or size < 1


def test_job_size_follows_the_jobs() -> None:
    size = JobSize()
    for _ in range(200):
        size.see(40)
    assert 39 < size.blocks <= 40
    for _ in range(200):
        size.see(2)
    assert 2 <= size.blocks < 3


def test_steps_are_counted_and_waste_is_a_share_of_what_is_held() -> None:
    metrics = WorkerMetrics()
    load = Load(free_blocks=6, total_blocks=8)
    for preempted, kv in ((1, KvUse(160, 156)), (2, KvUse(32, 24)), (0, KvUse(32, 24))):
        observe(metrics, StepOutput((), (), (), (), (), load, idle=False, preempted=preempted, kv=kv))
    text = metrics.exposition()
    assert "vllm:num_preemptions_total 3.0" in text
    assert "headrace_kv_waste_ratio 0.25" in text
    observe(metrics, StepOutput((), (), (), (), (), load, idle=True))
    assert "headrace_kv_waste_ratio 0.0" in metrics.exposition()
