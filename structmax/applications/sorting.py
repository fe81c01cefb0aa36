"""Soft sorting and ranking: sorting is a linear program over permutations, and a regulariser makes it differentiable.

    permutation(x) = argmax over P in conv(permutation matrices) of ⟨ρ, P x⟩ − Ω(P)          ρ = (1, 2, …, n)
    rank(x)        = argmax over y in conv(permutations of ρ)    of ⟨x, y⟩ − t/2 ‖y‖²
    sort(x)        = argmax over y in conv(permutations of x)    of ⟨ρ, y⟩ − t/2 ‖y‖²

The last two are projections onto a permutahedron, which cost no more than a sort. With z and w in descending order, the
projection of z onto the hull of the permutations of w is z − v, where v is the non-increasing sequence nearest to
z − w. That pools neighbours into blocks, so in each block the projection is z − mean z + mean w: its Jacobians are
averages over blocks.

With t Σ y (log y − 1) in place of t/2 ‖y‖² the hull is that of the permutations of exp w, and its logarithm is z −
log Σ exp z + log Σ exp w in each block: the Jacobians are means with the weights of a softmax over the block.

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
OVER = ("permutahedron", "matrices")


class Blocks(Function):
    """The blocks that the projection pools: piecewise constant."""

    @staticmethod
    def forward(z: Tensor, w: Tensor, scale: float, entropic: bool, backend: str) -> Tensor:
        named: dict[str, Any] = {"weights": w, "scale": scale, "entropic": entropic}
        return ask(ROOM, "isotonic_groups", (z,), z.dim() - 1, backend, **named)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[None, ...]:
        return None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        return None


blocks_rule = rule(Blocks)


def _projected(z: Tensor, w: Tensor, omega: Entropy | SquaredNorm, backend: str) -> Tensor:
    """z/t onto the permutahedron of w; all of shape (…, n), z and w in descending order."""
    temperature, entropic = omega.temperature, isinstance(omega, Entropy)
    groups = blocks_rule(z.detach(), w.detach(), 1 / temperature, entropic, backend)
    if entropic:
        z = z / temperature
        first = _first(groups)
        # sizes of blocks, which would make sums of these means, cancel
        return z - _log_mean_exp(z, groups, first, backend) + _log_mean_exp(w, groups, first, backend)
    # so written, an entry that is a block of its own is exactly that of w, however small t is
    spread = (z - group_mean_rule(z, groups, None, backend)) / temperature
    return spread + group_mean_rule(w, groups, None, backend)


def _first(groups: Tensor) -> Tensor:
    """Where the block of each entry begins."""
    place = torch.arange(groups.shape[-1], device=groups.device)
    begins = torch.nn.functional.pad(groups.diff(dim=-1), (1, 0)) != 0
    return torch.where(begins, place, 0).cummax(-1).values


def _log_mean_exp(v: Tensor, groups: Tensor, first: Tensor, backend: str) -> Tensor:
    """log of the mean of exp v over each block of a descending v."""
    peak = v.detach().gather(-1, first)
    return peak + group_mean_rule((v - peak).exp(), groups, None, backend).log()


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


def _by_matrices(omega: Entropy | SquaredNorm, over: str | None) -> bool:
    """Whether the maximum is over doubly stochastic matrices."""
    if over is None:
        return isinstance(omega, Entropy)
    check.choice("over", over, OVER)
    return over == "matrices"


def soft_rank(
    values: Tensor,
    omega: Entropy | SquaredNorm = UNIT,
    *,
    over: str | None = None,
    descending: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Ranks that move with the values: 1 for the least, n for the greatest, ties share a rank.

    Over the permutahedron, y = argmax of ⟨x, y⟩ − Ω(y) over the hull of all permutations of (1, …, n), found in
    O(n log n): exact ranks as t falls, all (n + 1)/2 as it grows. Ω is t/2 ‖y‖² for SquaredNorm(t) and t Σ y (log y −
    1) for Entropy(t). Over matrices, the expected position in `soft_permutation`, O(n³).

    Args:
        values: x (…, n), finite.
        omega: `SquaredNorm(temperature)` or `Entropy(temperature)`, in the unit of the values.
        over: "permutahedron" or "matrices"; by default the first for SquaredNorm, the second for Entropy.
        descending: rank 1 for the greatest.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Shape and dtype of the values, differentiable; sums to n(n + 1)/2.

    Examples:
        >>> import torch, structmax
        >>> structmax.soft_rank(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(0.1))
        tensor([3., 1., 2.])
        >>> structmax.soft_rank(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(2.0))
        tensor([2.7500, 1.3500, 1.9000])
        >>> structmax.soft_rank(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.Entropy(2.0), over="permutahedron")
        tensor([3.0000, 1.0976, 1.9024])

    Reference: Blondel, Teboul, Berthet & Djolonga 2020, https://arxiv.org/abs/2002.08871.
    """
    x = _checked(values, omega)
    if _by_matrices(omega, over):
        p = soft_permutation(x, omega, descending=descending, backend=backend)
        return (_positions(x) @ p).to(values.dtype)
    z, order = (-x if descending else x).sort(dim=-1, descending=True)
    w = _positions(x).flip(-1).expand_as(z)
    ranks = (
        _projected(z, w.log(), omega, backend).exp() if isinstance(omega, Entropy) else _projected(z, w, omega, backend)
    )
    return torch.zeros_like(ranks).scatter(-1, order, ranks).to(values.dtype)


def soft_sort(
    values: Tensor,
    omega: Entropy | SquaredNorm = UNIT,
    *,
    over: str | None = None,
    descending: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Values in order, softly.

    Over the permutahedron, y = argmax of ⟨ρ, y⟩ − t/2 ‖y‖² over the hull of all permutations of x, ρ = (1, …, n), for
    SquaredNorm(t), found in O(n log n): sorted values as t falls, all their mean as it grows. Gaps between neighbours
    are kept up to 1/t. For Entropy(t) exp(−y) is such a maximum, with t Σ p (log p − 1) and the permutations of
    exp(−x). Over matrices, P x for the `soft_permutation` P, O(n³).

    Args:
        values: x (…, n), finite.
        omega: `omega.SquaredNorm(t)` or `omega.Entropy(t)`. Over the permutahedron 1/t has the unit of the values, over
            matrices t has.
        over: "permutahedron" or "matrices"; by default the first for SquaredNorm, the second for Entropy.
        descending: the greatest value first; with Entropy exp(y) and exp(x) then stand for exp(−y) and exp(−x).
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Shape and dtype of the values, differentiable; has the sum of the values, or of their exponentials.

    Examples:
        >>> import torch, structmax
        >>> structmax.soft_sort(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(0.1))
        tensor([0.1000, 1.2000, 2.9000])
        >>> structmax.soft_sort(torch.tensor([2.9, 0.1, 1.2]), structmax.omega.SquaredNorm(2.0))
        tensor([0.9000, 1.4000, 1.9000])

    Reference: Blondel, Teboul, Berthet & Djolonga 2020, https://arxiv.org/abs/2002.08871.
    """
    x = _checked(values, omega)
    if _by_matrices(omega, over):
        p = soft_permutation(x, omega, descending=descending, backend=backend)
        return (p @ x.unsqueeze(-1)).squeeze(-1).to(values.dtype)
    w = (x if descending else -x).sort(dim=-1, descending=True).values
    ordered = _projected(_positions(x).flip(-1).expand_as(w), w, omega, backend)
    return (ordered if descending else -ordered).to(values.dtype)
