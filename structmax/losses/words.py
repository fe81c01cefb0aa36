"""Which of the words a process has, where a vocabulary is split over the processes of a group.

Each has a slice of every row: the first its first words, the next the words that follow. Slices may differ in size, and
one may be empty. What is summed over words is summed here, and then over the processes.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Words:
    """`size` words from `start` on, of `total`. Without a group they are all here."""

    size: int
    start: int
    total: int
    # that of the process that has most
    largest: int
    group: "ProcessGroup | None" = None

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, written to the tensor itself."""
        return self._reduce(tensor, "SUM")

    def maximum(self, tensor: Tensor) -> Tensor:
        """The largest over the processes, written to the tensor itself."""
        return self._reduce(tensor, "MAX")

    def _reduce(self, tensor: Tensor, operation: str) -> Tensor:
        if self.group is not None:
            from torch import distributed

            distributed.all_reduce(tensor, getattr(distributed.ReduceOp, operation), group=self.group)
        return tensor


def alone(size: int) -> Words:
    """All words."""
    return Words(size, 0, size, size)


def across(group: "ProcessGroup", size: int, rows: int, device: torch.device) -> Words:
    """The `size` words of this process among those of its group, which tell one another how many they have."""
    from torch import distributed

    rank = distributed.get_rank(group)
    if rank < 0:
        raise ValueError("`group` should be a group of processes that this one belongs to, but it does not.")
    mine = torch.tensor([size, rows], device=device)
    told = [torch.empty_like(mine) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(told, mine, group=group)
    sizes, counts = torch.stack(told, 1).tolist()
    # A collective of tensors that differ in size would wait for ever, or end the process.
    if len(set(counts)) > 1:
        raise ValueError(
            f"All processes of `group` should have the same rows, each its own words of them, but have {counts} rows."
        )
    if sum(sizes) == 0:
        raise ValueError("The processes of `group` should have at least one word between them, but have none.")
    return Words(size, sum(sizes[:rank]), sum(sizes), max(sizes), group)


# ---------------------------------------------------------------- DTensors


def is_dtensor(value: object) -> bool:
    """Whoever has made a DTensor has imported its module, which takes a while."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def slice_of(name: str, tensor: Tensor, dim: int) -> tuple[Tensor, "ProcessGroup"]:
    """The words along `dim` that this process has of a DTensor, and the processes it is split over."""
    from torch.distributed.tensor import Shard

    given: Any = tensor
    where = dim % tensor.dim()
    if given.device_mesh.ndim != 1 or not given.placements[0].is_shard(where):
        raise ValueError(
            f"`{name}` as a DTensor should be split along its words on a mesh of one dimension, "
            f"[Shard({where})], but is {list(given.placements)} on a mesh of {tuple(given.device_mesh.shape)}. "
            f"Try `{name}.redistribute(placements=[Shard({where})])`, or give this process's part of it and `group`."
        )
    return given.to_local(grad_placements=[Shard(where)]), given.device_mesh.get_group()


def whole_of(name: str, tensor: Tensor) -> Tensor:
    """What every process has the same of: a tensor, or a DTensor that is replicated."""
    if not is_dtensor(tensor):
        return tensor
    from torch.distributed.tensor import Replicate

    given: Any = tensor
    if not all(placement.is_replicate() for placement in given.placements):
        raise ValueError(
            f"`{name}` as a DTensor should be the same on all processes, [Replicate()], but is "
            f"{list(given.placements)}. Try `{name}.redistribute(placements=[Replicate()])`."
        )
    return given.to_local(grad_placements=[Replicate()] * len(given.placements))


def like(loss: Tensor, given: Tensor) -> Tensor:
    """A loss that all processes have, as a DTensor where the scores are one."""
    if not is_dtensor(given):
        return loss
    from torch.distributed.tensor import DTensor, Replicate

    mesh = given.device_mesh  # type: ignore[attr-defined]
    return DTensor.from_local(loss, mesh, [Replicate()] * mesh.ndim, run_check=False)
