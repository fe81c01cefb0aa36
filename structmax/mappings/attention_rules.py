"""Attention by a kernel that keeps no scores, with its gradient rule.

With p = entmax_α(x), s = p^(2−α) and U = Σ s v / Σ s, the cotangent of a score is s (⟨d_out, v⟩ − ⟨d_out, U⟩): beside
the output, the forward pass keeps U and two numbers for each query.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from structmax import check
from structmax.autograd import once, rule
from structmax.backends import answers
from structmax.calling import call
from structmax.mappings.entmax_rules import ROOM, Alpha, recall, remember
from structmax.numerics.kernel_triton import shared_memory

LARGEST = 256
# Queries and keys that a program has at a time, the most first.
TILES = (64, 64), (64, 32), (32, 32), (16, 16)


def is_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    alpha: Alpha,
    backend: str,
) -> bool:
    """Whether a kernel answers that keeps no scores; what is wrong with the arguments is said where they are kept.

    It takes heads (B, H, N, D) of one size, in float32 or narrower, and α above 1 and up to 2. A tensor of α is not
    looked at. Dropout, a scale that is a tensor, second derivatives and transforms of torch.func are left to the
    scores.
    """
    if backend != "triton" and not (backend == "auto" and query.is_cuda):
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    tensors = query, key, value
    if any(t.dim() != 4 or t.dtype != query.dtype or t.device != query.device or not t.numel() for t in tensors):
        return False
    (B, H, Q, D), shared, K = query.shape, key.shape[1], key.shape[2]
    return (
        not dropout_p
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and D <= LARGEST
        and tile(D, query.dtype, shared_memory(query.get_device())) is not None
        and key.shape == value.shape == (B, shared, K, D)
        and (H % shared == 0 if enable_gqa else shared == H)
        and not isinstance(scale, Tensor)
        and (mask is None or (not is_causal and mask.device == query.device and _is_mask(mask, (B, H, Q, K))))
        and _is_alpha(alpha, H, query.device)
        and answers(ROOM, "attention", query.device.type, "triton")
    )


def _is_alpha(alpha: Alpha, heads: int, device: torch.device) -> bool:
    if isinstance(alpha, Tensor):
        return alpha.shape == (heads,) and alpha.is_floating_point() and alpha.device == device
    return isinstance(alpha, check.NUMBERS) and 1 < alpha <= 2


def _is_mask(mask: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a mask without a gradient broadcasts to the scores (B, H, Q, K)."""
    fits = all(size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(shape), strict=False))
    return (
        fits and mask.dim() <= 4 and not mask.requires_grad and (mask.dtype == torch.bool or mask.is_floating_point())
    )


def tile(size: int, dtype: torch.dtype, shared: int) -> tuple[int, int] | None:
    """How many queries and keys a program has at a time: as many as fit its registers and its shared memory, if any."""
    most = (2 if dtype == torch.float32 else 0) + (size > 128)
    padded = max(16, 1 << (size - 1).bit_length())
    for queries, keys in TILES[most:]:
        # queries and their cotangents; keys and values twice, since the next ones are fetched early; and weights
        if (2 * queries + 5 * keys) * padded * dtype.itemsize <= shared:
            return queries, keys
    return None


class Attention(Function):
    """The output, then U, maxima, thresholds and a map of blocks, which are not differentiable."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, alpha: Alpha, scale: float, causal: bool
    ) -> tuple[Tensor, ...]:
        fields = asked(q, mask, alpha, scale, causal)
        tiles = -(-q.shape[2] // fields["queries"]) * -(-k.shape[2] // fields["keys"])
        return tuple(call(ROOM, "attention", (q, k, v), {**fields, "tiles": q.shape[1] * tiles}, 1, "triton"))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, mask, alpha, ctx.scale, ctx.causal = inputs
        _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.masked = mask is not None
        remember(ctx, alpha, q, k, v, *kept, *(() if mask is None else (mask,)))

    @staticmethod
    @once("Attention without scores", 'backend="reference"')
    def backward(ctx: Any, d_out: Tensor, *_: Any) -> tuple[Any, ...]:
        alpha, q, k, v, *kept = recall(ctx)
        mask = kept.pop() if ctx.masked else None
        fields = asked(q, mask, alpha, ctx.scale, ctx.causal)
        d_q, d_k, d_v, d_alpha = call(ROOM, "attention_pullback", (q, k, v, d_out, *kept), fields, 3, "triton")
        of_heads = None
        if ctx.needs_input_grad[4]:
            of_heads = d_alpha.unflatten(1, q.shape[1:3]).sum((0, 2)).to(alpha.dtype)
        return d_q, d_k, d_v, None, of_heads, None, None


def asked(q: Tensor, mask: Tensor | None, alpha: Alpha, scale: float, causal: bool) -> dict[str, Any]:
    """What both passes are asked with."""
    fields = {"alpha": alpha, "scale": scale, "causal": causal, "rows": q.shape[1] * q.shape[2]}
    given = {} if mask is None else {"mask": mask}
    sizes = tile(q.shape[-1], q.dtype, shared_memory(q.get_device()))
    assert sizes is not None
    return fields | given | {"queries": sizes[0], "keys": sizes[1]}


attention_rule = rule(Attention)
