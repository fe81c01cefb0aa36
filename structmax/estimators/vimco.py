"""Bounds by the logarithm of a mean over draws, each compared with what the others make of it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.estimators.expectation import AbstractEstimator, Evaluations, credited, drawn, log_probs
from structmax.problem import Problem


@dataclass(frozen=True)
class Vimco(AbstractEstimator):
    """log mean over K draws of exp f(y), whose mean is a bound of log E exp f(y), with gradients of that mean.

    With f(y) = log p(x, y) − log q(y), where `expect(…, with_log_prob=True)` gives f log q, it is the importance
    weighted bound of log p(x). A draw's credit is L − L₋ₖ, where L₋ₖ has the geometric mean of the others in its place.
    The value is to be maximised: minimise its negative.

    Args:
        samples: K ≥ 2.

    Examples:
        >>> import torch, structmax
        >>> x, log_weight = torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
        >>> g = torch.Generator().manual_seed(0)
        >>> estimator = structmax.estimators.Vimco(1000)
        >>> structmax.expect(lambda z, _: z @ log_weight, x, structmax.Simplex(), estimator, generator=g)
        Expectation(value: 1.312; evaluations: 1000; torch.float32, cpu)
        >>> torch.logsumexp(log_weight, 0) - torch.tensor(3.0).log()
        tensor(1.3090)

    Reference: Mnih & Rezende 2016, Variational inference for Monte Carlo objectives, https://arxiv.org/abs/1602.06725.
    """

    samples: int = 2

    def __post_init__(self) -> None:
        check.whole("samples", self.samples, 2)

    @property
    def unbiased(self) -> bool:
        """Of the mean of the logarithm of a mean, which is not E[f(y)]."""
        return False

    @property
    def needs(self) -> tuple[str, ...]:
        return "sample", "log_partition", "marginals"

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        draws = drawn(problem, self.samples, generator)
        log_p, feasible = log_probs(problem, draws)
        losses = f(problem, draws, feasible)
        bound = losses.logsumexp(0) - math.log(self.samples)
        return credited(bound, bound - self._without(losses.detach()), log_p)

    def _without(self, losses: Tensor) -> Tensor:
        """The bound with each draw replaced by the mean of the others: (K, batch)."""
        others = (losses.sum(0) - losses) / (self.samples - 1)
        replaced = torch.diagonal_scatter(losses.expand(self.samples, *losses.shape), others.movedim(0, -1))
        return replaced.logsumexp(1) - math.log(self.samples)
