"""The score function estimator: draws, credited by how much their loss differs from a baseline."""

from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.estimators.baselines import AbstractBaseline, RunningScale
from structmax.estimators.expectation import AbstractEstimator, Evaluations, credited, drawn, log_probs
from structmax.problem import Problem


@dataclass(frozen=True)
class ScoreFunction(AbstractEstimator):
    """REINFORCE: the mean of f over draws; ∇θ by mean (f(y) − b) ∇ log p(y).

    Args:
        samples: how many draws an instance gets, ≥ 1.
        baseline: b: `LeaveOneOut()`, `SelfCritical()`, `RunningMean(decay)`, `Learned(module)`, or None for 0.
        scale: `RunningScale(decay)` to divide credits by their running standard deviation.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.zeros(3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> estimator = structmax.estimators.ScoreFunction(1000, structmax.estimators.LeaveOneOut())
        >>> g = torch.Generator().manual_seed(0)
        >>> result = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator, generator=g)
        >>> result.value.backward()
        >>> x.grad  # 1/3, 0, −1/3
        tensor([ 0.3420, -0.0013, -0.3407])

    Reference: Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning.
    """

    samples: int = 1
    baseline: AbstractBaseline | None = None
    scale: RunningScale | None = None

    def __post_init__(self) -> None:
        check.whole("samples", self.samples, 1)
        if self.baseline is not None:
            check.instance("baseline", self.baseline, AbstractBaseline, "None or an object such as LeaveOneOut()")

    @property
    def unbiased(self) -> bool:
        return self.scale is None

    @property
    def needs(self) -> tuple[str, ...]:
        return "sample", "log_partition", "marginals", *(self.baseline.needs if self.baseline else ())

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        draws = drawn(problem, self.samples, generator)
        log_p, feasible = log_probs(problem, draws)
        losses = f(problem, draws, feasible)
        credit = self.credit(problem, f, losses)
        value = credited(losses.mean(0), (self.scale(credit.detach()) if self.scale else credit) / self.samples, log_p)
        if credit.requires_grad:
            misfit = credit.square().mean(0) / 2
            value = value + (misfit - misfit.detach())
        return value

    def credit(self, problem: Problem, f: Evaluations, losses: Tensor) -> Tensor:
        """f(y) − b: (S, B), with a gradient for a baseline that learns."""
        constant = losses.detach()
        return constant if self.baseline is None else constant - self.baseline.guess(problem, f, constant)
