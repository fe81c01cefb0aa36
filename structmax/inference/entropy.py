"""Entropy, cross-entropy, divergence and log-probability of p(y) ∝ exp⟨θ, y⟩.

All four are log-partitions and inner products with marginals:

    log p(y) = ⟨θ, y⟩ − log Z(θ)
    H(p, q)  = log Z(φ) − ⟨φ, μ(θ)⟩          H(p) = H(p, p)          KL(p‖q) = H(p, q) − H(p)

so their gradients are those of LogPartition and Marginals. A forbidden part has marginal 0 and counts 0, not 0 · −inf:
values and gradients stay finite. Only where p gives mass to what q forbids are H(p, q) and KL infinite, as they should.
"""

import math

import torch
from torch import Tensor

from structmax.contract import AbstractStructure, Scores
from structmax.inference.log_partition import log_partition_rule, marginals_rule
from structmax.inference.question import Asked, front, inner, without_infinities


def _expected(scores: tuple[Tensor, ...], mu: tuple[Tensor, ...], structure: AbstractStructure) -> Tensor:
    """⟨θ, μ⟩ with 0 · −inf = 0; −inf where μ gives mass to a forbidden part."""
    value = inner(without_infinities(scores), mu, structure)
    broken = [(s.isneginf() & (m > 0)).flatten(s.dim() - d).any(-1) for s, m, d in _zip(scores, mu, structure)]
    return value.masked_fill(torch.stack(broken).any(0), -math.inf)


def _zip(scores: tuple[Tensor, ...], mu: tuple[Tensor, ...], structure: AbstractStructure) -> zip:
    return zip(scores, mu, structure.event_dims, strict=True)


def _feasible(log_z: Tensor) -> Tensor:
    """log Z with 0 for −inf: an empty set has entropy 0, not −inf."""
    return log_z.masked_fill(log_z.isneginf(), 0.0)


def entropy(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The entropy H = −Σ p(y) log p(y) of p(y) ∝ exp⟨θ, y⟩, in nats.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape; finite, with finite gradients, for any pattern of −inf.

    Example:
        >>> import torch, structmax
        >>> structmax.entropy(torch.tensor([0.0, 0.0, -torch.inf]), structmax.Simplex())
        tensor(0.6931)
    """
    tensors, asked = front(scores, structure, backend)
    mu = marginals_rule(asked, *tensors)
    return _feasible(log_partition_rule(asked, *tensors)) - inner(without_infinities(tensors), mu, structure)


def cross_entropy(p: Scores, q: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The cross-entropy −Σ p(y) log q(y) of two distributions over one structure.

    Args:
        p: scores of the distribution that averages.
        q: scores of the distribution that is measured.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape; +inf where p gives mass to what q forbids.

    Example:
        >>> import torch, structmax
        >>> p, q = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> structmax.cross_entropy(p, q, structmax.Simplex())
        tensor(0.8133)
    """
    p_tensors, asked = front(p, structure, backend)
    q_tensors, _ = front(q, structure, backend)
    return _cross(p_tensors, q_tensors, asked)


def _cross(p: tuple[Tensor, ...], q: tuple[Tensor, ...], asked: Asked) -> Tensor:
    mu = marginals_rule(asked, *p)
    return _feasible(log_partition_rule(asked, *q)) - _expected(q, mu, asked.structure)


def kl_divergence(p: Scores, q: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The divergence KL(p‖q) = Σ p(y) log(p(y)/q(y)) of two distributions over one structure.

    Args:
        p: scores of the first distribution.
        q: scores of the second.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape; +inf where p gives mass to what q forbids, finite everywhere else.

    Example:
        >>> import torch, structmax
        >>> p, q = torch.tensor([0.0, 0.0, -torch.inf]), torch.tensor([0.0, 1.0, -torch.inf])
        >>> structmax.kl_divergence(p, q, structmax.Simplex())
        tensor(0.1201)
    """
    p_tensors, asked = front(p, structure, backend)
    q_tensors, _ = front(q, structure, backend)
    return _cross(p_tensors, q_tensors, asked) - _cross(p_tensors, p_tensors, asked)


def log_prob(scores: Scores, structure: AbstractStructure, parts: Scores, *, backend: str = "auto") -> Tensor:
    """The log-probability ⟨θ, y⟩ − log Z(θ) of given structures.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        parts: y, with fields and shapes of the scores; more leading dimensions (samples) broadcast.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape of `parts`; −inf for a structure with a forbidden part.

    Example:
        >>> import torch, structmax
        >>> structmax.log_prob(torch.tensor([0.0, 1.0]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(-0.3133)
    """
    tensors, asked = front(scores, structure, backend)
    chosen = structure.tensors(parts)
    wide = [torch.broadcast_tensors(s, y) for s, y in zip(tensors, chosen, strict=True)]
    score = _expected(tuple(s for s, _ in wide), tuple(y for _, y in wide), structure)
    log_z = log_partition_rule(asked, *tensors)
    return torch.where(log_z.isneginf(), -math.inf, score - _feasible(log_z))
