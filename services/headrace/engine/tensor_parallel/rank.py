"""A rank beside rank 0: a process that loads its share of a model and computes what it is told.

    python -m headrace.engine.tensor_parallel.rank DESCRIPTOR

Owns its share of weights and pages. It knows no sequence, no sampling and no other process than those it exchanges
with; it ends when the socket to rank 0, `DESCRIPTOR`, closes or an exchange fails.
"""

import mmap
import signal
import socket
import sys
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from headrace.core.errors import HeadraceError, WorkerLost
from headrace.engine.batch import make_batch
from headrace.engine.ops import PagedKv
from headrace.engine.tensor_parallel.commands import LEFT_ALONE, Kind, Start, receive, send, unpack_step
from headrace.engine.tensor_parallel.group import LIMIT, GroupParallel
from headrace.engine.torch_build import load_model
from headrace.engine.torch_decoder import TorchDecoder
from headrace.engine.weights.load import DTYPES


class Rank:
    """Makes the two calls of rank 0's Model with this rank's share."""

    def __init__(self, start: Start, model: TorchDecoder, parallel: GroupParallel) -> None:
        self._model = model
        self._parallel = parallel
        self._dtype = DTYPES[start.layout.dtype]
        pages = mmap.mmap(start.pages, 0)
        share = start.num_blocks * start.layout.block_bytes
        memory = np.frombuffer(pages, dtype=np.uint8, offset=start.rank * share, count=share)
        shaped = torch.from_numpy(memory.reshape(start.layout.layers, start.num_blocks, -1))
        self._kv = PagedKv(shaped, start.layout, self._dtype, batch_invariant=start.batch_invariant)
        self._width = model.width

    def follow(self, connection: socket.socket) -> NoReturn:
        """Do what rank 0 says. Raises EOFError once it is gone, WorkerLost if another rank is."""
        while True:
            kind, payload = receive(connection)
            if kind is Kind.STEP:
                self._step(payload)
            else:
                self._logits(payload)

    def _step(self, payload: bytes) -> None:
        batch = make_batch(unpack_step(payload), self._kv.layout, self._kv.page_multiple)
        self._model.forward(batch, self._kv)

    def _logits(self, payload: bytes) -> None:
        hidden: Tensor = torch.empty(int.from_bytes(payload, "little"), self._width, dtype=self._dtype)
        self._parallel.broadcast(hidden)
        self._model.logits(hidden)


def main(descriptor: int) -> int:
    """The exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches us too, and rank 0 has to drain
    connection = socket.socket(fileno=descriptor)
    try:
        rank = _started(connection)
        if rank is None:
            return 1
        with torch.inference_mode():
            rank.follow(connection)
    except (EOFError, ConnectionError):
        return 0
    except WorkerLost:
        return LEFT_ALONE


def _started(connection: socket.socket) -> Rank | None:
    """A rank that has met the others; None after an error that rank 0 was told."""
    _, payload = receive(connection)
    start = Start.unpack(payload)
    torch.set_num_threads(start.threads)
    parallel = GroupParallel(start.rank, start.size, lambda: WorkerLost("The other ranks are gone."))
    try:
        model = load_model(start.files, DTYPES[start.layout.dtype], start.max_model_len, parallel)
        rank = Rank(start, model, parallel)
    except (HeadraceError, OSError, MemoryError) as error:
        send(connection, Kind.FAILED, str(error).encode())
        return None
    send(connection, Kind.READY)
    store = TCPStore("127.0.0.1", start.port, is_master=False, timeout=LIMIT, wait_for_workers=False)
    parallel.join(store, torch.device("cpu"))
    return rank


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
