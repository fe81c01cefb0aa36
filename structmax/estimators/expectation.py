"""Estimates of E[f(y)] under p(y) ∝ exp⟨θ, y⟩, with gradients for f's parameters and for the scores.

    ∇θ E[f(y)] = Σ f(y) ∇p(y) = E[f(y) ∇ log p(y)]

Methods that sum have probabilities to differentiate. Methods that draw add a term that is 0 and has the gradient,

    Σ credit · (log p(y) − [log p(y)])          with [·] a constant

so that the value stays the estimate itself, and one backward pass serves f's parameters and the scores.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from structmax import backends
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.surrogate import AbstractSurrogate, surrogate
from structmax.inference.composed import narrow, widened
from structmax.inference.entropy import log_prob
from structmax.inference.oracle import Oracle, Tensors
from structmax.inference.question import front
from structmax.inference.sample import sample

Objective = Callable[[Any, Tensor], Tensor]


@dataclass
class Problem:
    """What an estimator is asked: f, and the distribution. Counts on how many structures f was evaluated."""

    f: Objective
    structure: AbstractStructure
    # part tensors with the batch in front, float32 or wider
    scores: Tensors
    generator: torch.Generator | None
    backend: str
    # what f is given parts in
    dtype: torch.dtype
    evaluations: int = field(default=0, init=False)

    @property
    def named(self) -> Any:
        """The scores as questions take them."""
        return self.structure.parts(self.scores)

    def losses(self, parts: Scores, where: Tensor) -> Tensor:
        """f of parts (K, batch, …) where `where` (K, batch) is True, asked all at once, and 0 elsewhere: (K, batch)."""
        chosen = where.nonzero(as_tuple=True)
        count = len(chosen[0])
        out = self.scores[0].new_zeros(where.shape)
        if count == 0:
            return out

        def shown(part: Any) -> Any:
            return part if part is None else part[chosen].to(self.dtype)

        # Indexed as f sees them: what a room makes of them belongs to the whole batch.
        rows = shown(parts) if isinstance(parts, Tensor) else type(parts)(*map(shown, parts))
        instances = torch.arange(where[0].numel(), device=where.device).reshape(where.shape[1:])
        found = self.f(rows, instances.expand(where.shape)[chosen])
        if not isinstance(found, Tensor) or found.shape != (count,):
            kind = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"`f` should return one number for each of the M = {count} structures it is given, shape ({count},), "
                f"but returned {kind}. It is called as f(parts, index), with M in front of the parts."
            )
        self.evaluations += count
        found = widened(found)
        return out.to(found.dtype).index_put(chosen, found)

    def draw(self, count: int) -> Any:
        """Independent draws: parts with `count` in front of the batch."""
        return sample(self.named, self.structure, (count,), generator=self.generator, backend=self.backend)

    def log_prob(self, parts: Scores) -> tuple[Tensor, Tensor]:
        """log p of parts (K, batch, …), 0 where it is −inf, and where it is not: (K, batch) both.

        Rooms return zeros for want of a structure; f is not asked about these.
        """
        log_p = log_prob(self.named, self.structure, parts, backend=self.backend)
        feasible = ~log_p.isneginf()
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
        """What the structure has to answer: names of a room's functions."""

    @abstractmethod
    def estimate(self, problem: Problem) -> Tensor:
        """The batch shape, with both gradients attached."""


@dataclass(frozen=True)
class Expectation:
    """An estimate of E[f(y)] for every instance, and what it cost."""

    # the batch shape; its backward pass reaches f's parameters and the scores
    value: Tensor
    # how many pairs of a structure and an instance f was evaluated on
    evaluations: int


def expect(
    f: Objective,
    scores: Scores,
    structure: AbstractStructure,
    estimator: AbstractEstimator | AbstractSurrogate,
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Expectation:
    """E[f(y)] over y ~ p(y) ∝ exp⟨θ, y⟩ for each instance, with gradients for f's parameters and for the scores.

    Args:
        f: called once or twice as f(parts, index) with M structures, M in front of the parts of one instance each, and
            the instance (M,) each belongs to, counted through the flattened batch: what f knows about instances, say
            `x`, it finds as `x[index]`. Returns (M,). It is evaluated on what is needed and nothing else.
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        estimator: exact `Enumerate()`; sums over a sparse distribution `SparseTopK(k)`, `SparseSupport()`; unbiased
            draws `ScoreFunction(samples, baseline)`, `SumAndSample(k)`, `SampleWithoutReplacement(k)`, `Rebar()`,
            `Relax(control)`; `Vimco(samples)` for log-means; or any surrogate, for which f is evaluated at its z.
        generator: source of chance.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        An `Expectation`: its `value` has the batch shape, and `.mean().backward()` gives all gradients; `evaluations`
        counts on how many structures f was evaluated. Where nothing is feasible the value is 0; a surrogate's z is
        zeros there, and f is asked about it.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
        >>> cost = torch.tensor([3.0, 2.0, 1.0])
        >>> result = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), structmax.Enumerate())
        >>> result.value
        tensor(1.4248, grad_fn=<SumBackward1>)
        >>> result.value.backward()
        >>> x.grad
        tensor([ 0.1418,  0.1408, -0.2826])
    """
    half = narrow(scores)
    tensors, _ = front(widened(scores), structure, backend)
    problem = Problem(f, structure, tensors, generator, backend, half or tensors[0].dtype)
    if isinstance(estimator, AbstractSurrogate):
        z = surrogate(scores, structure, estimator, generator=generator, backend=backend)
        everywhere = torch.ones((1, *structure.batch_shape(scores)), dtype=torch.bool, device=tensors[0].device)
        in_front = structure.parts(tuple(t.unsqueeze(0) for t in structure.tensors(z)))
        (value,) = problem.losses(in_front, everywhere)
        return Expectation(value if half is None else value.to(half), problem.evaluations)
    if not isinstance(estimator, AbstractEstimator):
        kind = estimator.__name__ + " itself" if isinstance(estimator, type) else repr(estimator)
        raise TypeError(f"`estimator` should be an object such as ScoreFunction(), but is {kind}.")
    _refuse(estimator, Oracle(structure, backend), tensors)
    value = estimator.estimate(problem)
    return Expectation(value if half is None else value.to(half), problem.evaluations)


def _refuse(estimator: AbstractEstimator, ask: Oracle, scores: Tensors) -> None:
    """Says what is missing, and which estimators the structure has the answers for."""
    missing = next((name for name in estimator.needs if not ask.answers(name, scores)), None)
    if missing is None:
        return
    room = type(ask.structure)
    reasons = backends.explain(room.room, missing, scores[0].device.type)
    why = room.intractable.get(missing) or "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())
    others = {"SparseSupport()": ("argmax",), "ScoreFunction()": ("sample", "log_partition")}
    able = [name for name, needs in others.items() if all(ask.answers(need, scores) for need in needs)]
    instead = f" Try {' or '.join(able)}." if able else ""
    asks = f"{estimator!r} asks `{missing}`, which {room.__name__} cannot answer"
    raise backends.Refusal(f"{asks}: {why.rstrip('.')}.{instead}")
