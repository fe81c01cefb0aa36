"""Scaled dot-product attention with weights of the Tsallis family, as a function of queries, keys and values."""

import torch
from torch import Tensor

from structmax import check
from structmax.mappings.attention_rules import attention_rule, is_fused
from structmax.mappings.entmax import entmax


def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    alpha: float | Tensor = 1.5,
    backend: str = "auto",
) -> Tensor:
    """Attention with α-entmax weights: entmax_α(Q Kᵀ · scale) V. Takes what `scaled_dot_product_attention` takes.

    Weights are exactly 0 for keys with low scores, and a query that may read no key reads zeros, where softmax gives
    NaN. At α = 1 it is `torch.nn.functional.scaled_dot_product_attention`.

    On a GPU, heads (B, H, N, D) of at most 256 numbers in float32 or narrower are read without keeping scores: beside
    the tokens there are nine bytes for each block of them, of 16 × 16 to 64 × 64, and blocks without a positive weight
    are left out. (Small GPUs have smaller blocks, and keep the scores of heads of more than 128 numbers in float32.)
    That has first derivatives, for α above 1 and up to 2, without dropout, and where a mask that is added
    needs no gradient. In all other cases scores are kept, as with backend="reference".

    Args:
        query: (…, H, Q, D).
        key: (…, H, K, D).
        value: (…, H, K, E).
        attn_mask: broadcasts to (…, H, Q, K): bool, True where a query may read a key; or floating point, added to the
            scores.
        dropout_p: the share of weights that are left out; the others grow so that the mean stays. Give 0 in evaluation.
        is_causal: whether query i reads keys 0 … i alone. Not together with `attn_mask`.
        scale: what scores are multiplied by, 1/√D by default.
        enable_gqa: whether keys and values may have fewer heads, each shared by neighbouring heads of the query.
        alpha: a number > 0, or a tensor (H,) with one for each head. It receives a gradient. Sparse above 1. Where no
            scores are kept, a tensor should be within 1 and 2; a head outside is NaN.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        (…, H, Q, E), differentiable.

    Examples:
        >>> import torch, structmax
        >>> q, k, v = torch.randn(3, 2, 4, 6, 8)
        >>> structmax.entmax_attention(q, k, v, is_causal=True, alpha=torch.tensor([1.2, 1.5, 1.8, 2.0])).shape
        torch.Size([2, 4, 6, 8])

    Reference: Correia, Niculae & Martins 2019, https://aclanthology.org/D19-1223.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check.floating(name, tensor)
    if attn_mask is not None:
        check.a_tensor("attn_mask", attn_mask)
    query, key, value = _as_autocast(query, key, value)
    if is_fused(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, alpha, backend):
        mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        return attention_rule(query, key, value, mask, alpha, factor, is_causal)[0]
    weights = attention_weights(query, key, attn_mask, is_causal, scale, enable_gqa, alpha, backend)
    return read(weights, value, dropout_p, enable_gqa)


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    alpha: float | Tensor,
    backend: str = "auto",
) -> Tensor:
    """entmax_α(Q Kᵀ · scale): (…, H, Q, K)."""
    for name, tensor in (("query", query), ("key", key)):
        check.floating(name, tensor)
        if tensor.dim() < 2 or tensor.shape[-1] != query.shape[-1]:
            size = "" if name == "query" else f" with D = {query.shape[-1]} as in `query`"
            raise ValueError(f"`{name}` should have shape (…, H, N, D){size}, but has {tuple(tensor.shape)}.")
    if is_causal and attn_mask is not None:
        raise ValueError(
            "`is_causal` should be False where `attn_mask` is given. Try attn_mask & torch.ones(Q, K).tril().bool()."
        )
    query, key = _as_autocast(query, key)
    check.same_kind("key", key, "query", query)
    key = _for_each_head(key, query, enable_gqa)
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        check.together("Scores and `attn_mask`", scores.shape, attn_mask.shape, " Try a mask (Q, K) or (…, H, Q, K).")
    if attn_mask is not None and attn_mask.is_floating_point():
        # A mask may be wider than queries in half precision; the weights are then narrowed for the values.
        return entmax(scores + attn_mask, alpha, backend=backend).to(scores.dtype)
    return entmax(scores, alpha, mask=attn_mask, backend=backend)


def read(weights: Tensor, value: Tensor, dropout_p: float, enable_gqa: bool) -> Tensor:
    """Weights (…, H, Q, K), some left out, times values (…, H, K, E)."""
    check.floating("value", value)
    if value.dim() < 2 or value.shape[-2] != weights.shape[-1]:
        raise ValueError(
            f"`value` should have shape (…, H, K, E) with a value for each of the {weights.shape[-1]} keys, but has "
            f"{tuple(value.shape)}."
        )
    weights, value = _as_autocast(weights, value)
    check.same_kind("value", value, "query", weights)
    kept = torch.nn.functional.dropout(weights, dropout_p) if dropout_p else weights
    return kept @ _for_each_head(value, weights, enable_gqa)


def _as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the dtype that torch.autocast gives to products, where it is at work."""
    device = tensors[0].device.type
    # a device without autocast cannot be asked whether it is enabled
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _for_each_head(x: Tensor, query: Tensor, enable_gqa: bool) -> Tensor:
    """Keys or values, repeated so that each head of the query has its own."""
    if not enable_gqa or query.dim() < 3 or x.dim() < 3 or x.shape[-3] == query.shape[-3]:
        return x
    heads, own = query.shape[-3], x.shape[-3]
    if heads % own:
        raise ValueError(f"The heads of keys and values should divide the {heads} of `query`, but are {own}.")
    return x.repeat_interleave(heads // own, -3)
