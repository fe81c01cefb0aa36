"""Projective trees with scores for siblings on the CPU. Derivations: ../README.md.

The chart holds linear numbers. A sentence for which these are not safe, or that has no tree, or NaN among its scores,
is left to the compiled code for any recursion, which computes with logarithms.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.recursion import kernel_numba as engine
from structmax.recursion.edges import by_recursion
from structmax.structures.second_order_tree import reference
from structmax.structures.second_order_tree.kernel_numba.chart import (
    BOTH,
    GAP,
    INNER,
    INSIDE,
    LINK,
    OUT_LINK,
    inside,
    outside,
)
from structmax.structures.second_order_tree.kernel_numba.semiring import BEST, DUAL, LINEAR, PAD, at, times
from structmax.structures.second_order_tree.kernel_numba.walks import new_stack, walk
from structmax.structures.second_order_tree.kernel_numba.weights import (
    arc_lengths,
    beyond,
    evaluate,
    read_scores,
    turn,
)


def refuses(name: str, tensors: tuple[Tensor, ...], constants: dict[str, Any]) -> str | None:
    """Why the kernel does not take these scores, or None."""
    _, sibling, grandparent = tensors[:3]
    if grandparent.shape[1] > 0:
        return "the scores have grandparents"
    return "the scores have no siblings" if sibling.shape[1] == 0 else None


@compiled()
def _scratch(size, planes, tables):
    """Weights of arcs and of pairs, also turned, the law of arc lengths, and a chart."""
    weight, pair = np.empty((planes, size, size)), np.empty((planes, size, size, size))
    # what is read too much is multiplied by 0, so it should be a number
    turned = np.zeros((planes, size, size, size + PAD))
    return weight, pair, turned, arc_lengths(size - 1), np.empty((tables, planes, size, size + PAD))


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def _values(start, stop, arc, sibling, lengths, single_root, value, safe):
    weight, pair, turned, law, chart = _scratch(arc.shape[1], 1, INSIDE)
    for b in range(start, stop):
        scratch = law, weight, pair, turned, chart
        safe[b], value[b] = evaluate(arc[b], sibling[b], lengths[b], single_root, *scratch)


@compiled("contract")
def _read_off(semiring, plane, n, single_root, pair, chart, out_arc, out_sibling):
    """Marginals of all parts, or in plane 1 their derivatives; returns whether all are numbers."""
    link, gap, out_link, inner = chart[LINK], chart[GAP], chart[OUT_LINK], chart[INNER]
    total = 0.0
    for h in range(n + 1):
        for m in range(1, n + 1):
            out_arc[h, m] = times(semiring, at(semiring, link, h, m), at(semiring, out_link, h, m))[plane]
            total += out_arc[h, m]
        if h == 0 and single_root:
            continue
        for s in range(1, n + 1):
            if s == h:
                continue
            low, high = beyond(h, s, n)
            nearer = at(semiring, link, h, s)
            for m in range(low, high):
                within = times(semiring, nearer, at(semiring, gap, s, m))
                around = times(semiring, at(semiring, inner, h, m), at(semiring, pair[:, h], s, m))
                out_sibling[h, s, m] = times(semiring, within, around)[plane]
                total += out_sibling[h, s, m]
    return np.isfinite(total)


@kernel()
def _values_and_marginals(start, stop, arc, sibling, lengths, single_root, value, safe, d_arc, d_sibling):
    weight, pair, turned, law, chart = _scratch(arc.shape[1], 1, BOTH)
    for b in range(start, stop):
        n = lengths[b]
        safe[b], value[b] = evaluate(arc[b], sibling[b], n, single_root, law, weight, pair, turned, chart)
        d_arc[b] = 0
        d_sibling[b] = 0
        # as a number of the scores' dtype
        if safe[b] and value[b] > -np.inf:
            outside(LINEAR, n, single_root, weight, turned, chart)
            safe[b] = _read_off(LINEAR, 0, n, single_root, pair, chart, d_arc[b], d_sibling[b])


@compiled()
def _read_tangent(arc, sibling, n, single_root, weight, pair):
    """The derivatives of the weights, in plane 1, along a tangent; returns what it was divided by, to be at most 1."""
    top = 0.0
    for h in range(n + 1):
        for m in range(1, n + 1):
            top = max(top, abs(arc[h, m]) if m != h else 0.0)
        for s in range(1, n + 1 if h > 0 or not single_root else 0):
            low, high = beyond(h, s, n)
            for m in range(low, high if s != h else low):
                top = max(top, abs(sibling[h, s, m]))
    top = 1.0 if top == 0 else top
    for h in range(n + 1):
        for m in range(1, n + 1):
            weight[1, h, m] = arc[h, m] / top * weight[0, h, m] if m != h else 0.0
        for s in range(1, n + 1 if h > 0 or not single_root else 0):
            low, high = beyond(h, s, n)
            for m in range(low, high if s != h else low):
                pair[1, h, s, m] = sibling[h, s, m] / top * pair[0, h, s, m]
    return top


@kernel()
def _marginals_along(start, stop, arc, sibling, t_arc, t_sibling, lengths, single_root, safe, d_arc, d_sibling):
    weight, pair, turned, law, chart = _scratch(arc.shape[1], 2, BOTH)
    for b in range(start, stop):
        n = lengths[b]
        safe[b], value = evaluate(arc[b], sibling[b], n, single_root, law, weight, pair, turned, chart)
        d_arc[b] = 0
        d_sibling[b] = 0
        if safe[b] and arc.dtype.type(value) > -np.inf:
            top = _read_tangent(t_arc[b], t_sibling[b], n, single_root, weight, pair)
            turn(pair[1], n, single_root, turned[1])
            inside(DUAL, n, single_root, weight, turned, chart)
            outside(DUAL, n, single_root, weight, turned, chart)
            safe[b] = _read_off(DUAL, 1, n, single_root, pair, chart, d_arc[b], d_sibling[b])
            d_arc[b] *= top
            d_sibling[b] *= top


@kernel()
def _best(start, stop, arc, sibling, lengths, single_root, safe, out_arc, out_sibling):
    weight, _, turned, _, chart = _scratch(arc.shape[1], 1, INSIDE)
    stack, terms = new_stack(arc.shape[1])
    noise = np.zeros(3 * arc.shape[1])
    for b in range(start, stop):
        n = lengths[b]
        out_arc[b] = 0
        out_sibling[b] = 0
        safe[b] = read_scores(arc[b], sibling[b], n, single_root, weight[0], turned[0])
        if safe[b] and arc.dtype.type(inside(BEST, n, single_root, weight, turned, chart)[0]) > -np.inf:
            walk(BEST, n, single_root, turned[0], chart, noise, stack, terms, out_arc[b], out_sibling[b])


@kernel()
def _drawn(start, stop, arc, sibling, noise, lengths, single_root, safe, out_arc, out_sibling):
    weight, pair, turned, law, chart = _scratch(arc.shape[1], 1, INSIDE)
    stack, terms = new_stack(arc.shape[1])
    for b in range(start, stop):
        n = lengths[b]
        out_arc[b] = 0
        out_sibling[b] = 0
        safe[b], value = evaluate(arc[b], sibling[b], n, single_root, law, weight, pair, turned, chart)
        for d in range(noise.shape[1] if safe[b] and arc.dtype.type(value) > -np.inf else 0):
            parts = out_arc[b, d], out_sibling[b, d]
            walk(LINEAR, n, single_root, turned[0], chart, noise[b, d], stack, terms, *parts)


# --- the questions -------------------------------------------------------------------------------------------------


def _fill(
    name: str,
    rows: Callable[..., None],
    scores: tuple[Tensor, ...],
    noise: tuple[Tensor, ...],
    lengths: Tensor,
    single_root: bool,
    values: tuple[Tensor, ...],
    parts: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Fills values and parts slice by slice of the batch, and by the recursion where linear numbers are not safe.

    `scores` are all part tensors that the question takes, in groups of three, of which the kernel needs two.
    """
    safe = torch.empty(len(lengths), dtype=torch.bool)
    needed = [t for number, t in enumerate(scores) if number % 3 < 2]
    arrays = [t.numpy() for t in (*needed, *noise, lengths)], [t.numpy() for t in (*values, safe, *parts[:2])]
    over_rows(rows, len(lengths), len(lengths) * scores[0].shape[1] ** 3, *arrays[0], bool(single_root), *arrays[1])
    if not safe.all():
        left = (~safe).nonzero().flatten()
        extra = {"noise": noise[0][left]} if noise else {}
        ask = by_recursion("SecondOrderTree", reference, name, getattr(engine, name))
        found = ask(*(t[left] for t in scores), lengths=lengths[left], single_root=single_root, **extra)
        for answer, value in zip((*values, *parts), found, strict=True):
            answer[left] = value
    return (*values, *parts)


def log_partition(arc: Tensor, sibling: Tensor, grandparent: Tensor, *, lengths: Tensor, single_root: bool) -> Tensor:
    scores, value = (arc, sibling, grandparent), arc.new_empty(len(arc))
    _fill("log_partition", _values, scores, (), lengths, single_root, (value,), ())
    return value


def log_partition_and_marginals(
    arc: Tensor, sibling: Tensor, grandparent: Tensor, *, lengths: Tensor, single_root: bool
) -> tuple[Tensor, ...]:
    scores, value = (arc, sibling, grandparent), arc.new_empty(len(arc))
    parts = tuple(map(torch.empty_like, scores))
    rows = _values_and_marginals
    return _fill("log_partition_and_marginals", rows, scores, (), lengths, single_root, (value,), parts)


def marginals_jvp(
    arc: Tensor,
    sibling: Tensor,
    grandparent: Tensor,
    arc_tangent: Tensor,
    sibling_tangent: Tensor,
    grandparent_tangent: Tensor,
    *,
    lengths: Tensor,
    single_root: bool,
) -> tuple[Tensor, ...]:
    scores, tangent = (arc, sibling, grandparent), (arc_tangent, sibling_tangent, grandparent_tangent)
    parts = tuple(map(torch.empty_like, scores))
    return _fill("marginals_jvp", _marginals_along, scores + tangent, (), lengths, single_root, (), parts)


def argmax(
    arc: Tensor, sibling: Tensor, grandparent: Tensor, *, lengths: Tensor, single_root: bool
) -> tuple[Tensor, ...]:
    scores = arc, sibling, grandparent
    return _fill("argmax", _best, scores, (), lengths, single_root, (), tuple(map(torch.empty_like, scores)))


def sample(
    arc: Tensor, sibling: Tensor, grandparent: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool
) -> tuple[Tensor, ...]:
    scores = arc, sibling, grandparent
    parts = tuple(t.new_empty(len(t), noise.shape[1], *t.shape[1:]) for t in scores)
    return _fill("sample", _drawn, scores, (noise,), lengths, single_root, (), parts)
