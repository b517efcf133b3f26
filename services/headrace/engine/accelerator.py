"""The GPU that a replica's tensors lie on, if it has one.

Owns what is asked of it at the start: whether it is there, what it is called, and how much of its memory is free.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.core.errors import StartupError
from headrace.engine.captured_decode import Graph
from headrace.engine.cuda_graph import CudaGraphs
from headrace.engine.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Accelerator:
    """name: who computes there, for people. free_bytes: at the start. make_graph: of decode steps; None: all run
    eagerly."""

    device: torch.device
    name: str
    free_bytes: int
    make_graph: Callable[[], Graph] | None


def pick_accelerator(options: EngineOptions) -> Accelerator | None:
    """The one that `options` ask for; None for the CPU. Raises StartupError if there is none."""
    if options.device == "cpu":
        return None
    if not torch.cuda.is_available():
        raise StartupError(
            "There is no CUDA device that torch can use.",
            remedy="Leave out --device, or install the driver and a torch built for CUDA (this one is"
            f" {torch.__version__}).",
        )
    free, _ = torch.cuda.mem_get_info()
    return Accelerator(
        torch.device("cuda"),
        f"triton on {torch.cuda.get_device_name()}",
        free,
        None if options.enforce_eager else CudaGraphs(),
    )
