"""How many staging slabs a worker of a given size has: one for each transfer that its credits allow."""

import pytest

from headrace.bootstrap.worker import slabs_for


@pytest.mark.parametrize(("max_jobs", "slabs"), [(1, 64), (64, 64), (128, 128), (4096, 256)])
def test_slabs_grow_with_the_jobs_within_reason(max_jobs: int, slabs: int) -> None:
    options = slabs_for(max_jobs)
    assert options.send_slabs == options.receive_slabs == slabs
