"""Draws with a relaxed twin: the part of the gradient a relaxation explains is taken along it.

y = argmax⟨z, ·⟩ with z = θ + ε is an exact draw. With z' drawn again given y, and μ(z / t) a relaxed y,

    ∇θ = (f(y) − η f(μ(z'/t))) ∇ log p(y) + η ∇ f(μ(z/t)) − η ∇ f(μ(z'/t))

z and z' have the same distribution, so the relaxed terms cancel on average, while given y f(μ(z'/t)) is close to f(y).
What z' is given y is known where ε makes exact draws: Gumbel noise on the Simplex, logistic noise on Bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from structmax import check
from structmax.backends import Refusal
from structmax.contract import AbstractStructure
from structmax.estimators.expectation import AbstractEstimator, Evaluations, credited, log_probs
from structmax.numerics.noise import gumbel_like, logistic_like
from structmax.omega.smooth import Entropy
from structmax.problem import Problem
from structmax.questions.argmax import ZERO
from structmax.structures.bits import Bits
from structmax.structures.simplex import Simplex


@dataclass(frozen=True)
class Rebar(AbstractEstimator):
    """The score function with a relaxation as control variate: f at a draw, and at two relaxed ones that belong to it.

    f is evaluated inside conv(Y), too: it should be smooth there. For `Simplex` and `Bits`.

    Args:
        temperature: t > 0 of the relaxation.
        weight: η, how much of it is subtracted.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.zeros(1000, 3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> g = torch.Generator().manual_seed(0)
        >>> f = lambda z, _: (z @ cost) ** 2
        >>> result = structmax.expect(f, x, structmax.Simplex(), structmax.estimators.Rebar(), generator=g)
        >>> result.value.sum().backward()
        >>> x.grad.mean(0)  # 1.4444, −0.2222, −1.2222
        tensor([ 1.4130, -0.1873, -1.2257])

    Reference: Tucker, Mnih, Maddison, Lawson & Sohl-Dickstein 2017, https://arxiv.org/abs/1703.07370.
    """

    temperature: float = 0.5
    weight: float = 1.0

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return "argmax", "marginals", "marginals_jvp"

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        y, log_p, feasible, relaxed = twins(self, problem, self.temperature, generator)
        # at the draw, at its relaxation, and at the one drawn again
        hard, own, other = f(problem, (torch.cat([y.unsqueeze(0), relaxed]),), feasible.expand(3, -1))
        path = self.weight * (own - other)
        value = hard + (path - path.detach())
        return credited(value, (hard - self.weight * other).unsqueeze(0), log_p)


def twins(
    estimator: AbstractEstimator, problem: Problem, temperature: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A draw y (B, n), its log p and whether there is one (1, B), and two relaxations of it (2, B, n).

    The first relaxation is of the noise that drew y, the second of noise drawn again given y.
    """
    structure = problem.structure
    if type(structure) not in NOISE:
        raise Refusal(
            f"{estimator!r} needs noise whose argmax is an exact sample. It is known for Simplex and Bits, but not for "
            f"{type(structure).__name__}. Try ScoreFunction() or SampleWithoutReplacement()."
        )
    noisy, again = NOISE[type(structure)]
    (scores,) = problem.scores
    z = noisy(scores, generator)
    (y,) = ZERO.point(problem.at((z.detach(),)))
    log_p, feasible = log_probs(problem, (y.unsqueeze(0),))
    relax = Entropy(temperature)
    relaxed = [relax.point(problem.at((each,)))[0] for each in (z, again(scores, y, generator))]
    return y, log_p, feasible, torch.stack(relaxed)


def _gumbel(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    return scores + gumbel_like(scores, generator).to(scores.dtype)


def _gumbel_given(scores: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
    """θ + G, up to a constant, given its argmax: the largest is a Gumbel of its own, all others are cut off by it.

    −log of a Gumbel variable is exponential: E_y at the argmax, E_i / p_i + E_y elsewhere.
    """
    forbidden = scores.isneginf()
    log_p = scores.masked_fill(forbidden, torch.finfo(scores.dtype).min / 4).log_softmax(-1)
    log_e = -gumbel_like(scores, generator).to(scores.dtype)
    top = (log_e * y).sum(-1, keepdim=True)
    return torch.where(y > 0, -top, -torch.logaddexp(log_e - log_p, top)).masked_fill(forbidden, -torch.inf)


def _logistic(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    return scores + logistic_like(scores, generator).to(scores.dtype)


def _logistic_given(scores: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
    """θ + a logistic variable, given its sign."""
    sign = 2 * y - 1
    forbidden = scores.isneginf()
    finite = scores.masked_fill(forbidden, 0.0)
    wide = logistic_like(scores, generator).to(scores.dtype)
    return (sign * functional.softplus(wide - functional.logsigmoid(-sign * finite))).masked_fill(forbidden, -torch.inf)


# For each structure: noisy scores, and noisy scores given their argmax.
NOISE: dict[type[AbstractStructure], tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    Simplex: (_gumbel, _gumbel_given),
    Bits: (_logistic, _logistic_given),
}
