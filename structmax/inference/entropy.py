"""Entropy, cross-entropy, divergence and log-probability of p(y) ∝ exp⟨θ, y⟩.

All four are log-partitions and inner products with marginals:

    log p(y) = ⟨θ, y⟩ − log Z(θ)
    H(p, q)  = log Z(φ) − ⟨φ, μ(θ)⟩          H(p) = H(p, p)          KL(p‖q) = H(p, q) − H(p)

so their gradients are those of LogPartition and Marginals. A forbidden part has marginal 0 and counts 0, not 0 · −inf:
values and gradients stay finite. Only where p gives mass to what q forbids are H(p, q) and KL infinite, as they should.

log Z and ⟨θ, μ⟩ are exact up to the rounding of the scores. Where every structure has a large mask, few digits of their
difference are left: then H(p) is computed in float64, and held to the logarithm of the number of structures. Where some
part is beyond 1/(16 eps), a mask of −1e30 say, there are none. There p is uniform among the best, up to this rounding,
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
from structmax.inference.composed import composed, widened
from structmax.inference.log_partition import LOG_PARTITION
from structmax.inference.potential import Potential, point, value
from structmax.inference.question import Asked, countable, existing, front, inner, per_instance, scaled


def _expected(scores: tuple[Tensor, ...], mu: tuple[Tensor, ...], structure: AbstractStructure) -> Tensor:
    """⟨θ, μ⟩ with 0 · −inf = 0; −inf where μ gives mass to a forbidden part."""
    expected = inner(countable(scores, mu), mu, structure)
    forbidden = tuple(s.isneginf() & (m > 0) for s, m in zip(scores, mu, strict=True))
    broken = [f.any(-1) for f in per_instance(forbidden, structure)]
    return expected.masked_fill(torch.stack(broken).any(0), -math.inf)


def _feasible(log_z: Tensor) -> Tensor:
    """log Z with 0 for −inf: an empty set has entropy 0, not −inf."""
    return log_z.masked_fill(log_z.isneginf(), 0.0)


def _own(asked: Asked, scores: tuple[Tensor, ...], mu: tuple[Tensor, ...]) -> Tensor:
    """H(p) from the marginals of p."""
    if not check.readable(scores[0]):
        return _bound(asked, scores, mu)
    log_z, expected = value(asked, LOG_PARTITION, scores), inner(countable(scores, mu), mu, asked.structure)
    # a sum may be too large for log Z, and not for marginals
    if not bool(_rounds_by(2.0**-8, torch.where(log_z.isneginf(), expected, log_z)).any()):
        return (_feasible(log_z) - expected).clamp_min(0.0)
    wide = tuple(s.double() for s in scores)
    bound = _bound(asked, wide, point(asked, LOG_PARTITION, wide))
    return torch.minimum(bound, _feasible(_log_count(asked, wide))).to(log_z.dtype)


def _bound(asked: Asked, scores: tuple[Tensor, ...], mu: tuple[Tensor, ...]) -> Tensor:
    """H(p), or a bound for it where no digit would be left."""
    counted = countable(scores, mu)
    # the largest score of a part that counts: (batch,)
    sizes = [c.detach().abs().amax(-1) for c in _nonempty(counted, asked.structure)]
    size = functools.reduce(torch.maximum, sizes)
    ratio = torch.where(_rounds_by(1 / 16, size), torch.finfo(size.dtype).eps ** -0.5 / size, 1.0)
    log_z = _feasible(value(asked, LOG_PARTITION, scaled(ratio, scores)))
    return (log_z - inner(scaled(ratio, counted), mu, asked.structure)).clamp_min(0.0)


def _rounds_by(error: float, scores: Tensor) -> Tensor:
    """Whether so much or more of such scores is lost by rounding."""
    return scores.detach().abs() * torch.finfo(scores.dtype).eps > error


def _nonempty(tensors: tuple[Tensor, ...], structure: AbstractStructure) -> list[Tensor]:
    """The parts of each instance, with one of 0 where there is none."""
    return [t if t.shape[-1] else t.new_zeros(*t.shape[:-1], 1) for t in per_instance(tensors, structure)]


@composed
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
    tensors, asked = front(scores, structure, backend)
    return _own(asked, tensors, point(asked, LOG_PARTITION, tensors))


@composed
def cross_entropy(p: Scores, q: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The cross-entropy −Σ p(y) log q(y) of two distributions over one structure.

    Args:
        p: scores of the distribution that averages.
        q: scores of the distribution that is measured.
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
    p_tensors, asked = front(p, structure, backend)
    q_tensors, _ = front(q, structure, backend)
    return _cross(asked, q_tensors, point(asked, LOG_PARTITION, p_tensors))


def _cross(asked: Asked, q: tuple[Tensor, ...], mu: tuple[Tensor, ...]) -> Tensor:
    """H(p, q) from the marginals of p."""
    log_z = _feasible(value(asked, LOG_PARTITION, q))
    return (log_z - _expected(q, mu, asked.structure)).clamp_min(0.0)


@composed
def kl_divergence(p: Scores, q: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The divergence KL(p‖q) = Σ p(y) log(p(y)/q(y)) of two distributions over one structure.

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
    p_tensors, asked = front(p, structure, backend)
    q_tensors, _ = front(q, structure, backend)
    mu = point(asked, LOG_PARTITION, p_tensors)
    return (_cross(asked, q_tensors, mu) - _own(asked, p_tensors, mu)).clamp_min(0.0)


@composed
def log_prob(
    scores: Scores,
    structure: AbstractStructure,
    parts: Scores,
    *,
    known: Scores | None = None,
    backend: str = "auto",
) -> Tensor:
    """The log-probability ⟨θ, y⟩ − log Z(θ) of given structures, or that of partial ones.

    A partial structure is known at some parts only: log P(all structures that agree with y where it is known).

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        parts: y, with fields and shapes of the scores; more leading dimensions (samples) broadcast. What no structure
            has, such as parts past a length, counts nothing.
        known: bool tensors shaped like `parts`, True where it is known whether the structure has the part; of a tuple
            an entry may be None, nothing known. By default everything is known.
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
    tensors, asked = front(scores, structure, backend)
    chosen = structure.tensors(parts)
    for own, given in zip(tensors, chosen, strict=True):
        check.together("Scores and parts", own.shape, given.shape, " `structure.encode` makes parts from labels.")
    wide = [torch.broadcast_tensors(s, y) for s, y in zip(tensors, chosen, strict=True)]
    wide_scores, y = tuple(s for s, _ in wide), existing(structure, tensors, tuple(y for _, y in wide))
    log_z = value(asked, LOG_PARTITION, tensors)
    score = _expected(wide_scores, y, structure) if known is None else _given(asked, wide_scores, y, known, parts)
    return torch.where(log_z.isneginf(), -math.inf, score - _feasible(log_z))


GIVEN = Potential("given_log_partition", "given_log_partition_and_marginals", "given_marginals_jvp")


def _given(asked: Asked, scores: tuple[Tensor, ...], y: tuple[Tensor, ...], known: Scores, parts: Scores) -> Tensor:
    """log Σ exp⟨θ, y⟩ over the structures that have no part known to be absent and all parts known to be there."""
    structure = asked.structure
    pairs: list[Any] = [(known, parts)] if isinstance(known, Tensor) else list(zip(known, parts, strict=False))
    for mask, given in pairs:
        if mask is not None:
            check.mask_like("known", mask, given)
    filled = tuple(
        torch.zeros_like(given) if mask is None else mask.to(given.dtype) for mask, given in pairs if given is not None
    )
    sure = structure.tensors(structure.Parts(*filled) if structure.Parts else filled[0])
    known_parts = tuple(k.expand_as(s) > 0 for k, s in zip(sure, scores, strict=True))
    allowed = tuple(
        s.masked_fill(k & (part == 0), -math.inf) for s, k, part in zip(scores, known_parts, y, strict=True)
    )
    required = tuple((k & (part > 0)).to(s.dtype) for s, k, part in zip(scores, known_parts, y, strict=True))
    return value(asked, GIVEN, allowed, required)


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
    tensors, asked = front(widened(scores), structure, backend)
    return _log_count(asked, tensors)


def _log_count(asked: Asked, scores: tuple[Tensor, ...]) -> Tensor:
    flat = tuple(torch.zeros_like(s, dtype=torch.float64).masked_fill(s.isneginf(), -math.inf) for s in scores)
    return value(asked, LOG_PARTITION, flat)
