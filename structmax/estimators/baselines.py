"""What a draw's loss is compared with: a good guess of it that does not depend on the draw.

E[b ∇ log p(y)] = 0 for any b that does not depend on y, so f(y) − b gives the same expected gradient as f(y). The
better b predicts f(y), the lower the variance.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from structmax import check
from structmax.estimators.expectation import Evaluations, log_probs
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


class AbstractBaseline(ABC):
    """A guess of the losses."""

    # What the structure must support in addition to what draws need.
    needs: tuple[str, ...] = ()

    @abstractmethod
    def guess(self, problem: Problem, f: Evaluations, losses: Tensor) -> Tensor:
        """For losses (S, B) without gradient: a guess that broadcasts to them. One with a gradient is trained."""


@dataclass(frozen=True)
class LeaveOneOut(AbstractBaseline):
    """The mean of the other draws of the same instance. Needs samples ≥ 2.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import LeaveOneOut, ScoreFunction
        >>> x, cost = torch.zeros(3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> estimator, g = ScoreFunction(samples=4, baseline=LeaveOneOut()), torch.Generator().manual_seed(0)
        >>> structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator, generator=g).value.backward()
        >>> x.grad
        tensor([ 0.5000, -0.0833, -0.4167])

    Reference: Mnih & Rezende 2016; Kool, van Hoof & Welling 2019, Buy 4 REINFORCE samples, get a baseline for free!
    """

    def guess(self, problem: Problem, f: Evaluations, losses: Tensor) -> Tensor:
        if len(losses) < 2:
            raise ValueError("LeaveOneOut() compares draws of one instance: `samples` should be at least 2, but is 1.")
        return (losses.sum(0) - losses) / (len(losses) - 1)


@dataclass(frozen=True)
class SelfCritical(AbstractBaseline):
    """The loss of the best structure: one more evaluation of f for each instance.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import SelfCritical, ScoreFunction
        >>> x, cost = torch.zeros(3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> estimator, g = ScoreFunction(samples=1, baseline=SelfCritical()), torch.Generator().manual_seed(0)
        >>> structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator, generator=g).value.backward()
        >>> x.grad
        tensor([ 0.3333, -0.6667,  0.3333])

    Reference: Rennie, Marcheret, Mroueh, Ross & Goel 2017, https://arxiv.org/abs/1612.00563.
    """

    needs = ("argmax",)

    def guess(self, problem: Problem, f: Evaluations, losses: Tensor) -> Tensor:
        with torch.no_grad():
            best = tuple(t.unsqueeze(0) for t in ZERO.point(problem))
            return f(problem, best, log_probs(problem, best)[1])


@dataclass
class RunningMean(AbstractBaseline):
    """The mean loss of earlier batches, one number for all instances; the first batch is compared with 0.

    Args:
        decay: how much of the past is kept at each batch, in [0, 1).

    The state is `mean` and `weight`, tensors after the first batch.

    Examples:
        >>> import torch, structmax
        >>> baseline = structmax.estimators.RunningMean()
        >>> baseline(torch.tensor([1.0, 3.0]))
        tensor(0.)
        >>> baseline(torch.tensor([4.0, 4.0]))
        tensor(2.)
    """

    decay: float = 0.99
    mean: Any = field(default=0.0, init=False, repr=False)
    # 1 − decayᵗ: how much of the mean is not the 0 it started from
    weight: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_decay(self.decay)

    def guess(self, problem: Problem, f: Evaluations, losses: Tensor) -> Tensor:
        return self(losses)

    def __call__(self, losses: Tensor) -> Tensor:
        """The mean of earlier batches; these are then added to it."""
        before = losses.new_tensor(0.0) if self.weight == 0.0 else self.mean / self.weight
        if losses.numel():
            self.mean = self.decay * self.mean + (1 - self.decay) * losses.mean()
            self.weight = self.decay * self.weight + (1 - self.decay)
        return before


@dataclass(frozen=True)
class Learned(AbstractBaseline):
    """A module's guess for each instance, trained by the same backward pass: by ½ (f(y) − b)², which adds 0 to values.

    Args:
        module: from features to the batch shape, or to that and a last dimension of 1.
        features: of the instances; by default the scores, without gradient.
        centre: `RunningMean(decay)` to add the mean of what the module's guesses leave, so that it need not grow to the
            size of the losses first.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import Learned, ScoreFunction
        >>> guess = torch.nn.Linear(3, 1)
        >>> estimator = ScoreFunction(baseline=Learned(guess))
        >>> x, cost = torch.zeros(8, 3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> out = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator)
        >>> out.value.sum().backward()
        >>> guess.weight.grad.shape
        torch.Size([1, 3])

    Reference: Mnih & Gregor 2014, Neural variational inference and learning in belief networks,
    https://arxiv.org/abs/1402.0030.
    """

    module: nn.Module
    features: Any = None
    centre: RunningMean | None = None

    def guess(self, problem: Problem, f: Evaluations, losses: Tensor) -> Tensor:
        known = problem.structure.parts(problem.with_batch(tuple(s.detach() for s in problem.scores)))
        found = self.module(known if self.features is None else self.features)
        batch = problem.batch
        if found.shape not in (batch, (*batch, 1)):
            raise ValueError(
                f"The module of Learned() should return the batch shape {tuple(batch)}, but returned "
                f"{tuple(found.shape)}."
            )
        found = found.reshape(losses.shape[1:])
        return found if self.centre is None else found + self.centre(losses - found.detach())


@dataclass
class RunningScale:
    """Divides credits by their running standard deviation where that exceeds 1, so that steps are of one size.

    Args:
        decay: how much of the past is kept at each batch, in [0, 1).

    The state is `mean`, `square` and `weight`. The scale is that of earlier batches: gradients keep their direction.

    Examples:
        >>> import torch, structmax
        >>> scale = structmax.estimators.RunningScale()
        >>> scale(torch.tensor([-4.0, 4.0]))
        tensor([-4.,  4.])
        >>> scale(torch.tensor([-4.0, 4.0]))
        tensor([-1.,  1.])

    Reference: Mnih & Gregor 2014, https://arxiv.org/abs/1402.0030.
    """

    decay: float = 0.99
    mean: Any = field(default=0.0, init=False, repr=False)
    square: Any = field(default=0.0, init=False, repr=False)
    weight: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_decay(self.decay)

    def __call__(self, credit: Tensor) -> Tensor:
        scaled = credit
        if self.weight:
            variance = self.square / self.weight - (self.mean / self.weight) ** 2
            scaled = credit / variance.clamp_min(1.0).sqrt()
        if credit.numel():
            self.mean = self.decay * self.mean + (1 - self.decay) * credit.mean()
            self.square = self.decay * self.square + (1 - self.decay) * credit.square().mean()
            self.weight = self.decay * self.weight + (1 - self.decay)
        return scaled


def _check_decay(decay: object) -> None:
    check.positive("decay", decay, or_zero=True)
    assert isinstance(decay, int | float)
    if decay >= 1:
        raise ValueError(f"`decay` should be below 1, but is {decay}.")
