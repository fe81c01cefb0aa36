"""Mixtures of listed structures, and how they respond to a change of scores. Derivation: README.md in this folder.

`lists` (B, K, L) names the parts of each structure in the flat vector of an instance, P parts long; P itself fills them
up. `factor` (B, K, K) is R, upper triangular, with RᵀR = G + 1 for the first `ranks` (B,) structures: its other
entries are ignored.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.contract import returns

# A few operators of torch: on a GPU they are faster than copies to the host and back.
ON_DEVICE = ("mixture", "response")


@returns("state")
def mixture(flat: Tensor, lists: Tensor, weights: Tensor) -> Tensor:
    """Σ_k weights[k] y_k for weights (B, K), in shape and dtype of `flat` (B, P), whose values do not matter."""
    B, K, L = lists.shape
    out = weights.new_zeros(B, flat.shape[1] + 1)
    out.scatter_add_(1, lists.reshape(B, K * L).long(), weights.unsqueeze(2).expand(B, K, L).reshape(B, K * L))
    return out[:, :-1].to(flat.dtype)


@returns("state", "state")
def response(flat: Tensor, change: Tensor, lists: Tensor, factor: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """The change of weights q = Z (Mᵀ flat + change) and of the mixture M q: (B, K), (B, P).

    For a change of scores `flat` (B, P) and of the scores of whole structures, `change` (B, K).
    """
    B, K, L = lists.shape
    padded = torch.nn.functional.pad(flat.to(factor.dtype), (0, 1))
    v = padded.gather(1, lists.reshape(B, K * L).long()).reshape(B, K, L).sum(2) + change
    counts = torch.arange(K, device=flat.device) < ranks.unsqueeze(1)
    v = torch.where(counts, v, 0.0)
    both = counts.unsqueeze(1) & counts.unsqueeze(2)
    triangle = torch.where(both, factor, torch.eye(K, dtype=factor.dtype, device=flat.device)).triu()
    ones = counts.to(factor.dtype)
    z = torch.linalg.solve_triangular(triangle.mT, torch.stack([v, ones], 2), upper=False)
    z_v, z_one = z.unbind(2)
    share = (z_v * z_one).sum(1, keepdim=True) / (z_one * z_one).sum(1, keepdim=True).clamp_min(1e-300)
    q = torch.linalg.solve_triangular(triangle, (z_v - share * z_one).unsqueeze(2), upper=True).squeeze(2)
    return q.to(flat.dtype), mixture(flat, lists, q)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    lists = torch.zeros(len(x), 1, 1, dtype=torch.int32, device=x.device)
    weights = torch.ones(len(x), 1, dtype=torch.float64, device=x.device)
    ranks = torch.ones(len(x), dtype=torch.int64, device=x.device)
    yield "mixture", (x,), {"lists": lists, "weights": weights}
    yield "response", (x, weights.to(x.dtype)), {"lists": lists, "factor": weights.unsqueeze(2), "ranks": ranks}
