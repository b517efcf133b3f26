"""A Graph that CUDA records and replays: the calls that PyTorch's notes on CUDA graphs prescribe, and nothing else.

Owns the stream of the captures and the memory pool that all graphs share.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Kernels are compiled, and libraries take their workspaces, at the first launches: none of it may be recorded.
_WARM_UP = 2


class CudaGraphs:
    """Makes graphs that share one pool of memory: never replay two at once, and use what one returned before the next
    is replayed. They are captured on one side stream, as sharing asks for."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self) -> "CudaGraph":
        return CudaGraph(self._pool, self._stream)


class CudaGraph:
    """See Graph. pool, stream: those of CudaGraphs."""

    def __init__(self, pool: tuple[int, int], stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool
        self._stream = stream
        self._result: Tensor | None = None

    def capture(self, function: Callable[[], Tensor]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(self._stream)
        with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream):
            self._result = function()

    def replay(self) -> Tensor:
        assert self._result is not None, "a graph is captured before it is replayed"
        self._graph.replay()
        return self._result
