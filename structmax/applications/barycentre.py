"""The mean of several series under soft time warping."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from structmax import check
from structmax.applications.soft_dtw import Cost, soft_dtw, squared_distance
from structmax.omega.smooth import Smooth
from structmax.outline import outline


class Barycentre(NamedTuple):
    """A mean of several series, and how the search for it went."""

    # (N, D)
    series: Tensor
    # Σ weights · soft_dtw there
    value: Tensor
    # how many steps were taken
    iterations: int
    # whether the search converged before its last step
    converged: bool

    def __repr__(self) -> str:
        return outline(self)


def soft_dtw_barycentre(
    series: Tensor,
    weights: Tensor | None = None,
    init: Tensor | None = None,
    temperature: float = 1.0,
    max_iter: int = 100,
    *,
    omega: Smooth | None = None,
    band: int | None = None,
    lengths: Tensor | None = None,
    cost: Cost = squared_distance,
    backend: str = "auto",
) -> Barycentre:
    """The series z with the least Σ_i weights_i · soft_dtw(z, series_i), by L-BFGS. Not convex: `init` matters.

    Args:
        series: (S, M, D), S series.
        weights: (S,), by default 1/S each.
        init: where to start, (N, D), which also says how long z is. By default the mean of the series, each stretched
            to the longest of them.
        temperature: how much is smoothed, > 0.
        max_iter: L-BFGS steps, at most.
        omega: instead of a temperature, `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`.
        band: allows only pairs with |i − j| ≤ band.
        lengths: (S,), the number of points of each series.
        cost: any function of two series to costs (…, N, M).
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `Barycentre(series, value, iterations, converged)`, without a gradient.

    Examples:
        >>> import torch, structmax
        >>> bumps = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]).unsqueeze(-1)
        >>> structmax.soft_dtw_barycentre(bumps, temperature=0.01).converged
        True

    Reference:
        Cuturi and Blondel 2017, Soft-DTW: a differentiable loss function for time-series.
    """
    check.floating("series", series)
    check.whole("max_iter", max_iter, 1)
    if series.dim() != 3 or 0 in series.shape:
        raise ValueError(
            f"`series` should have shape (S, M, D), S series of M points of D numbers, but has {tuple(series.shape)}."
        )
    series = series.detach()
    weights = _weights(weights, series)
    start = _mean_series(series, weights, lengths) if init is None else init.detach()
    z = start.clone().requires_grad_()

    def objective() -> Tensor:
        each = soft_dtw(z, series, temperature, omega=omega, band=band, y_lengths=lengths, cost=cost, backend=backend)
        return (weights * each).sum()

    def closure() -> Tensor:
        search.zero_grad()
        total = objective()
        total.backward()
        return total

    with torch.enable_grad():
        # Tolerances in proportion to what is minimised, whatever the unit of the series.
        (slope,) = torch.autograd.grad(objective(), z)
        tolerance = 1e-6 * slope.abs().max().item()
        search = torch.optim.LBFGS(
            [z],
            max_iter=max_iter,
            # as many as the line searches need
            max_eval=100 * max_iter,
            tolerance_grad=tolerance,
            tolerance_change=torch.finfo(z.dtype).eps * tolerance,
            line_search_fn="strong_wolfe",
        )
        search.step(closure)
    taken = search.state[z]["n_iter"]
    with torch.no_grad():
        total = objective()
    return Barycentre(z.detach(), total, taken, taken < max_iter and bool(total.isfinite()))


def _weights(weights: Tensor | None, series: Tensor) -> Tensor:
    if weights is None:
        return series.new_full((len(series),), 1 / len(series))
    check.floating("weights", weights)
    if weights.shape != series.shape[:1]:
        raise ValueError(
            f"`weights` should have shape ({len(series)},), one for each series, but has {tuple(weights.shape)}."
        )
    return weights.detach()


def _mean_series(series: Tensor, weights: Tensor, lengths: Tensor | None) -> Tensor:
    """The weighted mean of the series, each stretched to the longest: (N, D)."""
    counts = [series.shape[1]] * len(series) if lengths is None else lengths.expand(len(series)).tolist()
    longest = max(counts)
    if min(counts) < 1:
        raise ValueError(
            f"`lengths` should be at least 1 for a barycentre, but hold {min(counts)}. Try leaving that series out."
        )
    stretched = [
        interpolate(one[:n].T.unsqueeze(0), longest, mode="linear", align_corners=True)[0].T
        for one, n in zip(series, counts, strict=True)
    ]
    return (weights[:, None, None] * torch.stack(stretched)).sum(0) / weights.sum()
