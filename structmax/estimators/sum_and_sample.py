"""Rao-Blackwellised draws: the best structures are summed, one draw stands for all others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.estimators.expectation import AbstractEstimator, Evaluations, credited, in_front, log_probs
from structmax.parts import Tensors, flat
from structmax.problem import Problem
from structmax.questions.sample import draw
from structmax.questions.topk import best


@dataclass(frozen=True)
class SumAndSample(AbstractEstimator):
    """Σ p(y) f(y) over the k best structures, and (1 − Σ p(y)) f(y') with one draw y' of the others.

    Among k + 1 structures drawn without replacement some are not of the k best, and the first of these is an exact
    draw from p restricted to the others. The mean of f over the best is its baseline: the gradient does not depend on a
    constant that is added to f.

    Args:
        k: how many structures are summed, ≥ 1.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.tensor([9.0, 9.0, 0.0, 0.0]), torch.tensor([1.0, 3.0, 2.0, 2.0])
        >>> g = torch.Generator().manual_seed(0)
        >>> estimator = structmax.estimators.SumAndSample(2)
        >>> structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator, generator=g)
        Expectation(value: 2; evaluations: 3; torch.float32, cpu)

    Reference: Liu, Regier, Tripuraneni, Jordan & McAuliffe 2019, Rao-Blackwellized stochastic gradients for discrete
    distributions, https://arxiv.org/abs/1810.04777.
    """

    k: int = 1

    def __post_init__(self) -> None:
        check.whole("k", self.k, 1)

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return "topk", "sample_without_replacement", "log_partition", "marginals"

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        k = self.k
        values, parts = best(problem, k)
        *draws, log_drawn = in_front(draw(problem, "sample_without_replacement", (k + 1,), generator))
        values, kept = values.movedim(1, 0), in_front(parts)
        first = _first_other(values, kept, tuple(draws), log_drawn)
        both = tuple(torch.cat([a, _at(b, first)]) for a, b in zip(kept, draws, strict=True))
        there = torch.cat([~values.isneginf(), first.unsqueeze(0) >= 0])
        losses = f(problem, both, there)
        log_p, _ = log_probs(problem, both)
        # Where there was no structure to find, its zeros may score above log Z: no exponential of that.
        p = log_p[:k].masked_fill(~there[:k], -math.inf).exp()
        # Σ p f over the others is (1 − Σ p) E f(y'), and its gradient (1 − Σ p) E f(y') ∇ log p(y').
        rest = (1.0 - p.detach().sum(0, keepdim=True)).clamp_min(0.0)
        other = rest * losses[k:]
        # Gradients of all p sum to 0, so any b may be subtracted from f in them: here its mean over the best.
        shares = values.detach().softmax(0).masked_fill(~there[:k], 0.0)
        b = (shares * losses[:k].detach()).sum(0, keepdim=True)
        credit = torch.cat([-p.detach() * b, other - rest * b])
        return credited((p * losses[:k]).sum(0) + other[0], credit, log_p)


def _first_other(values: Tensor, kept: Tensors, draws: Tensors, log_drawn: Tensor) -> Tensor:
    """Which draw is the first that is not one of the best: (B,), −1 where none is."""
    a, b = flat(draws, 2), flat(kept, 2)
    # ‖a − b‖² of whole numbers, exact: (k + 1, k, B)
    with torch.autocast(a.device.type, enabled=False):
        apart = a.square().sum(-1).unsqueeze(1) + b.square().sum(-1) - 2 * torch.einsum("sbp,kbp->skb", a, b)
    is_best = ((apart == 0) & ~values.isneginf()).any(1)
    is_other = ~is_best & ~log_drawn.isneginf()
    return torch.where(is_other.any(0), is_other.to(torch.uint8).argmax(0), -1)


def _at(drawn: Tensor, first: Tensor) -> Tensor:
    """The draw of that number for each instance, the first where it is −1: (1, B, …)."""
    index = first.clamp_min(0).reshape(1, *first.shape, *(1,) * (drawn.dim() - first.dim() - 1))
    return drawn.gather(0, index.expand(1, *drawn.shape[1:]))
