"""What modules that build binary trees are given: the leaves, and how many there are of them."""

import torch
from torch import Tensor

from structmax import check


def count_leaves(name: str, leaves: Tensor, lengths: Tensor | None, size: int) -> Tensor:
    """The number of leaves of each instance, in the batch shape, from leaves (…, N, size) and lengths as given."""
    check.floating(name, leaves)
    if leaves.dim() < 2 or leaves.shape[-1] != size or leaves.shape[-2] == 0:
        raise ValueError(
            f"`{name}` should have shape (…, N, D) with N ≥ 1 and D = {size}, a row for each leaf, "
            f"but have {tuple(leaves.shape)}."
        )
    *batch, N, _ = leaves.shape
    check.lengths("lengths", lengths, batch, N, "leaves")
    counts = torch.tensor(N) if lengths is None else lengths
    return counts.to(leaves.device).expand(batch)
