"""Differentiation of blackbox solvers: the gradient of a continuous interpolation of the best structure's loss."""

from dataclasses import dataclass

import torch

from structmax import check
from structmax.estimators.surrogate import AbstractChoice
from structmax.parts import Tensors, plus
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


@dataclass(frozen=True)
class BlackboxInterpolation(AbstractChoice):
    """z = argmax⟨θ, y⟩ forward; ∂L/∂θ = (z(θ) − z(θ − step · g)) / step: `ImplicitMLE` without noise.

    The paper minimises costs w = −θ; there it reads ∂L/∂w = −(z(w) − z(w + step · g)) / step.

    Args:
        step: λ, > 0. Small steps are faithful but mostly give 0; large ones are smoother.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.2, 1.5, 0.3], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.estimators.BlackboxInterpolation(step=2.0))
        >>> (z * torch.tensor([0.0, 1.0, -1.0])).sum().backward()
        >>> x.grad
        tensor([ 0.0000,  0.5000, -0.5000])

    Reference: Vlastelica, Paulus, Musil, Martius & Rolínek 2020, https://arxiv.org/abs/1912.02175.
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check.positive("step", self.step)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        return ZERO.point(problem), ()

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        better = ZERO.point(problem.at(plus(problem.scores, d_z, -self.step)))
        return tuple(d / self.step for d in plus(z, better, -1.0))
