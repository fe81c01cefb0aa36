"""The processes that train together. One, unless torchrun started several.

Each takes its share of every batch. Losses are means over instances, so the gradient of the batch is the sum of the
processes' gradients, each times the part of the batch it is the mean of: right for uneven shares too. A process whose
share is empty takes an instance that counts nothing, so that all make the same steps.
"""

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from structmax.training.errors import RunError
from structmax.training.task import Metrics

# the first evaluates while the others wait; a process that ends early ends the others
PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Processes:
    """How many there are, which of them this one is, and the device it computes on."""

    device: torch.device
    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def share(self, indices: Tensor) -> tuple[Tensor, float]:
        """The instances of this process, and the part of the batch they are.

        Examples:
            >>> Processes(torch.device("cpu"), rank=1, count=2).share(torch.arange(5))
            (tensor([1, 3]), 0.4)
        """
        mine = indices[self.rank :: self.count]
        return (mine, len(mine) / len(indices)) if len(mine) else (indices[:1], 0.0)

    def agreed(self, *values: float) -> list[float]:
        """The largest of each value over all processes. They meet on the CPU: no GPU is waited for."""
        if self.count == 1:
            return list(values)
        met = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(met, dist.ReduceOp.MAX)
        return met.tolist()

    def from_first(self, value: Any) -> Any:
        """What the first process has."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each process has, in the order of their ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def begin_alike(self, model: nn.Module) -> None:
        """Parameters and buffers of the first process, for all."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def average(self, parameters: Sequence[nn.Parameter], metrics: Metrics, share: float) -> Metrics:
        """Sets the gradients of the whole batch and returns its metrics, in one all-reduce.

        A parameter without a gradient here counts as zero; one without a gradient anywhere keeps none.
        """
        if self.count == 1:
            return metrics
        has_gradient = self.agreed(*(parameter.grad is not None for parameter in parameters))
        trained = [parameter for parameter, has in zip(parameters, has_gradient, strict=True) if has]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        reported = [value.detach().reshape(1) for value in metrics.values()]
        gradients = [parameter.grad.flatten() for parameter in trained if parameter.grad is not None]
        flat = torch.cat(gradients + reported).mul_(share)
        dist.all_reduce(flat)
        pieces = flat.split([*(parameter.numel() for parameter in trained), len(reported)])
        for parameter, piece in zip(trained, pieces[:-1], strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(piece.view_as(parameter))
        # a copy, since metrics are kept for a while and would keep the gradients with them
        return dict(zip(metrics, pieces[-1].clone().unbind(), strict=True))


def joined(device: str) -> Processes:
    """This process among those torchrun started, each on a device of its own. They stay joined until they end."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    place = device_of(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if count > 1 else place.index or 0)
        torch.cuda.set_device(place)
    if count == 1:
        return Processes(place)
    if not dist.is_initialized():
        # plain numbers meet on the CPU
        dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Processes(place, dist.get_rank(), count)


def device_of(name: str) -> torch.device:
    """The device of that name; or a `RunError`, if there is none.

    Examples:
        >>> device_of("cpu")
        device(type='cpu')
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not number.isdecimal()):
        raise RunError(f"`device` should be auto, cpu or a GPU such as cuda:1, but is {name!r}.")
    if kind == "cuda" and int(number or 0) >= gpus:
        found = f"cuda:0 to cuda:{gpus - 1}" if gpus else "no GPU"
        raise RunError(f"`device` should exist on this machine, but is {name!r}: it has {found}. Try auto.")
    return torch.device(("cuda" if gpus else "cpu") if kind == "auto" else name)
