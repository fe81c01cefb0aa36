"""Proximal policy optimisation: several updates for one evaluation of f, while the distribution stays near."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.baselines import AbstractBaseline
from structmax.estimators.expectation import Evaluations, Objective, drawn, log_probs
from structmax.estimators.score_function import ScoreFunction
from structmax.outline import outline
from structmax.problem import Problem
from structmax.questions.entropy import log_prob


class Rollout(NamedTuple):
    """Draws and their losses, without gradients. `feasible` is False where there was no structure to draw."""

    # fields and shapes of the scores with S in front
    parts: Any
    # (S, batch), all of them
    log_probs: Tensor
    losses: Tensor
    credit: Tensor
    feasible: Tensor

    def __repr__(self) -> str:
        return outline(self)


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation: one draw serves several updates, as long as probabilities stay near.

    The loss is made of the ratio r = p(y) / p_then(y) of the probabilities now and when y was drawn,

        mean over draws of max(r c, clamp(r, 1 − clip, 1 + clip) c),          c = f(y) − b

    to be minimised. At the first update its gradient is that of `ScoreFunction`; a draw whose probability has moved by
    more than `clip` in the direction of its credit has none.

    Args:
        clip: how far ratios may move from 1, in (0, 1).
        samples: how many draws an instance gets, ≥ 1.
        baseline: b, as in `ScoreFunction`.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.zeros(3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> baseline = structmax.estimators.LeaveOneOut()
        >>> ppo, step = structmax.estimators.PPO(samples=100, baseline=baseline), torch.optim.SGD([x], 1.0)
        >>> g = torch.Generator().manual_seed(0)
        >>> drawn = ppo.draw(lambda z, _: z @ cost, x, structmax.Simplex(), generator=g)
        >>> for _ in range(4):
        ...     step.zero_grad()
        ...     ppo.loss(x, structmax.Simplex(), drawn).backward()
        ...     step.step()
        >>> structmax.marginals(x.detach(), structmax.Simplex())
        tensor([0.2188, 0.3269, 0.4543])

    Reference: Schulman, Wolski, Dhariwal, Radford & Klimov 2017, https://arxiv.org/abs/1707.06347.
    """

    clip: float = 0.2
    samples: int = 1
    baseline: AbstractBaseline | None = None

    def __post_init__(self) -> None:
        check.positive("clip", self.clip)
        check.whole("samples", self.samples, 1)

    def draw(
        self,
        f: Objective,
        scores: Scores,
        structure: AbstractStructure,
        *,
        generator: torch.Generator | None = None,
        backend: str = "auto",
    ) -> Rollout:
        """Draws structures and evaluates f on them, as `expect` would, without gradients."""
        problem, evaluations = Problem.of(scores, structure, backend, wide=True), Evaluations(f)
        problem = problem.at(tuple(s.detach() for s in problem.scores))
        with torch.no_grad():
            draws = drawn(problem, self.samples, generator)
            log_p, feasible = log_probs(problem, draws)
            losses = evaluations(problem, draws, feasible)
            credit = ScoreFunction(self.samples, self.baseline).credit(problem, evaluations, losses)
        many = problem.repeated(self.samples)
        numbers = (many.with_batch((t.reshape(-1),))[0] for t in (log_p, losses, credit, feasible))
        parts = many.structure.parts(many.with_batch(tuple(t.flatten(0, 1) for t in draws)))
        return Rollout(parts, *numbers)

    def loss(self, scores: Scores, structure: AbstractStructure, rollout: Rollout, *, backend: str = "auto") -> Tensor:
        """The clipped objective of each instance at the current scores: the batch shape."""
        log_p = log_prob(scores, structure, rollout.parts, backend=backend).masked_fill(~rollout.feasible, 0.0)
        return self.surrogate(log_p, rollout.log_probs, -rollout.credit).mean(0)

    def surrogate(self, log_probs: Tensor, old_log_probs: Tensor, advantage: Tensor) -> Tensor:
        """−min(r a, clamp(r) a) for your own draws: advantages are maximised. All tensors have one shape."""
        ratio = (log_probs - old_log_probs).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage)
