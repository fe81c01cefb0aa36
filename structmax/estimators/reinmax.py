"""ReinMax: the straight-through gradient that is right to second order.

For z, z′ drawn independently from p(y) ∝ exp⟨θ, y⟩, with mean μ and covariance H,

    ∇E f(z) = Cov[f(z), z] = ½ E[(f(z) − f(z′)) (z − z′)]

The trapezoid rule, exact where f is quadratic, says f(z) − f(z′) ≈ ½⟨∇f(z) + ∇f(z′), z − z′⟩. Both halves have the same
mean, and E over z′ of (z − z′)(z − z′)ᵀ is H + (z − μ)(z − μ)ᵀ, so that

    ∇E f(z) ≈ ½ E[ H g + (z − μ)⟨z − μ, g⟩ ]          g = ∇f(z)

On the simplex H = diag(μ) − μμᵀ and it is the estimator of the paper; nothing in it requires the simplex.
"""

from dataclasses import dataclass

import torch

from structmax.estimators.surrogate import AbstractChoice
from structmax.parts import Tensors, inner, plus, scaled
from structmax.problem import Problem
from structmax.questions.log_partition import ENTROPY
from structmax.questions.sample import draw


@dataclass(frozen=True)
class ReinMax(AbstractChoice):
    """z a draw of p(y) ∝ exp⟨θ, y⟩ forward; ∂L/∂θ = ½ (∇μ(θ) g + (z − μ)⟨z − μ, g⟩). Its mean is exact for quadratic L.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(3, requires_grad=True)
        >>> g = torch.Generator().manual_seed(0)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.estimators.ReinMax(), generator=g)
        >>> (z * torch.tensor([0.0, 1.0, 5.0])).sum().backward()
        >>> z.detach(), x.grad
        (tensor([0., 1., 0.]), tensor([-0.1667, -0.5000,  0.6667]))

    Reference: Liu, Dong, Liu, Yu & Gao 2023, Bridging discrete and backpropagation, https://arxiv.org/abs/2304.08612.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ("sample", "marginals", "marginals_jvp")

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        return tuple(y.squeeze(1) for y in draw(problem, "sample", (1,), generator)), ()

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        away = plus(z, ENTROPY.point(problem), -1.0)
        along = scaled(inner(away, d_z), away)
        return tuple(d / 2 for d in plus(ENTROPY.pullback(problem, d_z), along))
