"""The Tsallis family on the simplex: softmax, sparsemax, entmax, and their smoothed maxima. Rules: entmax_rules.py."""

import math

import torch
from torch import Tensor

from structmax import check
from structmax.mappings.entmax_rules import NOTHING, entmax_value_rule, point_rule


def entmax(
    scores: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The α-entmax: argmax over the simplex of ⟨p, x⟩ − Ω_α(p). Sparse for α > 1; softmax at 1, sparsemax at 2.

    Its Jacobian is diag(s) − s sᵀ / Σ s with s = p^(2 − α) where p > 0, and 0 elsewhere.

    Args:
        scores: x, any shape; −inf forbids an entry.
        alpha: a number > 0, or a tensor that broadcasts to the scores with size 1 at `dim`. A vector gives one value to
            each head of attention scores (…, H, Q, K), or to each row of a matrix. It receives a gradient.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores. A row without a usable entry is all zeros.

    Examples:
        >>> import torch, structmax
        >>> structmax.entmax(torch.tensor([0.0, 1.0, 2.0]), alpha=1.5)
        tensor([0.0000, 0.1693, 0.8307])

    Reference: Peters, Niculae & Martins 2019, https://aclanthology.org/P19-1146; for the gradient of α, Correia,
    Niculae & Martins 2019, https://aclanthology.org/D19-1223.
    """
    check.positive("alpha", alpha, hint=" alpha = 1 is softmax, 2 is sparsemax.")
    x = check.last(scores, dim, mask, lengths)
    return check.back(point_rule(x, check.per_row("alpha", alpha, x, dim), backend), dim)


def softmax(
    scores: Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The softmax p ∝ exp(x): `entmax` at α = 1, with masks, and zeros instead of NaN where everything is masked.

    Args:
        scores: x, any shape; −inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.softmax(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), mask=torch.tensor([[True, True], [False, False]]))
        tensor([[0.2689, 0.7311],
                [0.0000, 0.0000]])
    """
    return entmax(scores, 1.0, dim, mask=mask, lengths=lengths, backend=backend)


def sparsemax(
    scores: Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The sparsemax: Euclidean projection onto the simplex, p_i = [x_i − τ]₊. `entmax` at α = 2.

    Args:
        scores: x, any shape; −inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.sparsemax(torch.tensor([0.0, 1.0, 1.5]))
        tensor([0.0000, 0.2500, 0.7500])

    Reference: Martins & Astudillo 2016, https://arxiv.org/abs/1602.02068.
    """
    return entmax(scores, 2.0, dim, mask=mask, lengths=lengths, backend=backend)


def entmax15(
    scores: Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The 1.5-entmax, p_i = [x_i/2 − τ]₊²: between softmax and sparsemax. `entmax` at α = 1.5.

    Args:
        scores: x, any shape; −inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.entmax15(torch.tensor([0.0, 1.0, 2.0]))
        tensor([0.0000, 0.1693, 0.8307])
    """
    return entmax(scores, 1.5, dim, mask=mask, lengths=lengths, backend=backend)


def topk_sparsemax(
    scores: Tensor,
    k: int,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The sparsemax with at most k non-zeros: the best k-sparse point of the simplex, sparsemax over the k largest.

    Equals `sparsemax` wherever that has a support of at most k.

    Args:
        scores: x, any shape; −inf forbids an entry.
        k: the largest number of non-zeros.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.topk_sparsemax(torch.tensor([1.0, 1.2, 1.1, 0.9]), k=2)
        tensor([0.0000, 0.5500, 0.4500, 0.0000])

    Reference: Kyrillidis et al. 2013, https://arxiv.org/abs/1206.1529; Correia et al. 2020, https://arxiv.org/abs/2007.01919.
    """
    check.whole("k", k, 1)
    x = check.last(scores, dim, mask, lengths)
    index = x.detach().topk(min(k, x.shape[-1]), -1).indices
    dropped = torch.ones_like(x, dtype=torch.bool).scatter(-1, index, False)
    return check.back(point_rule(x.masked_fill(dropped, -math.inf), 2.0, backend), dim)


def smoothed_max(
    scores: Tensor,
    alpha: float | Tensor = 1.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The smoothed maximum Ω*_α(x) = max over the simplex of ⟨p, x⟩ − Ω_α(p); its gradient is `entmax`.

    alpha = 1 is logsumexp, alpha = 2 the value of sparsemax. It lies above max(x) by at most Ω*_α(0), reached at ties.

    Args:
        scores: x, any shape; −inf forbids an entry.
        alpha: a number > 0 or a tensor, as in `entmax`; receives a gradient.
        dim: the dimension that is reduced.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The scores' shape without `dim`. −inf where no entry may be used.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 1.0, 1.5])
        >>> structmax.smoothed_max(x, alpha=1.0), structmax.smoothed_max(x, alpha=2.0)
        (tensor(2.1041), tensor(1.5625))
    """
    check.positive("alpha", alpha, hint=" alpha = 1 is logsumexp, 2 the value of sparsemax.")
    x = check.last(scores, dim, mask, lengths)
    rows = check.per_row("alpha", alpha, x, dim)
    nothing = torch.full(x.shape[:-1], NOTHING, dtype=torch.int64, device=x.device)
    return entmax_value_rule(x, nothing, rows, 0, backend)[0].to(x.dtype)
