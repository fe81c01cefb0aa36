"""A relaxed z with its exact gradient: structured attention, and its noisy form."""

from dataclasses import dataclass

import torch

from structmax.estimators.pullbacks import RowSoftmax
from structmax.estimators.surrogate import AbstractSurrogate
from structmax.noise import AbstractNoise, Gumbel, noise_like
from structmax.omega.base import AbstractOmega, point_of
from structmax.omega.smooth import Entropy
from structmax.parts import Tensors, plus
from structmax.problem import Problem


@dataclass(frozen=True)
class Relaxation(AbstractSurrogate):
    """z is a point inside conv(Y), and its gradient is exact: L(E[z]) in place of E[L(z)].

    Args:
        omega: any Ω of `structmax.omega`, such as `Entropy(t)` or `SquaredNorm(t)`, or `RowSoftmax(dim)`.
        noise: added to the scores, if any: `Gumbel()`, `Logistic()`, `Normal()` or `SumOfGamma(k)`.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.5]], requires_grad=True)
        >>> estimator = structmax.estimators.Relaxation(structmax.omega.LocalL2())
        >>> structmax.surrogate(x, structmax.MonotoneAlignment(), estimator)
        tensor([[1.0000, 0.3333],
                [0.3333, 1.0000]], grad_fn=<ViewBackward0>)

    Reference: Kim, Denton, Hoang & Rush 2017, Structured attention networks, https://arxiv.org/abs/1702.00887.
    """

    omega: AbstractOmega | RowSoftmax = Entropy()  # noqa: RUF009
    noise: AbstractNoise | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return self.omega.needs

    def output(self, problem: Problem, generator: torch.Generator | None) -> Tensors:
        if self.noise is not None:
            problem = problem.at(plus(problem.scores, noise_like(self.noise, problem.scores, generator)))
        return point_of(self.omega, problem)


def gumbel_relaxation(temperature: float = 1.0) -> Relaxation:
    """A relaxed draw: the marginals at (θ + G) / temperature. On the Simplex the Gumbel-softmax.

    Sparse forms are `Relaxation(SquaredNorm(temperature), Gumbel())` and
    `Relaxation(LocalTsallis(alpha, temperature), Gumbel())`.

    Args:
        temperature: a number > 0; the draw tends to a structure as it falls.

    Returns:
        `Relaxation(Entropy(temperature), Gumbel())`.

    Examples:
        >>> import structmax
        >>> structmax.estimators.gumbel_relaxation(0.5)
        Relaxation(omega=Entropy(temperature=0.5), noise=Gumbel())

    Reference: Jang, Gu & Poole 2017, https://arxiv.org/abs/1611.01144; Maddison, Mnih & Teh 2017,
    https://arxiv.org/abs/1611.00712.
    """
    return Relaxation(Entropy(temperature), Gumbel())
