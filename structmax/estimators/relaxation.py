"""A relaxed z with its true gradient: structured attention, and its noisy form."""

from dataclasses import dataclass

import torch

from structmax.estimators.pullbacks import AbstractPoint, Marginals
from structmax.estimators.surrogate import AbstractSurrogate
from structmax.inference.oracle import Oracle, Tensors, noise_like, plus
from structmax.inference.perturb import Gumbel, Noise


@dataclass(frozen=True)
class Relaxation(AbstractSurrogate):
    """z is a point inside conv(Y), and its gradient is true: L(E[z]) in place of E[L(z)].

    Args:
        point: `Marginals(temperature)`, `SparseMarginals(temperature)`, `Smoothed(omega)` or `Softmax(dim)`.
        noise: added to the scores, if any: `Gumbel()`, `Logistic()`, `Normal()` or `SumOfGamma(k)`.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.5]], requires_grad=True)
        >>> estimator = structmax.Relaxation(structmax.Smoothed(structmax.L2()))
        >>> structmax.surrogate(x, structmax.MonotoneAlignment(), estimator)
        tensor([[1.0000, 0.3333],
                [0.3333, 1.0000]], grad_fn=<PointBackward>)

    Reference: Kim, Denton, Hoang & Rush 2017, Structured attention networks, https://arxiv.org/abs/1702.00887.
    """

    point: AbstractPoint = Marginals()  # noqa: RUF009
    noise: Noise | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return self.point.needs

    def output(self, ask: Oracle, scores: Tensors, generator: torch.Generator | None) -> Tensors:
        if self.noise is not None:
            scores = plus(scores, noise_like(self.noise, scores, generator))
        return self.point.at(ask, scores)


def GumbelSoftmax(temperature: float = 1.0) -> Relaxation:  # noqa: N802
    """A relaxed draw: the marginals at (θ + G) / temperature. On the Simplex softmax((θ + G) / temperature).

    Sparse forms are `Relaxation(SparseMarginals(temperature), Gumbel())` and
    `Relaxation(Smoothed(Tsallis(alpha, temperature)), Gumbel())`.

    Args:
        temperature: a number > 0; the draw tends to a structure as it falls.

    Returns:
        `Relaxation(Marginals(temperature), Gumbel())`.

    Examples:
        >>> import structmax
        >>> structmax.GumbelSoftmax(0.5)
        Relaxation(point=Marginals(temperature=0.5), noise=Gumbel())

    Reference: Jang, Gu & Poole 2017, https://arxiv.org/abs/1611.01144; Maddison, Mnih & Teh 2017,
    https://arxiv.org/abs/1611.00712.
    """
    return Relaxation(Marginals(temperature), Gumbel())
