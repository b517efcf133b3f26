"""The ranks of a replica as rank 0 has them: started, told what to compute, watched, ended.

Owns the other ranks' processes, the sockets to them and the memory of all pages, which all ranks share, each its heads:
so rank 0 moves whole pages alone. A rank that dies or stops ends the replica: there is nobody to take its place.
"""

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from headrace.core.errors import HeadraceError, StartupError, WorkerLost
from headrace.engine.batch import Batch
from headrace.engine.models.attention import rank_heads
from headrace.engine.ops import PagedKv
from headrace.engine.options import EngineOptions, PoolSize
from headrace.engine.page_memory import PageMemory
from headrace.engine.tensor_parallel.commands import LEFT_ALONE, Kind, Start, pack_step, receive, send
from headrace.engine.tensor_parallel.group import LIMIT, GroupParallel
from headrace.engine.torch_decoder import TorchDecoder
from headrace.modelfiles.files import ModelFiles

_HOST = "127.0.0.1"
# What a rank's end takes to be seen once its connections are closed, and what it gets to end by itself.
_SEEN_S, _GRACE_S = 2.0, 3.0
_LOADS_S = 1800.0
_LOGS = "Its last words stand on standard error, in the worker's log."


@dataclass(frozen=True, slots=True)
class _Peer:
    """A rank other than 0."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: socket.socket


class Ranks:
    """Ranks 1 .. size - 1, from `start_ranks` to `stop`. parallel: rank 0's end. layout: of one rank's share."""

    def __init__(self, size: int, pool: PoolSize) -> None:
        self.size = size
        self.layout = replace(pool.layout, kv_heads=pool.layout.kv_heads // size)
        self.parallel = GroupParallel(0, size, self.lost)
        self._peers: list[_Peer] = []
        self._descriptor = os.memfd_create("headrace-kv-pages")
        os.ftruncate(self._descriptor, pool.num_blocks * pool.layout.block_bytes)
        memory = np.frombuffer(mmap.mmap(self._descriptor, 0), dtype=np.uint8)
        self.pages = PageMemory(pool.layout, pool.num_blocks, ranks=size, memory=memory)
        listener = socket.create_server((_HOST, 0))
        self._port: int = listener.getsockname()[1]
        self._store = TCPStore(
            _HOST, self._port, is_master=True, timeout=LIMIT, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    @property
    def pids(self) -> list[int]:
        """Of ranks 1 .. size - 1."""
        return [peer.process.pid for peer in self._peers]

    def start(self, rank: int, files: ModelFiles, options: EngineOptions, pool: PoolSize) -> None:
        """One more process. It loads its share by itself."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_LOADS_S)
        with theirs:
            command = [sys.executable, "-m", "headrace.engine.tensor_parallel.rank", str(theirs.fileno())]
            inherited = (theirs.fileno(), self._descriptor)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=inherited)
        self._peers.append(_Peer(rank, process, ours))
        start = Start(
            files=files,
            rank=rank,
            size=self.size,
            port=self._port,
            layout=self.layout,
            num_blocks=pool.num_blocks,
            pages=self._descriptor,
            max_model_len=pool.max_model_len,
            threads=threads_of_rank(options),
            batch_invariant=options.batch_invariant,
        )
        self._tell(self._peers[-1], Kind.START, start.pack())

    def close_descriptor(self) -> None:
        """All processes are started: who shares the pages has them."""
        os.close(self._descriptor)

    def meet(self) -> None:
        """Wait until every rank has loaded its share. Raises StartupError if one cannot."""
        for peer in self._peers:
            try:
                kind, payload = receive(peer.connection)
            except (EOFError, OSError) as error:
                raise StartupError(f"{self._ending(peer)} while it loaded the model.", remedy=_LOGS) from error
            if kind is not Kind.READY:
                raise StartupError(f"Rank {peer.rank} of {self.size} cannot start: {payload.decode()}")
            peer.connection.settimeout(LIMIT.total_seconds())
        self.parallel.join(self._store, torch.device("cpu"))

    def tell(self, kind: Kind, payload: bytes) -> None:
        """Raises WorkerLost if a rank is gone."""
        for peer in self._peers:
            self._tell(peer, kind, payload)

    def lost(self) -> HeadraceError:
        """The error that names the rank that ended, or says that none did and one is silent."""
        give_up_at = time.monotonic() + _SEEN_S
        while time.monotonic() < give_up_at:
            dead = [peer for peer in self._peers if peer.process.poll() is not None]
            # Those that were left alone by the one that died say so by their exit code.
            culprits = [peer for peer in dead if peer.process.returncode != LEFT_ALONE] or dead
            if culprits:
                return WorkerLost(f"{self._ending(culprits[0])}.", remedy="The worker restarts; try again.")
            time.sleep(0.01)
        return WorkerLost(
            f"A rank of {self.size} has not answered for {LIMIT.total_seconds():.0f} s.",
            remedy="The worker restarts; try again.",
        )

    async def watch(self) -> None:
        """Raises WorkerLost once a rank ends. Ranks say nothing unasked: what can be read is their end."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for peer in self._peers:
            loop.add_reader(peer.connection, ended.set)
        try:
            await ended.wait()
        finally:
            for peer in self._peers:
                loop.remove_reader(peer.connection)
        raise await asyncio.to_thread(self.lost)

    def stop(self) -> None:
        """End all ranks: those in an exchange by leaving it, those that do not end in time by force."""
        for peer in self._peers:
            peer.connection.close()
        self.parallel.leave()
        give_up_at = time.monotonic() + _GRACE_S
        for peer in self._peers:
            try:
                peer.process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                peer.process.kill()
                peer.process.wait()
        self._peers.clear()

    def _tell(self, peer: _Peer, kind: Kind, payload: bytes) -> None:
        try:
            send(peer.connection, kind, payload)
        except OSError as error:
            raise self.lost() from error

    def _ending(self, peer: _Peer) -> str:
        try:
            code = peer.process.wait(_SEEN_S)
        except subprocess.TimeoutExpired:
            return f"Rank {peer.rank} of {self.size} closed its connection"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"Rank {peer.rank} of {self.size} {how}"


@dataclass(frozen=True, slots=True)
class Leader:
    """The TensorModel of rank 0: every pass is told to the other ranks first."""

    model: TorchDecoder
    ranks: Ranks

    def forward(self, batch: Batch, kv: PagedKv) -> Tensor:
        """See TensorModel."""
        self.ranks.tell(Kind.STEP, pack_step(batch.spans, kv.layout.block_tokens))
        return self.model.forward(batch, kv)

    def logits(self, hidden: Tensor) -> Tensor:
        """See TensorModel."""
        self.ranks.tell(Kind.LOGITS, len(hidden).to_bytes(4, "little"))
        self.ranks.parallel.broadcast(hidden)
        return self.model.logits(hidden)


def start_ranks(files: ModelFiles, options: EngineOptions, pool: PoolSize) -> Ranks:
    """The processes, loading by now. Raises StartupError if the model cannot be shared out; ends what it started
    if it fails."""
    size = options.tensor_parallel_size
    rank_heads(files.config, size)
    ranks = Ranks(size, pool)
    try:
        for rank in range(1, size):
            ranks.start(rank, files, options, pool)
    except BaseException:
        ranks.stop()
        raise
    finally:
        ranks.close_descriptor()
    return ranks


def threads_of_rank(options: EngineOptions) -> int:
    """A rank's part of the replica's threads, at least one."""
    return max(1, (options.threads or os.cpu_count() or 1) // options.tensor_parallel_size)
