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


class Shares:
    """How much of each span is split where, from spans z (B, N, N), a width at a time.

    Spans that begin with a leaf, and those that end with it, lie by their width: z[i, i + m] at [i, :, m] of one table
    (N, B, N), z[j − m, j] at [j, :, m] of the other. So the two halves of all spans of a width are slices.
    """

    def __init__(self, spans: Tensor) -> None:
        leaf = torch.arange(spans.shape[-1], device=spans.device)
        before, behind = leaf.unsqueeze(-1) - leaf, leaf.unsqueeze(-1) + leaf
        by_leaf = spans.permute(1, 2, 0)
        inside = (behind < len(leaf)).unsqueeze(-1)
        self.begun = (by_leaf[leaf.unsqueeze(-1), behind.clamp_max(len(leaf) - 1)] * inside).mT.contiguous()
        inside = (before >= 0).unsqueeze(-1)
        self.ended = (by_leaf[before.clamp_min(0), leaf.unsqueeze(-1)] * inside).mT.contiguous()

    def of(self, width: int) -> tuple[Tensor, Tensor]:
        """Of span [i, i + width], the share (N − width, B, width) that is split behind leaf i + m, and their sum."""
        both = self.begun[:-width, :, :width] * self.ended[width:, :, :width].flip(-1)
        total = both.sum(-1, keepdim=True)
        return torch.where(total > FAINT, both / total.clamp_min(FAINT), 1 / width), total

    def pull(self, share: Tensor, total: Tensor, d_share: Tensor, into: "Shares") -> None:
        """Adds to the tables of `into` what follows from the cotangent of the shares of a width, as `of` gave them."""
        width = share.shape[-1]
        d_both = (d_share - (d_share * share).sum(-1, keepdim=True)) / total.clamp_min(FAINT)
        d_both = torch.where(total > FAINT, d_both, 0.0)
        into.begun[:-width, :, :width] += d_both * self.ended[width:, :, :width].flip(-1)
        into.ended[width:, :, :width] += (d_both * self.begun[:-width, :, :width]).flip(-1)

    def spans(self) -> Tensor:
        """Each span's sum of what both tables have of it, (B, N, N): the way back of cotangents."""
        leaf = torch.arange(len(self.begun), device=self.begun.device)
        width = leaf - leaf.unsqueeze(-1)
        at = width.clamp_min(0)
        found = self.begun.mT[leaf.unsqueeze(-1), at] + self.ended.mT[leaf, at]
        return (found * (width >= 0).unsqueeze(-1)).permute(2, 0, 1)


class Chart(Function):
    """States h (N, B, N, H) for [i, :, w] of all spans [i, i + w], narrow ones first.

    The first dimension is a leaf, so that all spans of a width are a stretch of memory: products need no copies.
    """

    @staticmethod
    def forward(ctx: Any, spans: Tensor, leaf_h: Tensor, leaf_c: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        B, N, H = leaf_h.shape
        shares = Shares(spans)
        # [h; c] of the spans that begin with a leaf, and of those that end with it: (N, B, N, 2 H)
        begun, ended = (leaf_h.new_zeros(N, B, N, 2 * H) for _ in range(2))
        begun[:, :, 0] = ended[:, :, 0] = torch.cat([leaf_h, leaf_c], -1).transpose(0, 1)
        saved = []
        for w in range(1, N):
            share = shares.of(w)[0].reshape(-1, 1, w)
            left = torch.bmm(share, begun[: N - w].flatten(0, 1)[:, :w]).squeeze(1)
            right = torch.bmm(share.flip(-1), ended[w:].flatten(0, 1)[:, :w]).squeeze(1)
            pair = torch.cat([left[:, :H], right[:, :H]], -1)
            gates = torch.addmm(bias, pair, weight.t())
            state = torch.cat(Cell.forward(gates, left[:, H:], right[:, H:]), -1).unflatten(0, (N - w, B))
            begun[: N - w, :, w] = ended[w:, :, w] = state
            saved += [pair, gates, left[:, H:], right[:, H:]]
        ctx.save_for_backward(spans, weight, begun, ended, *saved)
        return begun[..., :H].clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor, ...]:
        spans, weight, begun, ended, *saved = ctx.saved_tensors
        N, H = d_h.shape[0], d_h.shape[-1]
        shares, d_shares = Shares(spans), Shares(torch.zeros_like(spans))
        d_begun, d_ended = torch.zeros_like(begun), torch.zeros_like(ended)
        d_begun[..., :H] = d_h
        d_weight, d_bias = torch.zeros_like(weight), weight.new_zeros(weight.shape[0])
        for w in range(N - 1, 0, -1):
            shared, total = shares.of(w)
            share = shared.reshape(-1, w, 1)
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
            shares.pull(shared, total, d_share.view_as(shared), d_shares)
            d_weight.addmm_(d_gates.t(), pair)
            d_bias += d_gates.sum(0)
        d_leaf = (d_begun[:, :, 0] + d_ended[:, :, 0]).transpose(0, 1)
        return d_shares.spans(), d_leaf[..., :H], d_leaf[..., H:], d_weight, d_bias
