"""Soft dynamic time warping as a loss."""

from torch import Tensor, nn

from structmax.applications.soft_dtw import Cost, soft_dtw, soft_dtw_divergence, squared_distance
from structmax.losses.fenchel_young import reduce
from structmax.omega.smooth import Smooth
from structmax.outline import name_of


class SoftDTWLoss(nn.Module):
    """`structmax.soft_dtw` of two batches of series, or `structmax.soft_dtw_divergence`, as a module.

    Args:
        temperature: how much is smoothed, > 0.
        normalise: whether to take the divergence, which is 0 where the series are equal, and never negative.
        omega: instead of a temperature, `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`.
        band: allows only pairs with |i − j| ≤ band.
        cost: any function of two series to costs (…, N, M).
        reduction: "mean" over the instances, "sum" or "none".

    Examples:
        >>> import torch, structmax
        >>> loss = structmax.nn.SoftDTWLoss(temperature=0.1, normalise=True)
        >>> x = torch.tensor([0.0, 1.0, 2.0]).reshape(1, 3, 1)
        >>> loss(x, x), loss(x, x + 1) > 0
        (tensor(0.), tensor(True))

    Reference: Cuturi & Blondel 2017, https://arxiv.org/abs/1703.01541; Blondel, Mensch & Vert 2021,
    https://arxiv.org/abs/2010.08354.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        normalise: bool = False,
        *,
        omega: Smooth | None = None,
        band: int | None = None,
        cost: Cost = squared_distance,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.temperature, self.normalise, self.omega, self.band = temperature, normalise, omega, band
        self.cost, self.reduction = cost, reduction

    def forward(self, x: Tensor, y: Tensor, x_lengths: Tensor | None = None, y_lengths: Tensor | None = None) -> Tensor:
        """The loss of two batches of series.

        Args:
            x: series (…, N, D).
            y: series (…, M, D); leading dimensions broadcast.
            x_lengths: the number of points of each x, at most N; integers that broadcast to the batch.
            y_lengths: the same of y.

        Returns:
            A scalar, or the batch shape for "none".
        """
        function = soft_dtw_divergence if self.normalise else soft_dtw
        each = function(
            x,
            y,
            self.temperature,
            omega=self.omega,
            band=self.band,
            x_lengths=x_lengths,
            y_lengths=y_lengths,
            cost=self.cost,
        )
        return reduce(each, self.reduction)

    def extra_repr(self) -> str:
        smoothing = f"temperature={self.temperature}" if self.omega is None else f"omega={self.omega}"
        cost = "" if self.cost is squared_distance else f", cost={name_of(self.cost)}"
        return f"{smoothing}, normalise={self.normalise}, band={self.band}{cost}, reduction={self.reduction!r}"
