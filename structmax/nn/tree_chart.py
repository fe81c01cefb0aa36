"""Relaxed binary trees: a state for every span.

The halves of span [i, j] are averages over its splits k, with weights w_k ∝ z[i, k] z[k + 1, j]: for a span of a tree
these are 1 at its split and 0 elsewhere, and the average is the half itself. A span that no tree has is split anywhere,
with equal weights: nothing is composed of it, but the gradient asks what would be.

Reference: Maillard, Clark & Yogatama 2017, Jointly learning sentence embeddings and syntax with unsupervised
Tree-LSTMs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from structmax.nn.first_order import first_order
from structmax.nn.tree_cell import Cell

# Below it, a span is as good as absent.
FAINT = 1e-6


def shares_of(spans: Tensor) -> Tensor:
    """How much of span [i, i + w] is split behind its leaf i + m: (B, N, N, N) for [i, w, m], from spans (B, N, N)."""
    N = spans.shape[-1]
    at = torch.arange(N, device=spans.device)
    i, w, m = at[:, None, None], at[:, None], at
    inside = (m < w) & (i + w < N)
    left = spans[:, i, torch.where(inside, i + m, 0)]
    right = spans[:, torch.where(inside, i + m + 1, 0), torch.where(inside, i + w, 0)]
    both = (left * right).masked_fill(~inside, 0.0)
    total = both.sum(-1, keepdim=True)
    return torch.where(total > FAINT, both / total.clamp_min(FAINT), inside / w.clamp_min(1))


class Chart(Function):
    """States h (B, N, N, H) for [i, w] of all spans [i, i + w], narrow ones first."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, leaf_h: Tensor, leaf_c: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        B, N, H = leaf_h.shape
        # h and c by the first leaf, and by the last
        begun, ended = leaf_h.new_zeros(2, B, N, N, H), leaf_h.new_zeros(2, B, N, N, H)
        begun[0, :, :, 0] = ended[0, :, :, 0] = leaf_h
        begun[1, :, :, 0] = ended[1, :, :, 0] = leaf_c
        saved = []
        for w in range(1, N):
            share = shares[:, : N - w, w, :w]
            left = torch.einsum("bnm,sbnmh->sbnh", share, begun[:, :, : N - w, :w])
            right = torch.einsum("bnm,sbnmh->sbnh", share.flip(-1), ended[:, :, w:, :w])
            pair = torch.cat([left[0], right[0]], -1)
            gates = nn.functional.linear(pair, weight, bias)
            state = torch.stack(Cell.forward(gates, left[1], right[1]))
            begun[:, :, : N - w, w] = ended[:, :, w:, w] = state
            saved += [pair, gates, left[1], right[1]]
        ctx.save_for_backward(shares, weight, begun, ended, *saved)
        return begun[0].clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor, ...]:
        shares, weight, begun, ended, *saved = ctx.saved_tensors
        N = shares.shape[1]
        d_begun, d_ended, d_shares = torch.zeros_like(begun), torch.zeros_like(ended), torch.zeros_like(shares)
        d_begun[0] = d_h
        d_weight, d_bias = torch.zeros_like(weight), weight.new_zeros(weight.shape[0])
        for w in range(N - 1, 0, -1):
            share = shares[:, : N - w, w, :w]
            pair, gates, left_c, right_c = saved[4 * w - 4 : 4 * w]
            halves, other = begun[:, :, : N - w, :w], ended[:, :, w:, :w]
            d_state = d_begun[:, :, : N - w, w] + d_ended[:, :, w:, w]
            d_gates, d_left_c, d_right_c = Cell.backward(
                gates, left_c, right_c, begun[1, :, : N - w, w], d_state[0], d_state[1]
            )
            d_left_h, d_right_h = (d_gates @ weight).chunk(2, -1)
            d_left, d_right = torch.stack([d_left_h, d_left_c]), torch.stack([d_right_h, d_right_c])
            d_begun[:, :, : N - w, :w] += share.unsqueeze(-1) * d_left.unsqueeze(-2)
            d_ended[:, :, w:, :w] += share.flip(-1).unsqueeze(-1) * d_right.unsqueeze(-2)
            d_shares[:, : N - w, w, :w] = torch.einsum("sbnmh,sbnh->bnm", halves, d_left)
            d_shares[:, : N - w, w, :w] += torch.einsum("sbnmh,sbnh->bnm", other, d_right).flip(-1)
            d_weight.addmm_(d_gates.flatten(0, 1).t(), pair.flatten(0, 1))
            d_bias += d_gates.sum((0, 1))
        d_leaf = d_begun[:, :, :, 0] + d_ended[:, :, :, 0]
        return d_shares, d_leaf[0], d_leaf[1], d_weight, d_bias
