"""Entropy, cross-entropy, divergence and log-probability of p(y) ∝ exp⟨θ, y⟩.

All four are log-partitions and inner products with marginals:

    log p(y) = ⟨θ, y⟩ − log Z(θ)
    H(p, q)  = log Z(φ) − ⟨φ, μ(θ)⟩          H(p) = H(p, p)          KL(p‖q) = H(p, q) − H(p)

so their gradients are those of the value and the point of `omega.Entropy`. A forbidden part has marginal 0 and counts
0, not 0 · −inf: values and gradients stay finite. Only where p gives mass to what q forbids are H(p, q) and KL
infinite, as they should be.

log Z and ⟨θ, μ⟩ are exact up to the rounding of the scores. Where every structure has a large mask, few digits of their
difference are left: then H(p) is computed in float64, and bounded by the log of the number of structures. Where a
score exceeds 1/(16 eps), such as a mask of −1e30, none are left. There p is uniform among the best up to this rounding,
and H(p) is computed from smaller scores of the same order: log Z(rθ) − ⟨rθ, μ⟩, which lies between H(p) and the
logarithm of the number of structures.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.omega.smooth import Conditioned
from structmax.parts import Tensors, countable, inner, rows, scaled, score
from structmax.problem import Problem
from structmax.questions.log_partition import ENTROPY

# A marginal up to this may be left by rounding, where masks leave no mass at all.
ROUNDING = 2.0**-50


def _feasible(log_z: Tensor) -> Tensor:
    """log Z with 0 for −inf: an empty set has entropy 0, not −inf."""
    return log_z.masked_fill(log_z.isneginf(), 0.0)


def _own(problem: Problem, mu: Tensors) -> Tensor:
    """H(p) from the marginals of p: (B,)."""
    if not check.readable(problem.scores[0]):
        return _bound(problem, mu)
    log_z, expected = ENTROPY.value(problem), inner(countable(problem.scores, mu), mu)
    # a sum may be too large for log Z, and not for marginals
    if not bool(_rounds_by(2.0**-8, torch.where(log_z.isneginf(), expected, log_z)).any()):
        return (_feasible(log_z) - expected).clamp_min(0.0)
    wide = problem.at(tuple(s.double() for s in problem.scores))
    bound = _bound(wide, ENTROPY.point(wide))
    return torch.minimum(bound, _feasible(_log_count(wide))).clamp_min(0.0).to(log_z.dtype)


def _bound(problem: Problem, mu: Tensors) -> Tensor:
    """H(p), or a bound for it where no digit would be left: (B,)."""
    counted = countable(problem.scores, mu)
    # the largest score of a part that counts: (B,)
    sizes = [c.detach().abs().amax(-1) for c in _nonempty(counted)]
    size = functools.reduce(torch.maximum, sizes)
    ratio = torch.where(_rounds_by(1 / 16, size), torch.finfo(size.dtype).eps ** -0.5 / size, 1.0)
    log_z = _feasible(ENTROPY.value(problem.at(scaled(ratio, problem.scores))))
    return (log_z - inner(scaled(ratio, counted), mu)).clamp_min(0.0)


def _rounds_by(error: float, scores: Tensor) -> Tensor:
    """Whether so much or more of such scores is lost by rounding."""
    return scores.detach().abs() * torch.finfo(scores.dtype).eps > error


def _nonempty(tensors: Tensors) -> list[Tensor]:
    """The parts of each instance, with one of 0 where there is none."""
    return [t if t.shape[-1] else t.new_zeros(*t.shape[:-1], 1) for t in rows(tensors)]


def entropy(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The entropy H = −Σ p(y) log p(y) of p(y) ∝ exp⟨θ, y⟩, in nats.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape; finite, with finite gradients, for any pattern of −inf.

    Examples:
        >>> import torch, structmax
        >>> structmax.entropy(torch.tensor([0.0, 0.0, -torch.inf]), structmax.Simplex())
        tensor(0.6931)
    """
    problem = Problem.of(scores, structure, backend, wide=True)
    return problem.shaped(entropy_of(problem))


def entropy_of(problem: Problem) -> Tensor:
    """H(p) of each instance: (B,)."""
    return _own(problem, ENTROPY.point(problem))


def cross_entropy(p: Scores, q: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The cross-entropy −Σ p(y) log q(y) of two distributions over one structure.

    Args:
        p: scores of the distribution under which the average is taken.
        q: scores of the distribution whose log-probabilities are averaged.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape; +inf where p gives mass to what q forbids.

    Examples:
        >>> import torch, structmax
        >>> p, q = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> structmax.cross_entropy(p, q, structmax.Simplex())
        tensor(0.8133)
    """
    first, second = _together(p, q, structure, backend)
    return first.shaped(_cross(second, ENTROPY.point(first)))


def _together(p: Scores, q: Scores, structure: AbstractStructure, backend: str) -> tuple[Problem, Problem]:
    """Two problems of one batch."""
    first, second = (Problem.of(scores, structure, backend, wide=True) for scores in (p, q))
    batch = torch.Size(torch.broadcast_shapes(first.batch, second.batch))
    return first.broadcast(batch), second.broadcast(batch)


def _cross(problem: Problem, mu: Tensors) -> Tensor:
    """H(p, q) from the marginals of p and the problem of q: (B,)."""
    return (_feasible(ENTROPY.value(problem)) - score(problem.scores, mu, above=ROUNDING)).clamp_min(0.0)


def kl_divergence(p: Scores, q: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The Kullback-Leibler divergence KL(p‖q) = Σ p(y) log(p(y)/q(y)) of two distributions over one structure.

    Args:
        p: scores of the first distribution.
        q: scores of the second.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape; +inf where p gives mass to what q forbids, finite everywhere else.

    Examples:
        >>> import torch, structmax
        >>> p, q = torch.tensor([0.0, 0.0, -torch.inf]), torch.tensor([0.0, 1.0, -torch.inf])
        >>> structmax.kl_divergence(p, q, structmax.Simplex())
        tensor(0.1201)
    """
    first, second = _together(p, q, structure, backend)
    mu = ENTROPY.point(first)
    return first.shaped((_cross(second, mu) - _own(first, mu)).clamp_min(0.0))


def log_prob(
    scores: Scores,
    structure: AbstractStructure,
    parts: Scores,
    *,
    known: Scores | None = None,
    backend: str = "auto",
) -> Tensor:
    """The log-probability ⟨θ, y⟩ − log Z(θ) of given structures, whole or partial.

    A partial structure is known at some parts only: log P(all structures that agree with y where it is known).

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        parts: y, with fields and shapes of the scores; more leading dimensions (samples) broadcast. Parts that no
            structure has, such as those past a length, are ignored.
        known: bool tensors shaped like `parts`, True where it is known whether the structure has the part; in a
            tuple, None means that nothing is known. By default everything is known.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape of `parts`; −inf for a structure with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.log_prob(torch.tensor([0.0, 1.0]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(-0.3133)
        >>> x, known = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([True, False, False])
        >>> structmax.log_prob(x, structmax.Simplex(), torch.zeros(3), known=known).exp()
        tensor(0.9100)
    """
    problem = Problem.of(scores, structure, backend, wide=True)
    return log_prob_of(problem, parts, known).to(problem.dtype)


def log_prob_of(problem: Problem, parts: Scores, known: Scores | None = None) -> Tensor:
    """The log-probability of parts under a problem: their batch shape, in the dtype that is computed with."""
    log_z = problem.with_batch((ENTROPY.value(problem),))[0]
    samples, y = problem.with_samples(parts)
    value = score(samples.scores, y) if known is None else _given(samples, y, known, parts)
    (value,) = samples.with_batch((value,))
    return torch.where(log_z.isneginf(), -math.inf, value - _feasible(log_z))


CONDITIONED = Conditioned()


def _given(problem: Problem, y: Tensors, known: Scores, parts: Scores) -> Tensor:
    """log Σ exp⟨θ, y⟩ over the structures that have no part known to be absent and all parts known to be there."""
    pairs: list[Any] = [(known, parts)] if isinstance(known, Tensor) else list(zip(known, parts, strict=False))
    for mask, given in pairs:
        if mask is not None:
            check.mask_like("known", mask, given)
    filled = tuple(
        torch.zeros_like(given) if mask is None else mask.to(given.dtype) for mask, given in pairs if given is not None
    )
    structure = problem.structure
    _, sure = problem.with_samples(structure.Parts(*filled) if structure.Parts else filled[0])
    allowed = tuple(
        s.masked_fill((k > 0) & (part == 0), -math.inf) for s, k, part in zip(problem.scores, sure, y, strict=True)
    )
    required = tuple(((k > 0) & (part > 0)).to(s.dtype) for s, k, part in zip(problem.scores, sure, y, strict=True))
    return CONDITIONED.value(problem.at(allowed), *required)


def log_count(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The logarithm of the number of feasible structures: `log_partition` with 0 for every finite score.

    Args:
        scores: of any values; only their shape and their −inf matter.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape, float64; −inf for an instance in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> structmax.log_count(torch.zeros(5, 5), structmax.BinaryTree()).exp()
        tensor(14.0000, dtype=torch.float64)
    """
    problem = Problem.of(scores, structure, backend, wide=True)
    return problem.with_batch((_log_count(problem),))[0]


def _log_count(problem: Problem) -> Tensor:
    flat = tuple(torch.zeros_like(s, dtype=torch.float64).masked_fill(s.isneginf(), -math.inf) for s in problem.scores)
    return ENTROPY.value(problem.at(flat))
