"""What a regulariser Ω is."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from structmax.parts import Tensors
from structmax.problem import Problem


class AbstractOmega(ABC):
    """A convex function Ω on conv(Y), defined by the maximum it gives.

        value(θ) = max over μ in conv(Y) of ⟨θ, μ⟩ − Ω(μ)          point(θ) = ∇value(θ), the μ that attains it

    A subclass works with `fenchel_young`, `smoothed`, `StraightThrough` and `Relaxation`. It gets a `Problem` with
    part tensors `problem.scores`, each (B, …), and returns tensors of the same form. Both methods should be
    differentiable: written in torch, or with the functions of structmax.
    """

    @abstractmethod
    def value(self, problem: Problem) -> Tensor:
        """The maximum, differentiable: (B,); −inf where nothing is feasible."""

    @abstractmethod
    def point(self, problem: Problem) -> Tensors:
        """Where it is attained, differentiable: part tensors (B, …)."""

    @abstractmethod
    def at(self, problem: Problem, parts: Tensors) -> Tensor | float:
        """Ω of the parts of structures: (B,), or a number for all."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the functions that the structure must have."""
        return ()

    def pullback(self, problem: Problem, d_point: Tensors) -> Tensors:
        """The Jacobian of the point, transposed, times d_point: a gradient for a choice made in its place."""
        return torch.func.vjp(lambda *s: self.point(problem.at(s)), *problem.scores)[1](d_point)


def value_of(omega: AbstractOmega, problem: Problem) -> Tensor:
    """The value of any Ω, if it has one number for each instance: (B,)."""
    value, wanted = omega.value(problem), problem.scores[0].shape[:1]
    if value.shape != wanted:
        raise ValueError(
            f"`value` of {type(omega).__name__} should have shape {tuple(wanted)}, one number for each instance, but "
            f"has {tuple(value.shape)}."
        )
    return value


def point_of(omega: Any, problem: Problem) -> Tensors:
    """The point of any Ω, or of a relaxation like it, if it has the shapes of the scores: part tensors (B, …)."""
    point = omega.point(problem)
    got, wanted = ([tuple(t.shape) for t in tensors] for tensors in (point, problem.scores))
    if got != wanted:
        raise ValueError(
            f"`point` of {type(omega).__name__} should have the shapes {wanted} of the scores, but has {got}."
        )
    return point
