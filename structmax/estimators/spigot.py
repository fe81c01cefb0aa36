"""SPIGOT: the gradient of an intermediate loss towards a pulled-back target.

If z were an output, a loss of z against a target μ would train the scores. There is no such target, but the cotangent
g = ∂L/∂z says where a better one lies: a projected gradient step from a current guess. What remains to choose is the
guess, the step, and the intermediate loss, whose gradient is guess − target:

    SPIGOT    guess z = argmax(θ)     target Proj(z − η g)     perceptron loss:      ∂L/∂θ = z − target
    SpigotCE  guess μ = marginals(θ)  target Proj(μ − η g)     cross-entropy (CRF):  ∂L/∂θ = μ − target
    SpigotEG  guess μ = marginals(θ)  target marginals(θ − η g), an exponentiated gradient step, which needs no
              projection:                                                            ∂L/∂θ = μ(θ) − μ(θ − η g)

Gradients are small compared with the 0 and 1 of z, so the differences are taken in float64.
"""

from dataclasses import dataclass

import torch

from structmax import check
from structmax.estimators.projections import AbstractProjection, Polytope
from structmax.estimators.surrogate import AbstractChoice
from structmax.parts import Tensors, plus
from structmax.problem import Problem
from structmax.questions.argmax import ZERO
from structmax.questions.log_partition import ENTROPY


def _wide(tensors: Tensors) -> Tensors:
    return tuple(t.double() for t in tensors)


def _like(wide: Tensors, tensors: Tensors) -> Tensors:
    return tuple(w.to(t.dtype) for w, t in zip(wide, tensors, strict=True))


@dataclass(frozen=True)
class AbstractSpigot(AbstractChoice):
    """What `Spigot` and `SpigotCE` share: projected steps of a size, the cotangent being that at z in each of them."""

    step: float = 1.0
    steps: int = 1
    projection: AbstractProjection = Polytope()  # noqa: RUF009

    def __post_init__(self) -> None:
        check.positive("step", self.step)
        check.whole("steps", self.steps, 1)

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        return ZERO.point(problem), ()

    def descend(self, problem: Problem, guess: Tensors, d_z: Tensors) -> Tensors:
        """guess − target: how far all steps go together."""
        move = tuple(self.step * d for d in _wide(d_z))
        total = self.projection.shift(problem, guess, move)
        for _ in range(self.steps - 1):
            total = plus(total, self.projection.shift(problem, plus(guess, total, -1.0), move))
        return _like(total, d_z)


@dataclass(frozen=True)
class Spigot(AbstractSpigot):
    """z = argmax⟨θ, y⟩ forward; ∂L/∂θ = z − Proj(z − step · g): towards a target that could be a structure.

    Onto the whole space it is `StraightThrough(Identity())`, times the step. With more steps the target moves on along
    the same cotangent, the one at z: those at other points would need the network behind z.

    Args:
        step: η, > 0.
        steps: how many projected steps, ≥ 1.
        projection: `Polytope()`, exact; or as in the paper `Simplices(dim)`, `Box(budget=True)`, `Box()`; or
            `WholeSpace()`.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.2, 1.5, 0.3], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.estimators.Spigot())
        >>> (z * torch.tensor([0.1, 0.3, 0.9])).sum().backward()
        >>> x.grad
        tensor([-0.1000,  0.1000,  0.0000])

    Reference: Peng, Thomson & Smith 2018, https://arxiv.org/abs/1805.04658.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        return self.descend(problem, _wide(z), d_z)


@dataclass(frozen=True)
class SpigotCE(AbstractSpigot):
    """z = argmax⟨θ, y⟩ forward; ∂L/∂θ = μ − Proj(μ − step · g) with the marginals μ of θ.

    Args:
        step: η, > 0.
        steps: how many projected steps, ≥ 1.
        projection: as in `Spigot`.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(2, requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.estimators.SpigotCE(step=0.5))
        >>> (z * torch.tensor([0.0, 1.0])).sum().backward()
        >>> x.grad
        tensor([-0.2500,  0.2500])

    Reference: Mihaylova, Niculae & Martins 2020, Understanding the mechanics of SPIGOT,
    https://arxiv.org/abs/2010.02357.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax", "marginals")

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        return self.descend(problem, ENTROPY.point(problem.at(_wide(problem.scores))), d_z)


@dataclass(frozen=True)
class SpigotEG(AbstractChoice):
    """z = argmax⟨θ, y⟩ forward; ∂L/∂θ = μ(θ) − μ(θ − step · g).

    An exponentiated gradient step on the distribution over Y stays in its family, p(y) ∝ exp⟨θ − η g, y⟩, and several
    steps are one larger step. For small steps it is η times `StraightThrough(Entropy())`.

    Args:
        step: η, > 0.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(2, requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.estimators.SpigotEG())
        >>> (z * torch.tensor([0.0, 1.0])).sum().backward()
        >>> x.grad
        tensor([-0.2311,  0.2311])

    Reference: Mihaylova, Niculae & Martins 2020, Understanding the mechanics of SPIGOT,
    https://arxiv.org/abs/2010.02357.
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check.positive("step", self.step)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax", "marginals")

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        return ZERO.point(problem), ()

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        wide = _wide(problem.scores)
        target = ENTROPY.point(problem.at(plus(wide, _wide(d_z), -self.step)))
        return _like(plus(ENTROPY.point(problem.at(wide)), target, -1.0), d_z)
