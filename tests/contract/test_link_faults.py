"""Links whose peer, a real process, is killed or frozen inside a frame."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from link_drive import UCX_SHARED_MEMORY, OpenLinks, buffer, carry, drive, frame, settled
from link_peer import FRAME

from headrace.transfer.link import Link, Receipt, ReceiptState

BETWEEN_PROCESSES = ["tcp", "ucx", "nccl"]
HUGE = 128 << 20
# Over shared memory a frame is here several times sooner.
HUGER = 512 << 20
TRIES = 8
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


@pytest.fixture(params=BETWEEN_PROCESSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def here(name: str) -> Iterator[OpenLinks]:
    """This process's links; the peers are child processes."""
    opened = OpenLinks(name)
    yield opened
    opened.close_all()


class LinkProcess:
    """`link_peer.py` as a child."""

    def __init__(self, name: str, act: str, address: str, nbytes: int, sign: int) -> None:
        program = str(Path(__file__).with_name("link_peer.py"))
        self.process = subprocess.Popen(
            [sys.executable, program, name, act, address, str(nbytes), str(int(sign))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        self.process.kill()
        return self.process.communicate(timeout=10)[1]


@pytest.fixture
def process() -> Iterator[Callable[..., LinkProcess]]:
    started: list[LinkProcess] = []

    def start(name: str, act: str, address: str, nbytes: int, sign: int = 0) -> LinkProcess:
        started.append(LinkProcess(name, act, address, nbytes, sign))
        return started[-1]

    yield start
    for child in started:
        assert child.end() == ""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_the_sender_dies_or_freezes_inside_a_frame(
    process: Callable[..., LinkProcess], here: OpenLinks, wake: int, name: str, sign: signal.Signals
) -> None:
    link, memory, child, received = _caught_sending(process, here, wake, name, sign)
    if sign == signal.SIGKILL:
        # 1a. Death: the receipt says so, and nothing is written afterwards.
        drive(wake, settled(received), link)
        assert received.state is ReceiptState.FAILED
        kept = int(memory.sum(dtype=np.int64))
        link.progress(0.05, wake)
        assert int(memory.sum(dtype=np.int64)) == kept
        return
    # 1b. Frozen: the receipt is pending until the link is closed, which is the fence.
    assert received.pending
    received.withdraw()
    link.progress(0.05, wake)
    assert received.pending or name == "tcp"
    began = time.monotonic()
    here.close(link)
    assert time.monotonic() - began < 2.0
    assert received.state is ReceiptState.FAILED
    # 2. When it goes on, not one byte arrives.
    kept = int(memory.sum(dtype=np.int64))
    child.process.send_signal(signal.SIGCONT)
    assert child.line() == "FAILED"
    assert int(memory.sum(dtype=np.int64)) == kept


def _caught_receiving(
    process: Callable[..., LinkProcess], here: OpenLinks, wake: int, name: str, sign: signal.Signals
) -> tuple[Link, LinkProcess, list[Receipt]]:
    """Two frames to a receiver that stops itself in the middle of the first, tried again as below."""
    for _ in range(TRIES):
        own = here.open()
        child = process(name, "post", own.address, HUGE, sign)
        sends = [own.send(child.address, FRAME, buffer(HUGE, 1)), own.send(child.address, frame(1), buffer(1 << 20))]
        handle = psutil.Process(child.process.pid)
        drive(wake, lambda handle=handle: handle.status() in STOPPED, own)  # type: ignore[misc]
        if sends[0].state is not ReceiptState.DONE:
            return own, child, sends
        here.close(own)
    pytest.fail("Each frame was whole before its receiver stopped.")


def _caught_sending(
    process: Callable[..., LinkProcess], here: OpenLinks, wake: int, name: str, sign: signal.Signals
) -> tuple[Link, np.ndarray, LinkProcess, Receipt]:
    """A frame whose sender was stopped in the middle of it, with all that the kernel still held of it.

    On a busy machine a frame may be whole before the signal is sent: then the next one is tried.
    """
    nbytes = HUGER if name == UCX_SHARED_MEMORY else HUGE
    for _ in range(TRIES):
        link = here.open()
        memory = np.zeros(nbytes, dtype=np.uint8)
        child = process(name, "send", link.address, nbytes)
        received = link.post(FRAME, memory.data)
        # On a thread of its own: the link may take all that its peer has in one call.
        stop = threading.Thread(target=_signal_when_inside, args=(memory, child.process, sign))
        stop.start()
        drive(wake, lambda stop=stop: not stop.is_alive(), link)  # type: ignore[misc]
        drive(wake, _quiet(memory), link)
        if received.state is not ReceiptState.DONE:
            return link, memory, child, received
        here.close(link)
    pytest.fail("Each frame was whole before its sender was stopped.")


def _signal_when_inside(memory: np.ndarray, sender: subprocess.Popen[str], sign: signal.Signals) -> None:
    give_up_at = time.monotonic() + 10.0
    while not memory[len(memory) // 8] and time.monotonic() < give_up_at:
        os.sched_yield()
    sender.send_signal(sign)


def _quiet(memory: np.ndarray) -> Callable[[], bool]:
    """True once nothing was written between two looks: what the kernel still held has arrived."""
    last = -1

    def look() -> bool:
        nonlocal last
        now = int(memory.sum(dtype=np.int64))
        quiet, last = now == last, now
        return quiet

    return look


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_the_receiver_dies_or_freezes_inside_a_frame(
    process: Callable[..., LinkProcess], here: OpenLinks, wake: int, name: str, sign: signal.Signals
) -> None:
    own, child, sends = _caught_receiving(process, here, wake, name, sign)
    if sign == signal.SIGSTOP:
        # 1. A frozen receiver keeps both frames, until they are withdrawn.
        assert [receipt.pending for receipt in sends] == [True, True]
        sends[0].withdraw()
    # 2. Both fail: with the peer, or by hanging up on it.
    drive(wake, settled(*sends), own)
    assert {receipt.state for receipt in sends} == {ReceiptState.FAILED}
    if sign == signal.SIGSTOP:
        child.process.send_signal(signal.SIGCONT)
        assert child.line() == "FAILED"


@pytest.mark.parametrize("name", ["nccl"])
def test_what_a_frozen_sender_began_is_given_up_in_time(
    process: Callable[..., LinkProcess], here: OpenLinks, wake: int, name: str
) -> None:
    link, memory, child, received = _caught_sending(process, here, wake, name, signal.SIGSTOP)
    # 1. Its group is discarded by itself, and the buffer is free.
    drive(wake, settled(received), link)
    assert (received.state, received.reason) == (ReceiptState.FAILED, "its process group broke")
    # 2. When it goes on it learns of that, and nothing is written any more.
    kept = int(memory.sum(dtype=np.int64))
    child.process.send_signal(signal.SIGCONT)
    assert child.line() == "FAILED"
    link.progress(0.05, wake)
    assert int(memory.sum(dtype=np.int64)) == kept


@pytest.mark.parametrize("name", [UCX_SHARED_MEMORY])
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_over_shared_memory_a_lost_sender_keeps_the_buffer_and_nothing_else(
    process: Callable[..., LinkProcess], here: OpenLinks, wake: int, name: str, sign: signal.Signals
) -> None:
    link, memory, child, received = _caught_sending(process, here, wake, name, sign)
    # 1. Its death does not end this process, and is not told from a pause: the buffer stays the link's. Whoever died
    # or paused while it wrote to the memory that the link's senders share keeps the others out, but not other links.
    assert received.pending
    other = here.open()
    carry(wake, other, here.open(), frame(1))
    # 2. Closing in time does not change that, and from then on not one byte is written.
    began = time.monotonic()
    here.close(link)
    assert time.monotonic() - began < 2.0
    assert received.pending
    kept = int(memory.sum(dtype=np.int64))
    if sign == signal.SIGSTOP:
        seen = _work_of(child) + 2
        child.process.send_signal(signal.SIGCONT)
        drive(wake, lambda: _work_of(child) > seen, other)
    carry(wake, other, here.open(), frame(2))
    assert int(memory.sum(dtype=np.int64)) == kept


def _work_of(child: LinkProcess) -> float:
    """What grows as a process runs: its waits, and the hundredths of seconds that it computed."""
    handle = psutil.Process(child.process.pid)
    times = handle.cpu_times()
    return handle.num_ctx_switches().voluntary + 100 * (times.user + times.system)
