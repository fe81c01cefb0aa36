"""Ω = 0: the maximum itself, attained at the best structure."""

from dataclasses import dataclass

from torch import Tensor

from structmax.discrete import discrete
from structmax.omega.base import AbstractOmega
from structmax.parts import Tensors, countable, inner
from structmax.problem import Problem


@dataclass(frozen=True)
class Zero(AbstractOmega):
    """Ω = 0: the best score, attained by `argmax`. Its Fenchel-Young loss is the perceptron's.

    Examples:
        >>> import torch, structmax
        >>> structmax.smoothed(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex(), structmax.omega.Zero())
        tensor(1.5000)
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def value(self, problem: Problem) -> Tensor:
        best = self.point(problem.at(tuple(s.detach() for s in problem.scores)))
        return inner(countable(problem.scores, best), best)

    def point(self, problem: Problem) -> Tensors:
        return discrete(problem, "argmax")

    def at(self, problem: Problem, parts: Tensors) -> float:
        return 0.0
