"""Many binary trees at once, level by level.

Spans at one depth do not depend on one another, and are all the children of those one level up. In the order of their
depth, and within a depth from left to right, the two children of each span are neighbours: so a level is one product
with W over memory as it lies, and the gradient of W is one product over all levels.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax.nn.first_order import first_order
from structmax.nn.tree_cell import Cell


class Levels(NamedTuple):
    """The spans of all trees of a batch, M in all, by depth, and within a depth from left to right."""

    # (M,) each: instance, first leaf, last leaf
    row: Tensor
    first: Tensor
    last: Tensor
    # where the spans with children are, and the leaves
    inner: Tensor
    leaf: Tensor
    # how many spans there are at each depth, and how many of them have children
    sizes: list[int]
    inner_sizes: list[int]

    @classmethod
    def of(cls, spans: Tensor) -> "Levels":
        """From parts of trees (B, N, N)."""
        # a parent before its children, the left child before the right
        row, first, backwards = spans.flip(-1).nonzero(as_tuple=True)
        last = spans.shape[-1] - 1 - backwards
        parent = _parents(spans, row, first, last)
        place = torch.arange(len(row), device=row.device)
        depth = (parent != place).long()
        # Each step doubles how far a span looks up.
        for _ in range((2 * spans.shape[-1]).bit_length()):
            depth = depth + depth[parent]
            parent = parent[parent]
        order = depth.argsort(stable=True)
        row, first, last, depth = row[order], first[order], last[order], depth[order]
        is_inner = last > first
        levels = int(depth[-1]) + 1 if len(depth) else 0
        counts = torch.stack([depth.bincount(minlength=levels), depth[is_inner].bincount(minlength=levels)])
        inner, leaf = (mask.nonzero().squeeze(-1) for mask in (is_inner, ~is_inner))
        return cls(row, first, last, inner, leaf, *counts.tolist())


def _parents(spans: Tensor, row: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Where the parent of each span is, itself for a root, of spans with parents before their children: (M,)."""
    place = torch.arange(len(row), device=row.device)
    above = place[last > first]
    bound = len(place) - 1
    left = (above + 1).clamp_max(bound)
    # A tree over n leaves has 2 n − 1 spans: the right child comes after all of the left one's.
    right = (above + 2 * (last[left] - first[above] + 1)).clamp(0, bound)
    parent = place.clone()
    parent[left] = above
    parent[right] = above
    fits = (row[left] == row[above]) & (row[right] == row[above])
    fits &= (first[left] == first[above]) & (first[right] == last[left] + 1) & (last[right] == last[above])
    whole = (parent == place).sum() == row.unique().numel()
    if not bool(fits.all() & whole & (spans[row, first, last] == 1).all()):
        raise ValueError(
            "`spans` should hold binary trees, 0/1 parts as `argmax` of a BinaryTree returns them, but some of its "
            "spans have no two halves, or are neither 0 nor 1. Try relaxed=True for marginals and other soft trees."
        )
    return parent


def _upwards(levels: Levels) -> list[tuple[slice, slice]]:
    """From the deepest spans with children up: where their children are, and which they are among those with any."""
    children, own, steps = levels.sizes[0] if levels.sizes else 0, 0, []
    for size, inner in zip(levels.sizes[1:], levels.inner_sizes, strict=False):
        steps.append((slice(children, children + size), slice(own, own + inner)))
        children, own = children + size, own + inner
    return steps[::-1]


class ByLevel(Function):
    """h and c (M, H) of all spans, from those of the leaves (M_leaf, H), deepest level first."""

    @staticmethod
    def forward(
        ctx: Any, levels: Levels, leaf_h: Tensor, leaf_c: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        M, H = len(levels.row), leaf_h.shape[-1]
        h, c = leaf_h.new_empty(M, H), leaf_h.new_empty(M, H)
        h[levels.leaf], c[levels.leaf] = leaf_h, leaf_c
        gates = leaf_h.new_empty(len(levels.inner), 5 * H)
        for children, own in _upwards(levels):
            torch.addmm(bias, h[children].view(-1, 2 * H), weight.t(), out=gates[own])
            left, right = c[children].view(-1, 2, H).unbind(1)
            place = levels.inner[own]
            h[place], c[place] = Cell.forward(gates[own], left, right)
        ctx.levels = levels
        ctx.save_for_backward(h, c, gates, weight)
        return h, c

    @staticmethod
    @first_order
    def backward(ctx: Any, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:
        levels = ctx.levels
        h, c, gates, weight = ctx.saved_tensors
        H = h.shape[-1]
        d_h, d_c, d_gates = d_h.clone(), d_c.clone(), torch.empty_like(gates)
        for children, own in reversed(_upwards(levels)):
            place = levels.inner[own]
            left, right = c[children].view(-1, 2, H).unbind(1)
            d_gates[own], d_left, d_right = Cell.backward(gates[own], left, right, c[place], d_h[place], d_c[place])
            d_h[children].view(-1, 2 * H).addmm_(d_gates[own], weight)
            d_children = d_c[children].view(-1, 2, H)
            d_children[:, 0] += d_left
            d_children[:, 1] += d_right
        # what is not a root is a child, and children lie two by two in the order of their parents
        d_weight = d_gates.t() @ h[levels.sizes[0] :].view(-1, 2 * H) if levels.sizes else torch.zeros_like(weight)
        return None, d_h[levels.leaf], d_c[levels.leaf], d_weight, d_gates.sum(0)
