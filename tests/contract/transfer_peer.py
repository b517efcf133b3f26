"""One end of transfers for tests: in this process, or a real child process under the same interface.

Run as a program it serves the methods of `Peer` over its standard input and output.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from headrace.core.errors import HeadraceError, StartupError
from headrace.core.fleet import WorkerRef
from headrace.core.layout import KvLayout
from headrace.core.ticket import Ticket
from headrace.telemetry.metrics import TransferMetrics
from headrace.transfer.carrier import CarrierHealth, TransferReport
from headrace.transfer.factory import make_link
from headrace.transfer.link import END_UNIT, FrameId, Link, LinkFactory, Receipt, ReceiptState
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions
from headrace.transfer.thread import TransferThread

BF16 = KvLayout(layers=3, kv_heads=2, head_dim=16, block_tokens=16, dtype="bfloat16")
FP32 = replace(BF16, dtype="float32")
# A unit of 4 blocks is 64 MiB: a signal sent when its first bytes are seen lands inside it.
HUGE = KvLayout(layers=2, kv_heads=64, head_dim=1024, block_tokens=16, dtype="float32")


class ArrayPages:
    """PagePort over an array; counts its writes."""

    def __init__(self, layout: KvLayout, blocks: int, seed: int) -> None:
        self.layout = layout
        self.writes = 0
        self.failures = 0  # reads or writes that are yet to fail
        random = np.random.default_rng(seed)
        shape = (layout.layers, blocks, layout.page_bytes)
        # No zero bytes: what arrives in a fresh slab is told from what was there. Its period divides no page's size.
        noise = random.integers(1, 256, 1_000_003, dtype=np.uint8)
        self.array = np.resize(noise, shape) if seed else np.zeros(shape, np.uint8)

    def read(self, blocks: Sequence[int], into: memoryview) -> None:
        self._fail_if_asked()
        into[:] = self.array[:, list(blocks)].tobytes()

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        self._fail_if_asked()
        self.writes += 1
        self.array[:, list(blocks)] = np.frombuffer(data, np.uint8).reshape(self.layout.layers, len(blocks), -1)

    def _fail_if_asked(self) -> None:
        if self.failures:
            self.failures -= 1
            raise MemoryError("the pages are out of reach")


class WatchedLink:
    """A real link that lets a test see its buffers, change a frame on its way out, and make calls go wrong.

    raising: how many calls of each method, or of a receipt's withdraw, are yet to raise; close raises at its end.
    deaf: posted units are taken in and never heard of again, like those that a frozen peer has begun to write.
    muted: units that the peer takes and whose sender does not hear of it. hung: progress waits for it.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.posted: dict[int, memoryview] = {}
        self.tamper: Callable[[memoryview], None] | None = None
        self.raising: Counter[str] = Counter()
        self.deaf = False
        self.muted: frozenset[int] = frozenset()
        self.hung: threading.Event | None = None
        self.hanging = threading.Event()

    @property
    def address(self) -> str:
        return self.link.address

    def post(self, frame: FrameId, buffer: memoryview) -> Receipt:
        self._raise_if_asked("post")
        self.posted[frame.unit] = buffer
        if self.deaf and frame.unit != END_UNIT:
            return Receipt(lambda _: None)
        return self._watch(self.link.post(frame, buffer))

    def send(self, address: str, frame: FrameId, buffer: memoryview) -> Receipt:
        self._raise_if_asked("send")
        if self.tamper is not None:
            buffer = memoryview(bytearray(buffer))
            self.tamper(buffer)
        receipt = self._watch(self.link.send(address, frame, buffer))
        if frame.unit in self.muted:
            return Receipt(lambda unheard: unheard.settle(ReceiptState.FAILED, "withdrawn"))
        return receipt

    def progress(self, timeout_s: float, wake_fd: int) -> None:
        self._raise_if_asked("progress")
        if self.hung is not None:
            self.hanging.set()
            self.hung.wait(30.0)
        self.link.progress(timeout_s, wake_fd)

    def close(self) -> None:
        self.link.close()
        self._raise_if_asked("close")

    def _watch(self, receipt: Receipt) -> Receipt:
        withdraw = receipt._on_withdraw

        def watched(withdrawn: Receipt) -> None:
            self._raise_if_asked("withdraw")
            withdraw(withdrawn)

        receipt._on_withdraw = watched
        return receipt

    def _raise_if_asked(self, method: str) -> None:
        if self.raising[method]:
            self.raising[method] -= 1
            raise RuntimeError(f"{method} was made to fail")


class Peer:
    """A TransferThread over ArrayPages whose reports are kept."""

    def __init__(
        self,
        link: str,
        layout: KvLayout,
        blocks: int,
        seed: int,
        options: TransferOptions | None = None,
        *,
        switchboard: Switchboard | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.pages = ArrayPages(layout, blocks, seed)
        self.registry = CollectorRegistry()
        self.reports: queue.SimpleQueue[TransferReport] = queue.SimpleQueue()
        self.broken: queue.SimpleQueue[HeadraceError] = queue.SimpleQueue()
        self.watched: WatchedLink | None = None
        self.opens = True
        self._factory = make_link(link, host, switchboard=switchboard)
        metrics = TransferMetrics(self.registry)
        opened = LinkFactory(link, self._open)
        self.thread = TransferThread(opened, self.pages, self.reports.put, metrics, options, on_broken=self.broken.put)
        self.thread.start()

    def _open(self) -> WatchedLink:
        if not self.opens:
            raise StartupError("The link was made not to open.")
        self.watched = WatchedLink(self._factory.open())
        return self.watched

    def address(self) -> str:
        return self.thread.address

    def receive(self, ticket: Ticket, blocks: tuple[int, ...], timeout_s: float) -> None:
        self.thread.receive(ticket, blocks, timeout_s)

    def send(self, ticket: Ticket, timeout_s: float) -> None:
        self.thread.send(ticket, timeout_s)

    def advance(self, transfer: bytes, blocks: tuple[int, ...]) -> None:
        self.thread.advance(transfer, blocks)

    def cancel(self, transfer: bytes, lost: bool = False) -> None:
        self.thread.cancel(transfer, lost=lost)

    def meet(self, address: str, timeout_s: float = 20.0) -> str:
        """Why the peer at an address did not answer, "" if it did."""
        told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.thread.meet(address, lambda reason, seconds: told.put(reason))
        return told.get(timeout=timeout_s)

    def health(self) -> CarrierHealth:
        return self.thread.health

    def report(self, timeout_s: float = 20.0) -> TransferReport:
        return self.reports.get(timeout=timeout_s)

    def contents(self, blocks: Sequence[int]) -> bytes:
        return self.pages.array[:, list(blocks)].tobytes()

    def writes(self) -> int:
        return self.pages.writes

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def wait_sample(self, name: str, wanted: float, **labels: str) -> None:
        until(lambda: self.sample(name, **labels) == wanted, f"{name}{labels} == {wanted}")

    def wait_inside(self, unit: int) -> None:
        """Until the first part of a unit, and not its last, stands in its slab."""
        assert self.watched is not None
        posted = self.watched.posted
        until(lambda: unit in posted and posted[unit][len(posted[unit]) // 8] != 0, f"unit {unit} begun")
        assert posted[unit][-1] == 0, "the unit was over before it could be seen"

    def close(self, timeout_s: float = 5.0) -> None:
        self.thread.close(timeout_s)


class ProcessPeer:
    """A Peer in a child process. `process` is its handle, for signals. command: what stands before its own."""

    def __init__(self, *args: Any, command: Sequence[str] = (), **named: Any) -> None:
        self.process = subprocess.Popen(
            [*command, sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._call("__init__", *args, **named)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args, **labels: self._call(method, *args, **labels)

    def _call(self, method: str, *args: Any, **labels: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((method, args, labels), self.process.stdin)
        self.process.stdin.flush()
        answer, error = pickle.load(self.process.stdout)
        if error is not None:
            raise AssertionError(error)
        return answer

    def close(self, timeout_s: float = 5.0) -> str:
        """Ends the child and returns what it wrote to standard error."""
        if self.process.poll() is None:
            self._call("close", timeout_s)
        return self.end()

    def end(self) -> str:
        self.process.kill()
        _, errors = self.process.communicate(timeout=10)
        return errors.decode()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Poll a condition that another thread or process brings about, leaving the interpreter to that thread."""
    give_up_at = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up_at, f"waited in vain: {what}"
        pause.wait(0.001)


class Tickets:
    """Makes tickets as a decode worker does: a nonce per incarnation, then a counter."""

    def __init__(self) -> None:
        self._nonce = os.urandom(8)
        self._count = 0

    def make(self, link: str, address: str, layout: KvLayout, blocks: int, unit_blocks: int = 4) -> Ticket:
        self._count += 1
        return Ticket(
            transfer=self._nonce + self._count.to_bytes(8, "big"),
            secret=os.urandom(16),
            job=f"job-{self._count}",
            attempt=1,
            source=WorkerRef("prefill-0", "a1"),
            target=WorkerRef("decode-0", "b1"),
            model_digest=b"m" * 16,
            layout=layout,
            first_block=3,
            block_count=blocks,
            unit_blocks=unit_blocks,
            link=link,
            address=address,
        )


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is logged must not mix with the answers
    peer: Peer | None = None
    while True:
        try:
            method, args, labels = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer, error = None, None
        try:
            if peer is None:
                peer = Peer(*args, **labels)
            else:
                answer = getattr(peer, method)(*args, **labels)
        except Exception as raised:
            error = repr(raised)
        pickle.dump((answer, error), answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
