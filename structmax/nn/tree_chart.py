"""Relaxed binary trees: a state for every span.

The halves of span [i, j] are averages over its splits k, with weights w_k ∝ z[i, k] z[k + 1, j]: for a span of a tree
these are 1 at its split and 0 elsewhere, and the average is the half itself. A span that no tree has is split anywhere,
with equal weights: nothing is composed of it, but the gradient asks what would be.

Reference: Maillard, Clark & Yogatama 2017, Jointly learning sentence embeddings and syntax with unsupervised
Tree-LSTMs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax.nn.first_order import first_order
from structmax.nn.tree_cell import Cell

# Below it, a span is as good as absent.
FAINT = 1e-6


def shares_of(spans: Tensor) -> Tensor:
    """How much of span [i, i + w] is split behind its leaf i + m: (N, B, N, N) for [i, :, w, m], from (B, N, N)."""
    N = spans.shape[-1]
    at = torch.arange(N, device=spans.device)
    i, w, m = at[:, None, None], at[:, None], at
    inside = (m < w) & (i + w < N)
    left = spans[:, i, torch.where(inside, i + m, 0)]
    right = spans[:, torch.where(inside, i + m + 1, 0), torch.where(inside, i + w, 0)]
    both = (left * right).masked_fill(~inside, 0.0)
    total = both.sum(-1, keepdim=True)
    return torch.where(
        total > FAINT, both / total.clamp_min(FAINT), (inside / w.clamp_min(1)).to(spans.dtype)
    ).transpose(0, 1)


class Chart(Function):
    """States h (N, B, N, H) for [i, :, w] of all spans [i, i + w], narrow ones first.

    The first dimension is a leaf, so that all spans of a width are a stretch of memory: products need no copies.
    """

    @staticmethod
    def forward(ctx: Any, shares: Tensor, leaf_h: Tensor, leaf_c: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        B, N, H = leaf_h.shape
        # [h; c] of the spans that begin with a leaf, and of those that end with it: (N, B, N, 2 H)
        begun, ended = (leaf_h.new_zeros(N, B, N, 2 * H) for _ in range(2))
        begun[:, :, 0] = ended[:, :, 0] = torch.cat([leaf_h, leaf_c], -1).transpose(0, 1)
        saved = []
        for w in range(1, N):
            share = shares[: N - w, :, w, :w].reshape(-1, 1, w)
            left = torch.bmm(share, begun[: N - w].flatten(0, 1)[:, :w]).squeeze(1)
            right = torch.bmm(share.flip(-1), ended[w:].flatten(0, 1)[:, :w]).squeeze(1)
            pair = torch.cat([left[:, :H], right[:, :H]], -1)
            gates = torch.addmm(bias, pair, weight.t())
            state = torch.cat(Cell.forward(gates, left[:, H:], right[:, H:]), -1).unflatten(0, (N - w, B))
            begun[: N - w, :, w] = ended[w:, :, w] = state
            saved += [pair, gates, left[:, H:], right[:, H:]]
        ctx.save_for_backward(shares, weight, begun, ended, *saved)
        return begun[..., :H].clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor, ...]:
        shares, weight, begun, ended, *saved = ctx.saved_tensors
        N, B, _, H = d_h.shape
        d_begun, d_ended, d_shares = torch.zeros_like(begun), torch.zeros_like(ended), torch.zeros_like(shares)
        d_begun[..., :H] = d_h
        d_weight, d_bias = torch.zeros_like(weight), weight.new_zeros(weight.shape[0])
        for w in range(N - 1, 0, -1):
            share = shares[: N - w, :, w, :w].reshape(-1, w, 1)
            pair, gates, left_c, right_c = saved[4 * w - 4 : 4 * w]
            d_state = (d_begun[: N - w, :, w] + d_ended[w:, :, w]).flatten(0, 1)
            c = begun[: N - w, :, w, H:].flatten(0, 1)
            d_gates, d_left_c, d_right_c = Cell.backward(gates, left_c, right_c, c, d_state[:, :H], d_state[:, H:])
            d_left_h, d_right_h = (d_gates @ weight).split(H, -1)
            d_left, d_right = torch.cat([d_left_h, d_left_c], -1), torch.cat([d_right_h, d_right_c], -1)
            d_begun[: N - w].flatten(0, 1)[:, :w].addcmul_(share, d_left.unsqueeze(1))
            d_ended[w:].flatten(0, 1)[:, :w].addcmul_(share.flip(1), d_right.unsqueeze(1))
            d_share = torch.bmm(begun[: N - w].flatten(0, 1)[:, :w], d_left.unsqueeze(-1))
            d_share += torch.bmm(ended[w:].flatten(0, 1)[:, :w], d_right.unsqueeze(-1)).flip(1)
            d_shares[: N - w, :, w, :w] = d_share.unflatten(0, (N - w, B)).squeeze(-1)
            d_weight.addmm_(d_gates.t(), pair)
            d_bias += d_gates.sum(0)
        d_leaf = (d_begun[:, :, 0] + d_ended[:, :, 0]).transpose(0, 1)
        return d_shares, d_leaf[..., :H], d_leaf[..., H:], d_weight, d_bias
