"""Soft dynamic time warping: how well two series align, when each may be stretched.

    soft_dtw(x, y) = −DP_Ω(−c)          c[i, j] = cost of x[i] with y[j]

the smoothed minimum, over all monotone alignments, of the total cost of the aligned pairs. With Ω = Entropy(t) it is
−t log Σ exp(−cost/t); with LocalL2 or LocalTsallis its alignment is sparse. Its gradient in the costs is the expected
alignment.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.omega.smooth import Entropy, Minimum, Smooth
from structmax.problem import Problem, watched
from structmax.structures.monotone_alignment import MonotoneAlignment

Cost = Callable[[Tensor, Tensor], Tensor]


# ---------------------------------------------------------------- the cost


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


class SquaredDistance(Function):
    """c[i, j] = ‖x_i − y_j‖², from the differences, so that it is exactly 0 for equal points.

    With a cotangent g: d_x = 2 (Σ_j g[i, j] x_i − Σ_j g[i, j] y_j), and the same for y; nothing of size N · M · D is
    made or kept. Points are measured from the mean of y, which changes no difference, and keeps the sums small.
    """

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        if x.is_cuda and not watched(x) and _has_triton():
            from structmax.numerics.kernel_triton.distances import squared_distance

            return squared_distance(x, y)
        wide = torch.promote_types(x.dtype, torch.float32)
        distance = torch.cdist(x.to(wide), y.to(wide), compute_mode="donot_use_mm_for_euclid_dist")
        return distance.square_().to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, y = _centred(*ctx.saved_tensors)
        d_x = g.sum(-1, keepdim=True) * x - g @ y
        d_y = g.sum(-2).unsqueeze(-1) * y - g.mT @ x
        return 2 * d_x, 2 * d_y

    @staticmethod
    def jvp(ctx: Any, x_tangent: Tensor, y_tangent: Tensor) -> Tensor:
        x, y = _centred(*ctx.saved_tensors)
        straight = (x * x_tangent).sum(-1, keepdim=True) + (y * y_tangent).sum(-1).unsqueeze(-2)
        return 2 * (straight - x_tangent @ y.mT - x @ y_tangent.mT)


def _centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    centre = y.detach().mean(-2, keepdim=True)
    return x - centre, y - centre


squared_distance_rule = rule(SquaredDistance)


def squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """‖x_i − y_j‖² for all pairs of points: (…, N, D) and (…, M, D) to (…, N, M). Exactly 0 for equal points.

    Examples:
        >>> import torch, structmax
        >>> structmax.squared_distance(torch.tensor([[0.0], [3.0]]), torch.tensor([[0.0], [1.0]]))
        tensor([[0., 1.],
                [9., 4.]])
    """
    check.floating("x", x)
    check.floating("y", y)
    check.together("The batches of `x` and `y`", x.shape[:-2], y.shape[:-2])
    check.same_device("y", y, x)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"`x` and `y` should have points of the same size, but have {tuple(x.shape)} and {tuple(y.shape)}."
        )
    batch, wide = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]), torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(wide), y.to(wide)
    return squared_distance_rule(x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:]))


# ---------------------------------------------------------------- the questions


def _problem(
    x: Tensor,
    y: Tensor,
    temperature: float,
    omega: Smooth | None,
    band: int | None,
    lengths: tuple[Tensor | None, Tensor | None],
    cost: Cost,
) -> tuple[Tensor, MonotoneAlignment, Smooth]:
    """Costs, structure and regulariser."""
    if omega is not None and temperature != 1.0:
        raise ValueError(
            f"Either `temperature` or `omega` should be given, but both are. Try omega=Entropy({temperature}) alone."
        )
    if omega is not None and not isinstance(omega, Smooth):
        kind = omega.__name__ + " itself" if isinstance(omega, type) else repr(omega)
        raise TypeError(f"`omega` should be a regulariser such as omega.LocalL2(1.0), but is {kind}.")
    for name, series in (("x", x), ("y", y)):
        check.floating(name, series)
        if series.dim() < 2:
            raise ValueError(
                f"`{name}` should have shape (…, N, D), points of D numbers in order, but has {tuple(series.shape)}. "
                f"For a series of plain numbers try `{name}.unsqueeze(-1)`."
            )
    if cost is squared_distance and x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"`x` and `y` should have points of the same size, but have {tuple(x.shape)} and {tuple(y.shape)}. "
            "A custom `cost` can compare points of any two sizes."
        )
    costs = cost(*(_without_padding(series, n) for series, n in zip((x, y), lengths, strict=True)))
    if costs.shape[-2:] != (x.shape[-2], y.shape[-2]):
        wanted = f"(…, N, M) = (…, {x.shape[-2]}, {y.shape[-2]})"
        raise ValueError(f"`cost(x, y)` should have shape {wanted}, but has {tuple(costs.shape)}.")
    return costs, MonotoneAlignment(*lengths, band=band), Entropy(temperature) if omega is None else omega


def _without_padding(series: Tensor, lengths: Tensor | None) -> Tensor:
    """Zeros past the lengths: what they hold there, even NaN, reaches no cost and no gradient."""
    if lengths is None:
        return series
    inside = check.prefix(lengths, series[..., 0])
    return torch.where(inside.unsqueeze(-1), series, 0.0)


def soft_dtw(
    x: Tensor,
    y: Tensor,
    temperature: float = 1.0,
    *,
    omega: Smooth | None = None,
    band: int | None = None,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    cost: Cost = squared_distance,
    backend: str = "auto",
) -> Tensor:
    """The smoothed minimum of the cost of aligning two series; at temperature → 0, dynamic time warping itself.

    With Ω = Entropy(t) this is −t log Σ over alignments of exp(−cost/t), which may be negative, and its minimum is
    not at x = y: that of `soft_dtw_divergence` is. Twice differentiable in x and y.

    Args:
        x: series (…, N, D) of N points.
        y: series (…, M, D); leading dimensions broadcast.
        temperature: how much is smoothed, > 0.
        omega: instead of a temperature, `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`.
        band: allows only pairs with |i − j| ≤ band. Where the lengths differ by more, nothing can be aligned: +inf.
        x_lengths: the number of points of each x, at most N; integers that broadcast to the batch.
        y_lengths: the same of y.
        cost: any function of x and y to costs (…, N, M).
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 1.0, 2.0]).unsqueeze(-1)
        >>> y = torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0]).unsqueeze(-1)
        >>> structmax.soft_dtw(x, y, temperature=0.01).abs() < 0.1
        tensor(True)

    Reference:
        Cuturi and Blondel 2017, Soft-DTW: a differentiable loss function for time-series.
    """
    costs, structure, omega = _problem(x, y, temperature, omega, band, (x_lengths, y_lengths), cost)
    problem = Problem.of(costs, structure, backend)
    return problem.shaped(Minimum(omega).value(problem))


def soft_dtw_alignment(
    x: Tensor,
    y: Tensor,
    temperature: float = 1.0,
    *,
    omega: Smooth | None = None,
    band: int | None = None,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    cost: Cost = squared_distance,
    backend: str = "auto",
) -> Tensor:
    """How probable it is that x_i is aligned with y_j: the expected alignment; sparse for LocalL2, LocalTsallis.

    Args:
        x: series (…, N, D) of N points.
        y: series (…, M, D); leading dimensions broadcast.
        temperature: how much is smoothed, > 0.
        omega: instead of a temperature, `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`.
        band: allows only pairs with |i − j| ≤ band.
        x_lengths: the number of points of each x, at most N; integers that broadcast to the batch.
        y_lengths: the same of y.
        cost: any function of x and y to costs (…, N, M).
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        (…, N, M), differentiable.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 1.0]).unsqueeze(-1)
        >>> y = torch.tensor([0.0, 0.0, 1.0]).unsqueeze(-1)
        >>> structmax.soft_dtw_alignment(x, y, omega=structmax.omega.LocalL2(0.1))
        tensor([[1., 1., 0.],
                [0., 0., 1.]])
    """
    costs, structure, omega = _problem(x, y, temperature, omega, band, (x_lengths, y_lengths), cost)
    problem = Problem.of(costs, structure, backend)
    return problem.with_batch(Minimum(omega).point(problem))[0]


def soft_dtw_divergence(
    x: Tensor,
    y: Tensor,
    temperature: float = 1.0,
    *,
    omega: Smooth | None = None,
    band: int | None = None,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    cost: Cost = squared_distance,
    backend: str = "auto",
) -> Tensor:
    """soft_dtw(x, y) − ½ soft_dtw(x, x) − ½ soft_dtw(y, y): a loss that is 0 where x equals y, and never negative.

    Unlike `soft_dtw`, whose minimum over y is not x. That it is never negative is proven for costs of which the kernel
    exp(−cost/temperature) makes the alignment kernel positive definite, and in the limits of the temperature for the
    squared distance; no exception is known in between.

    Args:
        x: series (…, N, D) of N points.
        y: series (…, M, D); leading dimensions broadcast.
        temperature: how much is smoothed, > 0.
        omega: instead of a temperature, `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`.
        band: allows only pairs with |i − j| ≤ band. Where the lengths differ by more, nothing can be aligned: +inf.
        x_lengths: the number of points of each x, at most N; integers that broadcast to the batch.
        y_lengths: the same of y.
        cost: any symmetric function of two series to costs (…, N, M).
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 1.0, 2.0]).unsqueeze(-1)
        >>> structmax.soft_dtw_divergence(x, x), structmax.soft_dtw_divergence(x, x + 1) > 0
        (tensor(0.), tensor(True))

    Reference:
        Blondel, Mensch and Vert 2021, Differentiable divergences between time series.
    """

    def between(a: Tensor, b: Tensor, a_lengths: Tensor | None, b_lengths: Tensor | None) -> Tensor:
        lengths = {"x_lengths": a_lengths, "y_lengths": b_lengths}
        return soft_dtw(a, b, temperature, omega=omega, band=band, cost=cost, backend=backend, **lengths)

    itself = between(x, x, x_lengths, x_lengths) + between(y, y, y_lengths, y_lengths)
    return between(x, y, x_lengths, y_lengths) - itself / 2
