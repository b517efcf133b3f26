"""Where the native kernels' threads run: apart where they may, and where they were told to stay."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from kernels.instruction_sets import MAY_BUILD
from kernels.native_step import run

from headrace_kernels import native
from headrace_kernels.native import Norm

pytestmark = [
    MAY_BUILD,
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads are bound on Linux only"),
    pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here."),
]

_TASKS = Path("/proc/self/task")
_WITHIN_S = 20.0
_PROCESSOR = 36  # of the fields of /proc/PID/task/TID/stat behind the name


def _work(threads: int) -> None:
    """Many operations, between which the threads wait for each other."""
    rows, weight, out = torch.ones(64, 576), torch.ones(576), torch.empty(64, 576)
    norm = Norm(rows.data_ptr(), weight.data_ptr(), out.data_ptr(), 576, 1e-5, False)
    run(*[norm] * 50, rows=64, threads=threads)


def _second_thread() -> int:
    """The id of the one thread beside the caller's of a team of two."""
    _work(1)
    before = set(os.listdir(_TASKS))
    _work(2)
    (made,) = set(os.listdir(_TASKS)) - before
    return int(made)


def _stat(thread: int) -> list[str]:
    """The fields behind the name: its state comes first."""
    return (_TASKS / str(thread) / "stat").read_text().rpartition(")")[2].split()


def _processor(thread: int) -> int:
    return int(_stat(thread)[_PROCESSOR])


def _until_asleep(thread: int) -> None:
    """One that looks for work yet may be about to part, and would not see that it was bound meanwhile."""
    deadline = time.monotonic() + _WITHIN_S
    while _stat(thread)[0] != "S":
        assert time.monotonic() < deadline, "the team's thread does not come to rest"
        os.sched_yield()


def _bind(processors: set[int], *threads: int) -> None:
    for thread in threads:
        if thread != threading.get_native_id():
            _until_asleep(thread)
        os.sched_setaffinity(thread, processors)


def test_threads_that_share_a_processor_part_and_may_run_where_they_might_before() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one processor")
    caller, other = threading.get_native_id(), _second_thread()
    one = {min(allowed)}
    try:
        _bind(one, caller, other)
        _work(2)
        _until_asleep(other)
        assert os.sched_getaffinity(caller) == os.sched_getaffinity(other) == one
        _bind(allowed, other)
        deadline = time.monotonic() + _WITHIN_S
        while _processor(other) in one:
            assert time.monotonic() < deadline, "the team's threads stay on one processor"
            _work(2)
        _until_asleep(other)
        assert os.sched_getaffinity(other) == allowed
        assert os.sched_getaffinity(caller) == one
    finally:
        _bind(allowed, caller, other)
