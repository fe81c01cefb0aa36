"""A discrete choice in the forward pass, a surrogate gradient in the backward pass.

argmax is piecewise constant: its true gradient is 0 or undefined. A surrogate chooses z as it would without gradients,
by the public `argmax` or `sample`, and turns the cotangent g = ∂L/∂z into a direction for the scores by a rule of its
own. One autograd Function serves all of them. Methods whose z is itself relaxed have exact gradients and need no rule.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.possible import refuse
from structmax.parts import Tensors
from structmax.problem import Problem


class AbstractSurrogate(ABC):
    """A way to choose z, and to give a gradient to the scores."""

    # Whether the gradient's mean is that of E[f(z)].
    unbiased: ClassVar[bool] = False

    @property
    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """The names of the functions that the structure must have."""

    @abstractmethod
    def output(self, problem: Problem, generator: torch.Generator | None) -> Tensors:
        """z, with the gradient attached: part tensors (B, …)."""


class AbstractChoice(AbstractSurrogate):
    """A surrogate whose gradient is given by a rule, not by the derivative of z."""

    @abstractmethod
    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        """z, and the tensors that the pullback needs, with the batch dimension first."""

    @abstractmethod
    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        """The gradient given to the scores for the cotangent d_z; exactly 0 for padding and forbidden parts."""

    def output(self, problem: Problem, generator: torch.Generator | None) -> Tensors:
        return choice_rule(self, problem.blank, generator, *problem.scores)[: problem.count]


class Choice(Function):
    @staticmethod
    def forward(
        estimator: AbstractChoice, problem: Problem, generator: torch.Generator | None, *scores: Tensor
    ) -> Tensors:
        z, saved = estimator.choose(problem.at(scores), generator)
        return *z, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.estimator, ctx.problem, _, *scores = inputs
        ctx.count = len(scores)
        ctx.save_for_backward(*scores, *output)
        ctx.mark_non_differentiable(*output[ctx.count :])

    @staticmethod
    def backward(ctx: Any, *d_output: Tensor) -> tuple[Any, ...]:
        count, tensors = ctx.count, ctx.saved_tensors
        scores, z, saved, d_z = tensors[:count], tensors[count : 2 * count], tensors[2 * count :], d_output[:count]
        with torch.no_grad():
            d_scores = ctx.estimator.pullback(ctx.problem.at(scores), z, saved, d_z)
        if torch.is_grad_enabled():
            d_scores = final_rule(repr(ctx.estimator), count, *d_scores, *scores, *d_z)
        return None, None, None, *d_scores


class Final(Function):
    """Passes gradients on. They depend on scores and cotangents in a way that has no derivative."""

    @staticmethod
    def forward(name: str, count: int, *tensors: Tensor) -> Tensors:
        return tuple(t.clone() for t in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            f"The gradient of {ctx.name} is a surrogate and has no derivative: it can be taken once. For second "
            "derivatives try Relaxation(), whose gradients are exact."
        )


choice_rule = rule(Choice, fold=True)
final_rule = rule(Final, fold=True)


def surrogate(
    scores: Scores,
    structure: AbstractStructure,
    estimator: AbstractSurrogate,
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Any:
    """A structure z that a network can use, with a gradient for the scores it was chosen by.

    Forward, z is `argmax`, `sample` or a relaxation of them, as the estimator says. Backward, ∂L/∂z is turned into
    ∂L/∂θ. The gradient is biased, cheap, and needs one evaluation of L; `expect` has unbiased ones.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        estimator: of `structmax.estimators`: `StraightThrough`, `Spigot`, `SpigotCE`, `SpigotEG`, `PerturbAndMAP`,
            `ReinMax`, `ImplicitMLE`, `BlackboxInterpolation`, `Perturbed`, `GumbelRecursion`; with exact gradients
            `Relaxation`.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        z: fields, shapes and dtype of the scores; zeros where nothing is feasible. Differentiable once, unless the
        gradient is exact; padding and forbidden parts get exactly 0.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.2, 1.5, 0.3], requires_grad=True)
        >>> estimator = structmax.estimators.StraightThrough(structmax.omega.Entropy())
        >>> z = structmax.surrogate(x, structmax.Simplex(), estimator)
        >>> z
        tensor([0., 1., 0.], grad_fn=<ViewBackward0>)
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> x.grad
        tensor([-0.1763, -0.0116,  0.1879])
    """
    check.instance("estimator", estimator, AbstractSurrogate, "an object such as StraightThrough()")
    problem = Problem.of(scores, structure, backend, wide=True)
    return problem.named(chosen(problem, estimator, generator))


def chosen(problem: Problem, estimator: AbstractSurrogate, generator: torch.Generator | None) -> Tensors:
    """z of a problem: part tensors (B, …)."""
    refuse(problem, estimator, estimator.needs, SIMPLE)
    return estimator.output(problem, generator)


# Estimators that need little, for a refusal to suggest.
SIMPLE: dict[str, tuple[str, ...]] = {
    "StraightThrough(Identity()), Spigot() or ImplicitMLE(), which ask `argmax` alone": ("argmax",),
    "straight_through_gumbel() or gumbel_relaxation()": ("argmax", "marginals", "marginals_jvp"),
}
