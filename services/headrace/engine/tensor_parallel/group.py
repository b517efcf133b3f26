"""The exchanges between a replica's ranks, over torch.distributed: gloo for tensors in host memory, NCCL on GPUs.

Owns one process group, private to the replica. It knows no model and no processes.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from headrace.core.errors import HeadraceError

# A pass of all ranks takes seconds at most: one that is silent for longer has stopped, or its machine has.
LIMIT = timedelta(seconds=60)


class _Group(Protocol):
    """What torch's stubs leave out of its backends."""

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> dist.Work: ...

    def broadcast(self, tensors: list[Tensor], options: dist.BroadcastOptions) -> dist.Work: ...


class GroupParallel:
    """See Parallel. It exchanges nothing before `join`.

    lost: makes the error of an exchange that will never be complete.
    """

    def __init__(self, rank: int, size: int, lost: Callable[[], HeadraceError]) -> None:
        self._rank = rank
        self._size = size
        self._lost = lost
        self._group: _Group | None = None

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def join(self, store: Store, device: torch.device) -> None:
        """Meet the other ranks at `store`. Blocks until all are there."""
        try:
            self._group = _nccl(store, self) if device.type == "cuda" else _gloo(store, self)
        except RuntimeError as error:
            raise self._lost() from error

    def leave(self) -> None:
        """Close the group: exchanges that others wait in end."""
        self._group = None

    def sum(self, tensor: Tensor) -> Tensor:
        """Added in the ranks' order on every rank, in float32: a ring would add each part in another order, and the
        parts of a row depend on how many rows there are."""
        first, *others = self._everybodys(tensor)
        total = first.float()
        for other in others:
            total = total + other
        return total.to(tensor.dtype)

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._everybodys(tensor), dim=-1)

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's tensor, into everybody's."""
        self._wait(lambda group: group.broadcast([tensor], dist.BroadcastOptions()))

    def _everybodys(self, tensor: Tensor) -> list[Tensor]:
        outputs = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self._size)]
        self._wait(lambda group: group.allgather([outputs], [tensor.contiguous()]))
        return outputs

    def _wait(self, exchange: Callable[[_Group], dist.Work]) -> None:
        assert self._group is not None, "the ranks have not met"
        try:
            exchange(self._group).wait(LIMIT)
        except RuntimeError as error:
            raise self._lost() from error


def _gloo(store: Store, member: GroupParallel) -> _Group:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads, options._timeout = 1, LIMIT
    return cast(_Group, ProcessGroupGloo(PrefixStore("ranks", store), member.rank, member.size, options))


def _nccl(store: Store, member: GroupParallel) -> _Group:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = LIMIT
    return cast(_Group, dist.ProcessGroupNCCL(PrefixStore("ranks", store), member.rank, member.size, options))
