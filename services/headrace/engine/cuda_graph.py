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
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self) -> "CudaGraph":
        return CudaGraph(self)


class CudaGraph:
    """See Graph. shared: with which others."""

    def __init__(self, shared: CudaGraphs) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._shared = shared
        self._result: Tensor | None = None

    def capture(self, function: Callable[[], Tensor]) -> None:
        stream = self._shared.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph, pool=self._shared.pool, stream=stream):
            self._result = function()

    def replay(self) -> Tensor:
        assert self._result is not None, "a graph is captured before it is replayed"
        self._graph.replay()
        return self._result
