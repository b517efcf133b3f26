"""Private process groups of two ranks: how a pair meets, and chunks through gloo or NCCL.

Owns the store at which groups of one link meet, and each group's staging memory. It knows no frames, threads or
sockets. Nothing here is global: the default process group belongs to tensor parallelism.
"""

import contextlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

from headrace.core.errors import StartupError
from headrace.transfer.data_address import listen
from headrace.transfer.nccl_lane import STAGES, Bytes, Channel, Direction

_CHUNK_BYTES = 4 << 20
# Longest that a peer may take to appear, and to move one chunk.
_LIMIT = timedelta(seconds=5)
_POLL_S = 0.0001
_TAG = 0


class _Group(Protocol):
    """What torch's stubs leave out of its backends."""

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work: ...

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work: ...

    def abort(self) -> None: ...


class Meeting:
    """Where peers make groups with this link: a store on a free port of `host`. Raises StartupError.

    What two ranks tell each other there is deleted by the receiving one when the group is over.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
        if self._on_gpu:
            # Else torch's watchdog ends this process when a peer dies. It has no such setting for one group.
            os.putenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        try:
            listener = listen(host)
            self.port: int = listener.getsockname()[1]
            self._device = ProcessGroupGloo.create_device(hostname=host)
            self._store = TCPStore(
                host,
                self.port,
                is_master=True,
                timeout=_LIMIT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        except (OSError, RuntimeError) as error:
            raise StartupError(f"The nccl link cannot listen on {host} ({error}).") from error

    def receive(self, name: str) -> Channel:
        """The receiving end of a group that a peer named. Blocks until the peer is there, for seconds at most.

        Raises RuntimeError."""
        return self._join(self._host, self.port, name, Direction.IN)

    def send(self, host: str, port: int, name: str) -> Channel:
        """The sending end of a group that meets at a peer's store; likewise."""
        return self._join(host, port, name, Direction.OUT)

    def _join(self, host: str, port: int, name: str, direction: Direction) -> Channel:
        store = TCPStore(host, port, is_master=False, timeout=_LIMIT, wait_for_workers=False)
        # The store lives in the receiver's process, for as long as its link does.
        forget = partial(_forget, store, name) if direction is Direction.IN else _keep
        try:
            private = PrefixStore(name, store)
            if self._on_gpu:
                return _Nccl(private, direction, forget)
            return _Gloo(private, direction, forget, self._device)
        except RuntimeError:
            forget()
            raise


def _forget(store: Store, name: str) -> None:
    """Delete what was told under a group's name. The store may be gone already."""
    with contextlib.suppress(RuntimeError):
        for key in store.list_keys():
            if name in key:
                store.delete_key(key.removeprefix("/"))


def _keep() -> None:
    """What stands in somebody else's store is theirs to delete."""


class _Gloo:
    """Over gloo's own TCP connection, from and into host memory. The receiver is rank 0."""

    def __init__(
        self, store: Store, direction: Direction, forget: Callable[[], None], device: ProcessGroupGloo.Device
    ) -> None:
        self._forget = forget
        self._out = direction is Direction.OUT
        rank, self._peer = (1, 0) if self._out else (0, 1)
        self._tensors = [torch.empty(_CHUNK_BYTES, dtype=torch.uint8) for _ in range(STAGES)]
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices, options._threads, options._timeout = [device], 1, _LIMIT
        self._group = cast(_Group, ProcessGroupGloo(store, rank, 2, options))

    @property
    def stages(self) -> tuple[Bytes, ...]:
        return tuple(tensor.numpy() for tensor in self._tensors)

    def start(self, stage: int, nbytes: int) -> Callable[[], None]:
        chunk = [self._tensors[stage][:nbytes]]
        work = self._group.send(chunk, self._peer, _TAG) if self._out else self._group.recv(chunk, self._peer, _TAG)

        def wait() -> None:
            work.wait(_LIMIT)

        return wait

    def close(self) -> None:
        # Its connection closes with the last reference: a peer that waits for us hears of it.
        del self._group
        self._forget()


class _Nccl:
    """Over NCCL, by way of device memory: pages stand in host slabs on both sides. The receiver is rank 0."""

    def __init__(self, store: Store, direction: Direction, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._out = direction is Direction.OUT
        rank, self._peer = (1, 0) if self._out else (0, 1)
        self._tensors = [torch.empty(_CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(STAGES)]
        self._on_device = [torch.empty(_CHUNK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(STAGES)]
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _LIMIT
        self._group = cast(_Group, dist.ProcessGroupNCCL(store, rank, 2, options))

    @property
    def stages(self) -> tuple[Bytes, ...]:
        return tuple(tensor.numpy() for tensor in self._tensors)

    def start(self, stage: int, nbytes: int) -> Callable[[], None]:
        host, device = self._tensors[stage][:nbytes], self._on_device[stage][:nbytes]
        with torch.cuda.stream(self._stream):
            if self._out:
                device.copy_(host, non_blocking=True)
                self._group.send([device], self._peer, _TAG).wait()
            else:
                self._group.recv([device], self._peer, _TAG).wait()
                host.copy_(device, non_blocking=True)
            done = self._stream.record_event()

        def wait() -> None:
            give_up_at = time.monotonic() + _LIMIT.total_seconds()
            while not done.query():
                if time.monotonic() > give_up_at:
                    raise RuntimeError("nothing moved for too long")
                time.sleep(_POLL_S)

        return wait

    def close(self) -> None:
        # What is under way would keep the device busy for ever.
        self._group.abort()
        self._forget()
