"""How much of a transfer is hidden: by whatever happens first, and never more than all of it."""

import pytest

from headrace.core.fleet import WorkerRef
from headrace.core.waterfall import TransferNote
from headrace.telemetry.metrics import WorkerMetrics
from headrace.transfer.carrier import Side, TransferReport, TransferStatus
from headrace.worker.overlap import Overlap

REF = WorkerRef("p", "1")
REPORT = TransferReport(b"t", Side.SENDER, TransferStatus.COMPLETE, 4, 4096, 9.0, messages=3)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def closed_after(*said: tuple[float, str]) -> tuple[TransferNote, WorkerMetrics]:
    """What is noted when the transfer closes at 10 s."""
    clock, metrics = Clock(), WorkerMetrics()
    overlap = Overlap(clock)
    for seconds, what in said:
        clock.now = 100.0 + seconds
        getattr(overlap, what)()
    clock.now = 110.0
    return overlap.closed(REF, REPORT, metrics.transfer), metrics


@pytest.mark.parametrize(
    ("said", "seconds", "exposed", "share"),
    [
        ([(2, "begins"), (8, "awaited")], 8, 2, 0.75),
        ([(2, "begins"), (4, "begins"), (8, "awaited"), (9, "awaited")], 8, 2, 0.75),
        ([(8, "awaited"), (8, "begins")], 2, 2, 0.0),
        ([(6, "awaited"), (8, "begins")], 4, 4, 0.0),
        ([(2, "begins")], 8, 0, 1.0),
        ([], 0, 0, 0.0),
    ],
)
def test_time_and_what_was_exposed(said: list[tuple[float, str]], seconds: float, exposed: float, share: float) -> None:
    note, metrics = closed_after(*said)
    assert note == TransferNote(REF, 4096, 3, seconds, exposed)
    assert note.overlap_share == share
    read = metrics.registry.get_sample_value
    assert read("headrace_kv_transfer_exposed_seconds_sum", {"direction": "sent"}) == exposed
    assert read("headrace_kv_transfer_overlapped_seconds_sum", {"direction": "sent"}) == seconds - exposed
