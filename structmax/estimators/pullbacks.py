"""Where the gradient of a discrete choice may come from: the cotangent itself, or the derivative of a relaxation.

Any Ω of `structmax.omega` is one, by the Jacobian of its point; these are the others.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from structmax.estimators.possible import possible
from structmax.mappings.entmax import softmax
from structmax.parts import Tensors, where
from structmax.problem import Problem


class Pullback(Protocol):
    """Turns the cotangent of z into a gradient for the scores."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the functions that the structure must have."""

    def pullback(self, problem: Problem, d_z: Tensors, /) -> Tensors:
        """∂L/∂θ for ∂L/∂z."""


@dataclass(frozen=True)
class Identity:
    """∂L/∂θ = ∂L/∂z, but 0 for padding and forbidden parts.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import Identity, StraightThrough
        >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), StraightThrough(Identity()))
        >>> (z @ torch.tensor([1.0, 2.0])).backward()
        >>> x.grad
        tensor([1., 2.])
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def pullback(self, problem: Problem, d_z: Tensors) -> Tensors:
        return where(possible(problem), d_z)


@dataclass(frozen=True)
class RowSoftmax:
    """Softmax of the scores along `dim`, each row on its own, ignoring the structure.

    On the Simplex it is `omega.Entropy()`. For arcs (…, N+1, N+1) and dim = −2 every word chooses a head; for
    alignments (…, N, M) and dim = −1 every row a column. Structures with several part tensors have no such rows.

    Args:
        dim: the dimension along which each row is normalised.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import RowSoftmax, StraightThrough
        >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), StraightThrough(RowSoftmax()))
        >>> (z @ torch.tensor([1.0, 2.0])).backward()
        >>> x.grad
        tensor([-0.1966,  0.1966])
    """

    dim: int = -1

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def point(self, problem: Problem) -> Tensors:
        """The relaxed z, differentiable."""
        if problem.count > 1:
            raise TypeError(
                f"RowSoftmax() should be asked of a structure with one part tensor, but "
                f"{type(problem.structure).__name__} has {problem.count}. Try omega.Entropy()."
            )
        (mask,) = possible(problem)
        return (softmax(problem.scores[0], self.dim, mask=mask, backend=problem.backend),)

    def pullback(self, problem: Problem, d_z: Tensors) -> Tensors:
        return torch.func.vjp(lambda *s: self.point(problem.at(s)), *problem.scores)[1](d_z)
