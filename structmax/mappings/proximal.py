"""Proximal operators of the total variation and of OWL norms, and the attention mappings made of them.

    prox_R(x) = argmin over y of ½‖y − x‖² + R(y)    fusedmax = sparsemax ∘ prox_TV    oscarmax = sparsemax ∘ prox_OSCAR

Both operators pool entries into groups, so their Jacobians average: within fused runs for the total variation, within
clusters for OSCAR, within groups of equal magnitude, with signs, for OWL. Averaging is symmetric and linear: one rule,
GroupMean, is its own pullback.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.calling import ask
from structmax.mappings.entmax_rules import point_rule, pullback_rule

ROOM = "structmax.structures.proximal"


class Prox(Function):
    """`prox_tv` with its strength or `prox_owl` with its weights, and the groups it pools."""

    @staticmethod
    def forward(x: Tensor, strength: float | Tensor, name: str, backend: str) -> tuple[Tensor, ...]:
        keyword = "weights" if name == "prox_owl" else "lam"
        named: dict[str, Any] = {keyword: strength}
        return tuple(ask(ROOM, name, (x,), x.dim() - 1, backend, **named))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, name, ctx.backend = inputs
        y, groups = output
        ctx.signed = name == "prox_owl"
        saved = (groups, y) if ctx.signed else (groups,)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.mark_non_differentiable(groups)
        # Otherwise autograd fills in a gradient of zeros for the groups in each backward pass.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor | None, _: None) -> tuple[Any, ...]:
        if d_y is None:
            return None, None, None, None
        groups, *signs = ctx.saved_tensors
        return group_mean_rule(d_y, groups, signs[0].detach() if signs else None, ctx.backend), None, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, *_: None) -> tuple[Any, ...]:
        groups, *signs = ctx.saved_tensors
        return group_mean_rule(x_t, groups, signs[0].detach() if signs else None, ctx.backend), None


prox_rule = rule(Prox)


class GroupMean(Function):
    @staticmethod
    def forward(v: Tensor, groups: Tensor, signs: Tensor | None, backend: str) -> Tensor:
        named: dict[str, Any] = {} if signs is None else {"signs": signs}
        return ask(ROOM, "group_mean", (v, groups), v.dim() - 1, backend, **named)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, groups, signs, ctx.backend = inputs
        saved = (groups,) if signs is None else (groups, signs)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> tuple[Any, ...]:
        groups, *signs = ctx.saved_tensors
        return group_mean_rule(w, groups, signs[0] if signs else None, ctx.backend), None, None, None

    @staticmethod
    def jvp(ctx: Any, v_t: Tensor, *_: None) -> Tensor:
        groups, *signs = ctx.saved_tensors
        return group_mean_rule(v_t, groups, signs[0] if signs else None, ctx.backend)


group_mean_rule = rule(GroupMean)


class PooledSparsemax(Function):
    """sparsemax of a pooling operator: the probabilities, and the groups; its gradient needs no more than these."""

    @staticmethod
    def forward(x: Tensor, lam: float, name: str, backend: str) -> tuple[Tensor, Tensor]:
        y, groups = ask(ROOM, name, (x,), x.dim() - 1, backend, lam=lam)
        return point_rule(y, 2.0, backend), groups

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.backend = inputs[3]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_p: Tensor | None, _: None) -> tuple[Any, ...]:
        if d_p is None:
            return None, None, None, None
        p, groups = ctx.saved_tensors
        return group_mean_rule(pullback_rule(p, d_p, 2.0, ctx.backend), groups, None, ctx.backend), None, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, *_: None) -> tuple[Any, ...]:
        p, groups = ctx.saved_tensors
        return pullback_rule(p, group_mean_rule(x_t, groups, None, ctx.backend), 2.0, ctx.backend), None


pooled_sparsemax_rule = rule(PooledSparsemax)


def _strength(lam: object) -> float:
    if isinstance(lam, Tensor):
        raise TypeError("`lam` should be a number ≥ 0, but is a tensor: it receives no gradient. Try `float(lam)`.")
    check.positive("lam", lam, or_zero=True)
    return float(lam)  # type: ignore[arg-type]


def _pooled_sparsemax(name: str, x: Tensor, lam: object, backend: str) -> Tensor:
    """In float32 or wider throughout."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return pooled_sparsemax_rule(wide, _strength(lam), name, backend)[0].to(x.dtype)


def _zeros_for_removed(y: Tensor) -> Tensor:
    return y.masked_fill(y.isneginf(), 0.0)


def prox_tv(
    scores: Tensor,
    lam: float = 1.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The proximal operator of the total variation: argmin ½‖y − x‖² + lam Σ |y_{i+1} − y_i|.

    Args:
        scores: x, any shape. An entry of −inf is removed: the entries next to it become neighbours.
        lam: the strength, a number ≥ 0.
        dim: the dimension along which neighbours are fused.
        mask: True where an entry counts; broadcasts to the scores.
        lengths: how many leading entries of `dim` count; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Shape and dtype of the scores; 0 at removed entries.

    Examples:
        >>> import torch, structmax
        >>> structmax.prox_tv(torch.tensor([0.0, 1.0, 5.0, 5.5]), lam=1.0)
        tensor([1.0000, 1.0000, 4.7500, 4.7500])

    Reference: Condat 2013, https://hal.science/hal-00675043; Niculae & Blondel 2017, https://arxiv.org/abs/1705.07704.
    """
    x = check.last(scores, dim, mask, lengths)
    return check.back(_zeros_for_removed(prox_rule(x, _strength(lam), "prox_tv", backend)[0]), dim)


def prox_owl(
    scores: Tensor,
    weights: Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The proximal operator of an ordered weighted ℓ1 norm: argmin ½‖y − x‖² + Σ w_i |y|_(i), |y|_(1) ≥ |y|_(2) ≥ …

    Constant weights give soft thresholding, w = lam (n−1, …, 1, 0) the OSCAR norm lam Σ_{i<j} max(|y_i|, |y_j|).

    Args:
        scores: x, any shape. An entry of −inf is removed.
        weights: (n,) non-increasing and ≥ 0; a row with m entries uses the first m. Receives no gradient.
        dim: the dimension of the norm.
        mask: True where an entry counts; broadcasts to the scores.
        lengths: how many leading entries of `dim` count; broadcasts to the scores without `dim`.
        backend: "auto", "numba" or "reference".

    Returns:
        Shape and dtype of the scores; 0 at removed entries.

    Examples:
        >>> import torch, structmax
        >>> structmax.prox_owl(torch.tensor([3.0, -2.9, 0.5]), torch.tensor([2.0, 1.0, 0.0]))
        tensor([ 1.4500, -1.4500,  0.5000])

    Reference: Zeng & Figueiredo 2014, https://arxiv.org/abs/1409.4271.
    """
    check.floating("weights", weights)
    x = check.last(scores, dim, mask, lengths)
    if weights.shape != x.shape[-1:]:
        raise ValueError(
            f"`weights` should have shape {tuple(x.shape[-1:])}, one for each rank along `dim`, "
            f"but has {tuple(weights.shape)}."
        )
    check.same_device("weights", weights, scores)
    if check.readable(weights) and not bool((weights.diff() <= 0).all() & (weights >= 0).all()):
        raise ValueError("`weights` should be non-increasing and ≥ 0. Try `weights.sort(descending=True).values`.")
    rows = weights.detach().to(torch.promote_types(x.dtype, torch.float32)).expand(x.shape)
    return check.back(_zeros_for_removed(prox_rule(x, rows, "prox_owl", backend)[0]), dim)


def fusedmax(
    scores: Tensor,
    lam: float = 1.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The fusedmax: argmin over the simplex of ½‖p − x‖² + lam Σ |p_{i+1} − p_i|. Gives neighbours equal weight.

    Args:
        scores: x, any shape. An entry of −inf is removed: the entries next to it become neighbours.
        lam: the strength of fusing, a number ≥ 0; 0 is sparsemax.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.fusedmax(torch.tensor([1.0, 1.2, 0.9, -1.0]), lam=0.3)
        tensor([0.3500, 0.3500, 0.3000, 0.0000])

    Reference: Niculae & Blondel 2017, https://arxiv.org/abs/1705.07704.
    """
    x = check.last(scores, dim, mask, lengths)
    return check.back(_pooled_sparsemax("prox_tv_shifted", x, lam, backend), dim)


def oscarmax(
    scores: Tensor,
    lam: float = 1.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The oscarmax: argmin over the simplex of ½‖p − x‖² + lam Σ_{i<j} max(p_i, p_j). Clusters weights anywhere.

    Args:
        scores: x, any shape; −inf forbids an entry.
        lam: the strength of clustering, a number ≥ 0; 0 is sparsemax.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.oscarmax(torch.tensor([1.0, -1.0, 1.2]), lam=0.1)
        tensor([0.4500, 0.0000, 0.5500])

    Reference: Niculae & Blondel 2017, https://arxiv.org/abs/1705.07704.
    """
    x = check.last(scores, dim, mask, lengths)
    return check.back(_pooled_sparsemax("prox_oscar", x, lam, backend), dim)
