"""Soft sorting and ranking: sorting is a linear program over permutations, and a regulariser makes it differentiable.

    permutation(x) = argmax over P in conv(permutation matrices) of ⟨ρ, P x⟩ − Ω(P)          ρ = (1, 2, …, n)
    rank(x)        = argmax over y in conv(permutations of ρ)    of ⟨x, y⟩ − t/2 ‖y‖²
    sort(x)        = argmax over y in conv(permutations of x)    of ⟨ρ, y⟩ − t/2 ‖y‖²

The last two are projections onto a permutahedron, which cost no more than a sort. With z and w in descending order, the
projection of z onto the hull of the permutations of w is z − v, where v is the non-increasing sequence nearest to
z − w. That pools neighbours into blocks, so in each block the projection is z − mean z + mean w: its Jacobians are
averages over blocks.

Reference: Blondel, Teboul, Berthet & Djolonga 2020, Fast differentiable sorting and ranking.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.applications.sinkhorn import sinkhorn
from structmax.autograd import rule
from structmax.calling import ask
from structmax.mappings.proximal import ROOM, group_mean_rule
from structmax.omega.smooth import Entropy
from structmax.omega.squared_norm import SquaredNorm
from structmax.questions.sparse_marginals import sparse_marginals
from structmax.structures.matching import Matching

UNIT = SquaredNorm()


class Blocks(Function):
    """The blocks that the projection pools: piecewise constant."""

    @staticmethod
    def forward(z: Tensor, w: Tensor, scale: float, backend: str) -> Tensor:
        return ask(ROOM, "isotonic_groups", (z,), z.dim() - 1, backend, weights=w, scale=scale)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[None, ...]:
        return None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        return None


blocks_rule = rule(Blocks)


def _projected(z: Tensor, w: Tensor, temperature: float, backend: str) -> Tensor:
    """z/t onto the hull of the permutations of w; all of shape (…, n), z and w in descending order."""
    groups = blocks_rule(z.detach(), w.detach(), 1 / temperature, backend)
    # so written, an entry that is a block of its own is exactly that of w, however small t is
    spread = (z - group_mean_rule(z, groups, None, backend)) / temperature
    return spread + group_mean_rule(w, groups, None, backend)


def _checked(values: Tensor, omega: object) -> Tensor:
    check.axis(values, -1)
    wanted = "SquaredNorm(temperature) or Entropy(temperature)"
    check.instance("omega", omega, Entropy | SquaredNorm, wanted, " Try `SquaredNorm(0.1)`.")
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _positions(x: Tensor) -> Tensor:
    """1, 2, …, n."""
    return torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)


def soft_permutation(
    values: Tensor,
    omega: Entropy | SquaredNorm = UNIT,
    *,
    descending: bool = False,
    backend: str = "auto",
) -> Tensor:
    """A doubly stochastic matrix P that nearly sorts: P x is about x in order, and exactly that as temperature falls.

    P = argmax of ⟨ρ, P x⟩ − Ω(P) over doubly stochastic matrices, where ρ = (1, …, n), so the temperature has the
    unit of the values: neighbours in the order are mixed if they differ by less than about that, whatever n is.

    Args:
        values: x (…, n), finite.
        omega: `omega.SquaredNorm(t)`, t/2 ‖P‖², for a sparse P (`sparse_marginals`), or `omega.Entropy(t)` for a dense
            one (`sinkhorn`).
        descending: the greatest value first.
        backend: "auto", "numba" or "reference".

    Returns:
        (…, n, n): row i is a distribution over the values that may stand at position i. Differentiable.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([3.0, 1.0, 1.5])
        >>> p = structmax.soft_permutation(x, structmax.omega.SquaredNorm(0.5))
        >>> p
        tensor([[0.0000, 0.7500, 0.2500],
                [0.0000, 0.2500, 0.7500],
                [1.0000, 0.0000, 0.0000]])

    Reference: Cuturi, Teboul & Vert 2019, https://arxiv.org/abs/1905.11885.
    """
    x = _checked(values, omega)
    # shifting positions or values changes nothing but the size of the scores
    rank = _positions(x) - (x.shape[-1] + 1) / 2
    theta = (-rank if descending else rank).unsqueeze(-1) * (x - x.detach().mean(-1, keepdim=True)).unsqueeze(-2)
    if isinstance(omega, SquaredNorm):
        return sparse_marginals(theta, Matching(), temperature=omega.temperature, backend=backend).to(values.dtype)
    return sinkhorn(theta, temperature=omega.temperature, backend=backend).marginals.to(values.dtype)


def soft_rank(
    values: Tensor,
    omega: Entropy | SquaredNorm = UNIT,
    *,
    descending: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Ranks that move with the values: 1 for the least, n for the greatest, ties share the mean of theirs.

    With SquaredNorm(t) y = argmax of ⟨x, y⟩ − t/2 ‖y‖² over the hull of all permutations of (1, …, n), found in
    O(n log n): exact ranks as t falls, all (n + 1)/2 as it grows. With Entropy(t) the expected position in
    `soft_permutation`, O(n³).

    Args:
        values: x (…, n), finite.
        omega: `SquaredNorm(temperature)` or `Entropy(temperature)`, in the unit of the values.
        descending: rank 1 for the greatest.
        backend: "auto", "numba" or "reference".

    Returns:
        Shape and dtype of the values, differentiable; sums to n(n + 1)/2.

    Examples:
        >>> import torch, structmax
        >>> structmax.soft_rank(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(0.1))
        tensor([3., 1., 2.])
        >>> structmax.soft_rank(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(2.0))
        tensor([2.7500, 1.3500, 1.9000])

    Reference: Blondel, Teboul, Berthet & Djolonga 2020, https://arxiv.org/abs/2002.08871.
    """
    x = _checked(values, omega)
    if isinstance(omega, Entropy):
        p = soft_permutation(x, omega, descending=descending, backend=backend)
        return (_positions(x) @ p).to(values.dtype)
    z, order = (-x if descending else x).sort(dim=-1, descending=True)
    ranks = _projected(z, _positions(x).flip(-1).expand_as(z), omega.temperature, backend)
    return torch.zeros_like(ranks).scatter(-1, order, ranks).to(values.dtype)


def soft_sort(
    values: Tensor,
    omega: Entropy | SquaredNorm = UNIT,
    *,
    descending: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Values in order, softly.

    With SquaredNorm(t) y = argmax of ⟨ρ, y⟩ − t/2 ‖y‖² over the hull of all permutations of x, ρ = (1, …, n), found in
    O(n log n): sorted values as t falls, all their mean as it grows. Gaps between neighbours are kept up to 1/t. With
    Entropy(t) P x for the `soft_permutation` P, O(n³).

    Args:
        values: x (…, n), finite.
        omega: `omega.SquaredNorm(t)`, where 1/t has the unit of the values, or `omega.Entropy(t)`, where t has.
        descending: the greatest value first.
        backend: "auto", "numba" or "reference".

    Returns:
        Shape and dtype of the values, differentiable; has the sum of the values.

    Examples:
        >>> import torch, structmax
        >>> structmax.soft_sort(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(0.1))
        tensor([0.1000, 1.2000, 2.9000])
        >>> structmax.soft_sort(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(2.0))
        tensor([0.9000, 1.4000, 1.9000])

    Reference: Blondel, Teboul, Berthet & Djolonga 2020, https://arxiv.org/abs/2002.08871.
    """
    x = _checked(values, omega)
    if isinstance(omega, Entropy):
        p = soft_permutation(x, omega, descending=descending, backend=backend)
        return (p @ x.unsqueeze(-1)).squeeze(-1).to(values.dtype)
    w = (-x if descending else x).sort(dim=-1, descending=True).values
    ordered = _projected(_positions(x).flip(-1).expand_as(w), w, omega.temperature, backend).flip(-1)
    return (-ordered if descending else ordered).to(values.dtype)
