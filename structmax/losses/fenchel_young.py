"""Fenchel-Young losses of a structure: the conjugate of a regulariser Ω at the scores, measured at a target.

    L(θ, y) = Ω*(θ) + Ω(y) − ⟨θ, y⟩          ∇L = μ̂(θ) − y          Ω*(θ) = max over μ in conv(Y) of ⟨θ, μ⟩ − Ω(μ)

It is convex in θ, never negative, and 0 exactly where the point μ̂(θ) is the target. A cost linear in the parts,
cost(z) = ⟨c, z − y⟩, turns it into a margin loss by nothing but a shift of the scores:

    max over μ of ⟨θ, μ⟩ + cost(μ) − Ω(μ), plus Ω(y) − ⟨θ, y⟩,  is  L(θ + c, y)

Reference: Blondel, Martins & Niculae 2020, Learning with Fenchel-Young losses, https://arxiv.org/abs/1901.02324.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.argmax import argmax
from structmax.inference.composed import composed
from structmax.inference.log_partition import log_partition
from structmax.inference.oracle import Oracle, Tensors
from structmax.inference.question import countable, existing, front, inner, per_instance
from structmax.inference.smoothed import Regulariser, smoothed
from structmax.inference.sparsemap import sparsemap


class AbstractOmega(ABC):
    """A convex function Ω on conv(Y), by its conjugate."""

    @abstractmethod
    def conjugate(self, ask: Oracle, scores: Tensors) -> Tensor:
        """Ω*(θ), differentiable: the batch shape."""

    @abstractmethod
    def at(self, ask: Oracle, target: Tensors) -> Tensor | float:
        """Ω(y) of a structure y."""


@dataclass(frozen=True)
class Zero(AbstractOmega):
    """Ω = 0: the maximum, its point argmax. The perceptron loss."""

    def conjugate(self, ask: Oracle, scores: Tensors) -> Tensor:
        best = ask.parts(argmax, tuple(s.detach() for s in scores))
        return inner(countable(scores, best), best, ask.structure)

    def at(self, ask: Oracle, target: Tensors) -> float:
        return 0.0


@dataclass(frozen=True)
class DistributionEntropy(AbstractOmega):
    """Minus `temperature` times the entropy of the distribution over Y: Ω* = t log Z(θ/t), its point the marginals.

    0 at every structure. Inside conv(Y) it has no closed form and is left out, a constant of the scores.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    def conjugate(self, ask: Oracle, scores: Tensors) -> Tensor:
        t = self.temperature
        return t * ask.value(log_partition, tuple(s / t for s in scores))

    def at(self, ask: Oracle, target: Tensors) -> float:
        return 0.0


@dataclass(frozen=True)
class SquaredNorm(AbstractOmega):
    """temperature/2 ‖μ_R‖² over the parts R the structure regularises: its point is that of `sparsemap`."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    def conjugate(self, ask: Oracle, scores: Tensors) -> Tensor:
        parts = ask.structure.parts(scores)
        return sparsemap(parts, ask.structure, temperature=self.temperature, backend=ask.backend).value

    def at(self, ask: Oracle, target: Tensors) -> Tensor:
        counted = regularised(ask.structure, target)
        return self.temperature / 2 * inner(counted, counted, ask.structure)


@dataclass(frozen=True)
class Local(AbstractOmega):
    """Ω in every maximum of the structure's recursion: Ω* = DP_Ω, its point `smoothed_marginals`. 0 at every structure.

    Inside conv(Y) it has no closed form and is left out, a constant of the scores.
    """

    omega: Regulariser

    def conjugate(self, ask: Oracle, scores: Tensors) -> Tensor:
        return ask.value(smoothed, scores, self.omega)

    def at(self, ask: Oracle, target: Tensors) -> float:
        return 0.0


def regularised(structure: AbstractStructure, parts: Tensors) -> Tensors:
    """The parts that count as such, and 0 for those that follow from them, such as the transitions of a chain."""
    if structure.regularised is None:
        return parts
    names = structure.Parts._fields[: len(parts)]
    return tuple(
        p if name in structure.regularised else torch.zeros_like(p) for name, p in zip(names, parts, strict=True)
    )


def score(ask: Oracle, scores: Tensors, target: Tensors) -> Tensor:
    """⟨θ, y⟩ with 0 · −inf = 0: the batch shape; −inf where the target has a forbidden part."""
    value = inner(countable(scores, target), target, ask.structure)
    forbidden = tuple(s.isneginf() & (y > 0) for s, y in zip(scores, target, strict=True))
    broken = torch.stack([f.any(-1) for f in per_instance(forbidden, ask.structure)]).any(0)
    return value.masked_fill(broken, -math.inf)


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The losses of all instances as `reduction` says."""
    check.choice("reduction", reduction, ("mean", "sum", "none"))
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def prepared(
    scores: Scores, structure: AbstractStructure, target: Scores, backend: str
) -> tuple[Oracle, Tensors, Tensors]:
    """The oracle, the scores and the target, as tuples of part tensors that fit each other."""
    tensors, _ = front(scores, structure, backend)
    return Oracle(structure, backend), tensors, like("target", structure, structure.tensors(target), tensors)


def like(name: str, structure: AbstractStructure, parts: Tensors, scores: Tensors) -> Tensors:
    """Part tensors that broadcast to the scores, in their shape and dtype, and 0 for what no structure has."""
    for part, s in zip(parts, scores, strict=True):
        check.same_device(name, part, s)
        if not check.broadcasts(part.shape, s.shape):
            raise ValueError(
                f"`{name}` should have the scores' shape {tuple(s.shape)}, but has {tuple(part.shape)}. "
                "`structure.encode` makes parts from labels."
            )
    whole = tuple(part.to(s.dtype).expand(s.shape) for part, s in zip(parts, scores, strict=True))
    return existing(structure, scores, whole)


@composed
def fenchel_young(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    omega: AbstractOmega,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """The Fenchel-Young loss Ω*(θ) + Ω(y) − ⟨θ, y⟩ of a structure; gradient point − target. 0 iff they are the same.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        omega: `Zero()`, `DistributionEntropy(temperature)`, `SquaredNorm(temperature)` or `Local(regulariser)`.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> x, y = torch.tensor([[1.0, 0.5], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> structmax.fenchel_young(x, structmax.Matching(), y, structmax.Zero())
        tensor(2.5000)

    Reference: Blondel, Martins & Niculae 2020, https://arxiv.org/abs/1901.02324.
    """
    if not isinstance(omega, AbstractOmega):
        kind = omega.__name__ + " itself" if isinstance(omega, type) else repr(omega)
        hint = f" Try Local({omega!r})." if isinstance(omega, Regulariser) else ""
        raise TypeError(f"`omega` should be Zero(), DistributionEntropy() or another, but is {kind}.{hint}")
    ask, theta, y = prepared(scores, structure, target, backend)
    return reduced(loss(ask, theta, y, omega), reduction)


def loss(ask: Oracle, scores: Tensors, target: Tensors, omega: AbstractOmega) -> Tensor:
    """Ω*(θ) + Ω(y) − ⟨θ, y⟩ of every instance."""
    of_target = score(ask, scores, target)
    best = omega.conjugate(ask, scores)
    value = best + omega.at(ask, target) - of_target
    # 0, not −inf, where there are no structures; +inf, not −inf + inf, for a forbidden target
    return value.masked_fill(best.isneginf(), 0.0).masked_fill(of_target.isneginf(), math.inf)
