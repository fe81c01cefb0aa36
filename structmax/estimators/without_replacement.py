"""Draws without replacement, each of another structure, weighed so that their order does not matter.

With S the set of k draws and P the probability of orders given S, the expectation of f at the first draw, given S, is

    e(S) = Σ over s in S of w(s) f(s)          w(s) = P(first = s | S)

and so unbiased, with less variance than the first draw alone. A draw is compared with an estimate from the others,

    b(s) = p(s) f(s) + (1 − p(s)) Σ over s' ≠ s of P(second = s' | first = s, S) f(s')

All these probabilities come from G(A), the probability that S is completed when the draws A ⊆ S are made:

    G(S) = 1          G(A) = Σ over a in S∖A of p(a) / (1 − p(A)) · G(A ∪ a)
    P(first = s, S) = p(s) G(s)          P(first = s, second = s', S) = p(s) p(s') / (1 − p(s)) · G(s, s')
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.estimators.expectation import AbstractEstimator, Evaluations, credited, in_front, log_probs
from structmax.problem import Problem
from structmax.questions.sample import draw

# 2ᵏ sets of draws are visited.
MOST = 16


@dataclass(frozen=True)
class SampleWithoutReplacement(AbstractEstimator):
    """The unordered set estimator: Σ w(s) f(s) over k distinct draws, with a baseline from the draws themselves.

    Where Y has no more than k structures it is exact. The weights take 2ᵏ steps.

    Args:
        samples: k, how many distinct structures are drawn, 1 to 16. With 1 it is `ScoreFunction()`.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.zeros(3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> estimator = structmax.estimators.SampleWithoutReplacement(3)
        >>> result = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator)
        >>> result.value.backward()
        >>> x.grad
        tensor([ 0.3333,  0.0000, -0.3333])

    Reference: Kool, van Hoof & Welling 2020, Estimating gradients for discrete random variables by sampling without
    replacement, https://arxiv.org/abs/2002.06043.
    """

    samples: int = 2

    def __post_init__(self) -> None:
        check.whole("samples", self.samples, 1)
        if self.samples > MOST:
            raise ValueError(f"`samples` should be at most {MOST}, since 2ᵏ sets are visited, but is {self.samples}.")

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return "sample_without_replacement", "log_partition", "marginals"

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        *draws, log_drawn = in_front(draw(problem, "sample_without_replacement", (self.samples,), generator))
        losses = f(problem, tuple(draws), ~log_drawn.isneginf())
        log_p, _ = log_probs(problem, tuple(draws))
        p = log_drawn.double().exp()
        first, second = (chance.to(losses.dtype) for chance in order_chances(p))
        constant = losses.detach()
        baseline = p.to(losses.dtype) * constant + torch.einsum("st...,t...->s...", second, constant)
        credit = constant - baseline if self.samples > 1 else constant
        return credited((first * losses).sum(0), first * credit, log_p)


def order_chances(p: Tensor) -> tuple[Tensor, Tensor]:
    """For probabilities p (k, batch) of a set S of draws, 0 where there was none to draw: those of orders.

    Returns P(first = s | S), (k, batch), and (1 − p(s)) P(second = t | first = s, S), (k, k, batch).
    """
    k, batch = len(p), p.shape[1:]
    p = p.reshape(k, -1)
    # An instance with nothing left to draw has drawn everything.
    rest = (1.0 - p.sum(0)).clamp_min(0.0).where((p > 0).all(0), 0.0)
    # Missing draws come last: so small a mass does not change the other probabilities.
    p = p.clamp_min(1e-300)
    draws, sets = torch.arange(k, device=p.device), torch.arange(2**k, device=p.device)
    # (2ᵏ, k): whether a draw is outside a set
    outside = ((sets.unsqueeze(1) >> draws) % 2 == 0).to(p.dtype)
    # (2ᵏ, B): 1 − p(A), as a sum of what is left, so that nothing cancels
    left = outside @ p + rest
    completed = torch.ones_like(left)
    sizes = k - outside.sum(1)
    for size in reversed(range(k)):
        (these,) = (sizes == size).nonzero(as_tuple=True)
        # (sets, k, B): with one draw more; what was in the set already does not count
        larger = completed[these.unsqueeze(1) | (1 << draws)] * outside[these].unsqueeze(-1)
        completed[these] = (larger * p).sum(1) / left[these]
    one, two = completed[1 << draws], completed[(1 << draws).unsqueeze(1) | (1 << draws)]
    # Given s is first, the weights p(t) G(s, t) of the second sum to (1 − p(s)) G(s).
    second = p * two * (1 - torch.eye(k, device=p.device)).unsqueeze(-1) / one.unsqueeze(1)
    return (p * one / completed[0]).reshape(k, *batch), second.reshape(k, k, *batch)
