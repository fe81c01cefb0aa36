"""Estimates of E[f(y)] under p(y) ∝ exp⟨θ, y⟩, with gradients for f's parameters and for the scores.

    ∇θ E[f(y)] = Σ f(y) ∇p(y) = E[f(y) ∇ log p(y)]

Methods that sum have probabilities to differentiate. Methods that draw add a term that is 0 and has the gradient,

    Σ credit · (log p(y) − [log p(y)])          with [·] a constant

so that the value stays the estimate itself, and one backward pass serves f's parameters and the scores.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.possible import refuse
from structmax.estimators.surrogate import AbstractSurrogate, chosen
from structmax.half import widened
from structmax.outline import outline
from structmax.parts import Tensors, score
from structmax.problem import Problem
from structmax.questions.entropy import entropy_of
from structmax.questions.log_partition import ENTROPY
from structmax.questions.sample import draw

Objective = Callable[..., Tensor]


@dataclass
class Evaluations:
    """f on many structures at once, and how many there were."""

    f: Objective
    # whether f is given log-probabilities
    with_log_prob: bool = False
    count: int = field(default=0, init=False)
    # of the structures that were summed, (K, B), where these are not those of p
    probabilities: Tensor | None = field(default=None, init=False)

    def __call__(self, problem: Problem, parts: Tensors, where: Tensor, log_prob: Tensor | None = None) -> Tensor:
        """f of parts (K, B, …) where `where` (K, B) is True, evaluated all at once, and 0 elsewhere: (K, B).

        `log_prob` (K, B) is that of the parts, log p by default.
        """
        places = where.nonzero(as_tuple=True)
        asked = len(places[0])
        out = problem.scores[0].new_zeros(where.shape)
        if asked == 0:
            return out

        def shown(part: Any) -> Any:
            return part if part is None else part.reshape((*where.shape, *part.shape[rank:]))[places].to(problem.dtype)

        # Named first, as f sees them: what a structure makes of its parts belongs to the whole batch.
        rank = 1 + len(problem.batch)
        named = problem.structure.parts(tuple(t.reshape((t.shape[0], *problem.batch, *t.shape[2:])) for t in parts))
        if isinstance(named, dict):
            rows = {name: shown(part) for name, part in named.items()}
        else:
            rows = shown(named) if isinstance(named, Tensor) else type(named)(*map(shown, named))
        given: tuple[Any, ...] = (rows, places[1])
        if self.with_log_prob:
            log_prob = log_probs(problem, parts)[0] if log_prob is None else log_prob
            given = (*given, log_prob[places].to(problem.dtype))
        found = self.f(*given)
        if not isinstance(found, Tensor) or found.shape != (asked,):
            kind = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"`f` should return one number for each of the M = {asked} structures it is given, shape ({asked},), "
                f"but returned {kind}. It is called as f(parts, index), with M in front of the parts."
            )
        self.count += asked
        found = widened(found)
        return out.to(found.dtype).index_put(places, found)

    def summed(self, problem: Problem, parts: Tensors, probabilities: Tensor) -> Tensor:
        """Σ q(y) f(y) over parts (K, B, …) with probabilities q (K, B), evaluated where these are not 0: (B,)."""
        self.probabilities = probabilities
        inside = probabilities > 0
        log_prob = torch.where(inside, probabilities, 1.0).log()
        return (probabilities * self(problem, parts, inside, log_prob)).sum(0)


def _entropy(problem: Problem, probabilities: Tensor | None) -> Tensor:
    """Of the distribution with these probabilities (K, B), or of p, as an answer."""
    if probabilities is None:
        return problem.shaped(entropy_of(problem))
    # NaN stays
    inside = torch.where(probabilities == 0, 1.0, probabilities)
    return problem.shaped((inside * -inside.log()).sum(0))


def drawn(problem: Problem, count: int, generator: torch.Generator | None) -> Tensors:
    """Independent draws: parts (count, B, …)."""
    return in_front(draw(problem, "sample", (count,), generator))


def in_front(tensors: Tensors) -> Tensors:
    """Tensors (B, K, …) as (K, B, …)."""
    return tuple(t.movedim(1, 0) for t in tensors)


def log_probs(problem: Problem, parts: Tensors) -> tuple[Tensor, Tensor]:
    """log p of parts (K, B, …), 0 where it is −inf, and where it is not: (K, B) both.

    Functions return zeros where there is no structure; f is not evaluated on these.
    """
    log_z = ENTROPY.value(problem)
    values = score(tuple(s.unsqueeze(0) for s in problem.scores), parts, 2)
    feasible = ~(values.isneginf() | log_z.isneginf())
    log_p = torch.where(feasible, values, 0.0) - log_z.masked_fill(log_z.isneginf(), 0.0)
    # Where every structure has a mask of −1e30, a difference of such sums may be far above 0.
    log_p = log_p - log_p.detach().clamp_min(0.0)
    return log_p.masked_fill(~feasible, 0.0), feasible


def credited(value: Tensor, credit: Tensor, log_p: Tensor) -> Tensor:
    """The value, with the gradient of Σ credit · log p over dimension 0 as well."""
    return value + (credit.detach() * (log_p - log_p.detach())).sum(0)


class AbstractEstimator(ABC):
    """A way to estimate E[f(y)] and its gradients."""

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether value and gradients are those of E[f(y)] on average."""

    @property
    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """The names of the functions that the structure must have."""

    @abstractmethod
    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        """The estimate for every instance, with both gradients attached: (B,)."""


@dataclass(frozen=True)
class Expectation:
    """An estimate of E[f(y)] for every instance, and what it cost."""

    # the batch shape; its backward pass reaches f's parameters and the scores
    value: Tensor
    # how many pairs of a structure and an instance f was evaluated on
    evaluations: int
    _entropy: Callable[[], Tensor] = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return outline(self)

    @property
    def entropy(self) -> Tensor:
        """−Σ q(y) log q(y) of the distribution the estimator averages over, in the batch shape, with its gradient.

        q is sparse for `SparseTopK` and `SparseSupport`, and p for all others. It is computed here, exactly, whatever
        the estimator draws.
        """
        return self._entropy()


def expect(
    f: Objective,
    scores: Scores,
    structure: AbstractStructure,
    estimator: AbstractEstimator | AbstractSurrogate,
    *,
    with_log_prob: bool = False,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Expectation:
    """E[f(y)] over y ~ p(y) ∝ exp⟨θ, y⟩ for each instance, with gradients for f's parameters and for the scores.

    Args:
        f: called once or twice as f(parts, index) with M structures, M in front of the parts of one instance each, and
            the instance (M,) each belongs to, counted through the flattened batch: per-instance data such as
            `x` is then `x[index]`. Returns (M,). It is evaluated only on the structures that are needed.
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        estimator: exact `Enumerate()`; sums over a sparse distribution `SparseTopK(k)`, `SparseSupport()`; unbiased
            draws `ScoreFunction(samples, baseline)`, `SumAndSample(k)`, `SampleWithoutReplacement(samples)`, `Rebar()`,
            `Relax(control)`; `Vimco(samples)` for log-means; or any surrogate, for which f is evaluated at its z.
        with_log_prob: whether f is called as f(parts, index, log_prob), with the log-probability (M,) of each structure
            under the distribution that is averaged over. Gradients through it reach the scores, too. A relaxed z has
            ⟨θ, z⟩ − log Z.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        An `Expectation`: its `value` has the batch shape, and `.mean().backward()` gives all gradients; `evaluations`
        counts on how many structures f was evaluated; `entropy` is that of the distribution, so that the evidence
        lower bound for f = −log p(x, y) is `result.entropy - result.value`. Where nothing is feasible the value is 0; a
        surrogate's z is zeros there, and f is evaluated on it.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
        >>> cost = torch.tensor([3.0, 2.0, 1.0])
        >>> result = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), structmax.estimators.Enumerate())
        >>> result.value
        tensor(1.4248, grad_fn=<ViewBackward0>)
        >>> result.value.backward()
        >>> x.grad
        tensor([ 0.1418,  0.1408, -0.2826])
        >>> result.entropy
        tensor(0.8324, grad_fn=<ViewBackward0>)
    """
    check.takes("f", f, ("parts", "index", "log_prob") if with_log_prob else ("parts", "index"))
    problem, evaluations = Problem.of(scores, structure, backend, wide=True), Evaluations(f, with_log_prob)
    if isinstance(estimator, AbstractSurrogate):
        z = tuple(t.unsqueeze(0) for t in chosen(problem, estimator, generator))
        everywhere = torch.ones((1, *z[0].shape[1:2]), dtype=torch.bool, device=z[0].device)
        (value,) = evaluations(problem, z, everywhere)
    else:
        check.instance("estimator", estimator, AbstractEstimator, "an object such as ScoreFunction()")
        refuse(problem, estimator, estimator.needs, SIMPLE)
        value = estimator.estimate(problem, evaluations, generator)
    entropy = functools.partial(_entropy, problem, evaluations.probabilities)
    return Expectation(problem.shaped(value), evaluations.count, entropy)


# Estimators that need little, for a refusal to suggest.
SIMPLE = {"SparseSupport()": ("sparsemap",), "ScoreFunction()": ("sample", "log_partition")}
