"""A torch.distributions interface to (scores, structure)."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.problem import Problem
from structmax.questions.argmax import argmax
from structmax.questions.entropy import entropy, kl_divergence, log_prob
from structmax.questions.log_partition import ENTROPY, log_partition, marginals
from structmax.questions.members import members
from structmax.questions.minimum_bayes_risk import minimum_bayes_risk
from structmax.questions.sample import sample


class Distribution(torch.distributions.Distribution):
    """p(y) ∝ exp⟨θ, y⟩ over the members y of a structure.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions.
        structure: the set Y.
        validate_args: whether to check values: scores without NaN, parts made of zeros and ones, or of counts where a
            part may be used several times.

    Examples:
        >>> import torch, structmax
        >>> p = structmax.Distribution(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), structmax.Simplex())
        >>> p
        Distribution(Simplex(), batch_shape=(2,))
        >>> p.batch_shape, p.event_shape
        (torch.Size([2]), torch.Size([2]))
        >>> p.mode
        tensor([[0., 1.],
                [1., 0.]])
        >>> p.log_prob(p.sample((7,))).shape
        torch.Size([7, 2])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_enumerate_support = True

    def __init__(self, scores: Scores, structure: AbstractStructure, validate_args: bool | None = None) -> None:
        problem = Problem.of(scores, structure)
        # Questions widen what a structure adds up.
        as_given = problem.dtype != problem.scores[0].dtype
        self.scores = structure.Parts(*scores) if as_given else problem.named(problem.scores)
        self.structure = structure
        super().__init__(problem.batch, problem.scores[0].shape[1:], validate_args=validate_args)
        if self._validate_args:
            for tensor in problem.with_batch(problem.existing(problem.scores)):
                check.no_nan("scores", tensor)

    def __repr__(self) -> str:
        return f"Distribution({self.structure!r}, batch_shape={tuple(self.batch_shape)})"

    @property
    def support(self) -> constraints.Constraint:
        counts = any(self.structure.counts(self.structure.tensors(self.scores)))
        each = constraints.nonnegative_integer if counts else constraints.boolean
        return constraints.independent(each, self.structure.event_dim)

    @property
    def log_partition(self) -> Tensor:
        """log Z = log Σ exp⟨θ, y⟩; where the scores are log-probabilities, the log-likelihood."""
        return log_partition(self.scores, self.structure)

    @property
    def mode(self) -> Any:
        return argmax(self.scores, self.structure)

    def minimum_bayes_risk(self, over: tuple[str, ...] | None = None, threshold: float = 0.5) -> Any:
        """The structure that agrees with a draw in most parts, on average; see `structmax.minimum_bayes_risk`."""
        return minimum_bayes_risk(self.scores, self.structure, over=over, threshold=threshold)

    @property
    def mean(self) -> Any:
        return marginals(self.scores, self.structure)

    @property
    def variance(self) -> Any:
        """Of each part: μ(1 − μ), or for counts the derivative of μ by the part's own score."""
        return _variance(self.scores, self.structure)

    @property
    def stddev(self) -> Any:
        """The square root of the variance of each part."""
        return self.structure.parts(tuple(v.sqrt() for v in self.structure.tensors(self.variance)))

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Any:  # type: ignore[override]
        return sample(self.scores, self.structure, sample_shape, generator=generator)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        raise NotImplementedError(
            "A sample of a discrete structure has no gradient, so there is no `rsample`. Try "
            "`structmax.surrogate(scores, structure, estimators.PerturbAndMAP())` for draws with a surrogate gradient, "
            "or `structmax.expect(f, scores, structure, estimator)` for the gradient of an expectation."
        )

    def log_prob(self, value: Scores) -> Tensor:
        if self._validate_args:
            tensors = self.structure.tensors(self.scores)
            for parts, scores in zip(self.structure.tensors(value), tensors, strict=True):
                check.samples("value", parts, scores)
            _, given = Problem.of(self.scores, self.structure).with_samples(value)
            for parts, counted in zip(given, self.structure.counts(tensors), strict=True):
                check.zeros_and_ones("value", parts, counted)
        return log_prob(self.scores, self.structure, value)

    def entropy(self) -> Tensor:
        return entropy(self.scores, self.structure)

    def enumerate_support(self, expand: bool = True) -> Any:
        """All members, in front of the batch: (M, batch, …), or (M, 1 …, …) if not `expand`.

        The instances should have the same members, as they have when there are no lengths or all are equal.
        """
        batch = self.batch_shape
        tensors = self.structure.tensors(self.scores)
        each = [self.structure.at(index, batch) for index in itertools.product(*map(range, batch))]
        if not all(each[0].matches(other) for other in each[1:]):
            raise ValueError(
                "The instances should all have the same members, but have different lengths. "
                "Try `structure.at(index, batch_shape).enumerate(...)` for one of them."
            )
        first = tuple(t[(0,) * len(batch)] for t in tensors)
        listed = members(each[0], first, "Try `sample`, or `structmax.topk` for the best.")
        shaped = [m.reshape(m.shape[0], *(1,) * len(batch), *m.shape[1:]) for m in listed]
        if expand:
            shaped = [m.expand(m.shape[0], *batch, *m.shape[1 + len(batch) :]) for m in shaped]
        return self.structure.parts(tuple(shaped))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "Distribution":
        rank = len(self.batch_shape)
        wide = tuple(t.expand(*batch_shape, *t.shape[rank:]) for t in self.structure.tensors(self.scores))
        return Distribution(self.structure.parts(wide), self.structure, validate_args=False)


def _variance(scores: Scores, structure: AbstractStructure) -> Any:
    problem = Problem.of(scores, structure, wide=True)
    counts = structure.counts(problem.scores)
    variances = (
        (_own_slope(problem, number) if counts[number] else mu * (1 - mu)).clamp_min(0.0)
        for number, mu in enumerate(ENTROPY.point(problem))
    )
    return problem.named(tuple(variances))


def _own_slope(problem: Problem, number: int) -> Tensor:
    """∂μ_i/∂θ_i, the diagonal of the Hessian of log Z, for the parts of one tensor: (B, …)."""
    tensors = problem.scores
    # Numbers that share one place in memory have no derivatives of their own.
    scores = tensors[number].contiguous()
    event = scores.shape[1:]

    def mean(own: Tensor) -> Tensor:
        return ENTROPY.point(problem.at((*tensors[:number], own, *tensors[number + 1 :])))[number]

    def slope(direction: Tensor) -> Tensor:
        along = torch.func.jvp(mean, (scores,), (direction.expand(scores.shape),))[1]
        return (along * direction).flatten(1).sum(-1)

    size = event.numel()
    basis = torch.eye(size, dtype=scores.dtype, device=scores.device).reshape(size, *event)
    return torch.vmap(slope, chunk_size=64)(basis).movedim(0, -1).reshape(scores.shape)


@register_kl(Distribution, Distribution)
def _kl(p: Distribution, q: Distribution) -> Tensor:
    if not p.structure.matches(q.structure):
        raise ValueError(
            f"Both distributions should be over one structure, but are over {p.structure} and {q.structure}."
        )
    return kl_divergence(p.scores, q.scores, p.structure)
