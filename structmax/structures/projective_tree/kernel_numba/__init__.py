"""Projective trees on the CPU. Derivations: ../README.md.

Scores arrive as rows (B, N + 1, (N + 1) · labels), with one label where there are none: labels are summed (or the best
is taken) before the chart is filled, and shares of an arc go to its labels afterwards.
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.labels import mean_over_labels, share_out, share_out_along
from structmax.structures.projective_tree.kernel_numba.chart import (
    BOTH,
    INSIDE,
    arc_lengths,
    evaluate,
    inside,
    outside,
    read_scores,
)
from structmax.structures.projective_tree.kernel_numba.log import outside_log
from structmax.structures.projective_tree.kernel_numba.semiring import BEST, LINEAR, LOG, PAD
from structmax.structures.projective_tree.kernel_numba.tangent import inside_along, outside_along
from structmax.structures.projective_tree.kernel_numba.walks import walk

# No marginal is less: what is has been lost.
NOTHING = 1e-280


@compiled()
def _scratch(arc, tables):
    """A chart, two tables of arcs, a vector of words, the law of arc lengths, and the number of labels."""
    size = arc.shape[1]
    chart = np.empty((tables, size, size + 2 * PAD))
    return chart, np.empty((2, size, size)), np.empty(size), arc_lengths(size - 1), arc.shape[2] // size


@compiled()
def _fill_usable(out, n, labels, value):
    """`value` at every arc into a word from another node, 0 elsewhere."""
    out[:] = 0
    for h in range(n + 1):
        out[h, labels : h * labels] = value
        out[h, (h + 1) * labels : (n + 1) * labels] = value


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def _values(start, stop, arc, lengths, single_root, value):
    chart, (table, weight), vector, law, labels = _scratch(arc, INSIDE)
    for b in range(start, stop):
        if read_scores(arc[b], lengths[b], labels, False, table):
            value[b] = evaluate(lengths[b], single_root, table, law, vector, weight, chart)[1]
        else:
            value[b] = np.nan


@compiled()
def _forget(table, n, peak, mu):
    """0 for an arc so far below the best into its word that its weight is exp(−700): it may be a mask of −1e30."""
    peak[: n + 1] = -np.inf
    for h in range(n + 1):
        for m in range(1, n + 1):
            peak[m] = max(peak[m], table[h, m])
    for h in range(n + 1):
        for m in range(1, n + 1):
            mu[h, m] = mu[h, m] if table[h, m] - peak[m] > -700.0 else 0.0


@compiled()
def _share(arc, n, labels, mu, out):
    """mu[h, m] times the share of each label."""
    for h in range(n + 1):
        for m in range(1, n + 1):
            # Linear numbers are never quite 0 for an arc that is not forbidden.
            amount = mu[h, m] if mu[h, m] > NOTHING else 0.0
            if labels == 1:
                out[h, m] = amount
            else:
                share_out(arc[h, m * labels : (m + 1) * labels], amount, out[h, m * labels : (m + 1) * labels])


@kernel()
def _values_and_marginals(start, stop, arc, lengths, single_root, value, marginals):
    chart, (table, weight), vector, law, labels = _scratch(arc, BOTH)
    mu = np.empty_like(weight)
    for b in range(start, stop):
        n = lengths[b]
        if not read_scores(arc[b], n, labels, False, table):
            value[b] = np.nan
            _fill_usable(marginals[b], n, labels, np.nan)
            continue
        linear, value[b] = evaluate(n, single_root, table, law, vector, weight, chart)
        marginals[b] = 0
        if value[b] == -np.inf:
            continue
        mu[:] = 0
        if linear:
            outside(n, single_root, weight, chart, mu)
            _forget(table, n, vector, mu)
        else:
            outside_log(n, chart, np.zeros_like(chart), mu, np.empty_like(mu))
        _share(arc[b], n, labels, mu, marginals[b])


@compiled()
def _read_tangent(arc, tangent, n, labels, out):
    """out[h, m] = Σ over labels of their shares times their tangents; 0 where the arc cannot be."""
    for h in range(n + 1):
        for m in range(n + 1):
            names = slice(m * labels, (m + 1) * labels)
            out[h, m] = mean_over_labels(arc[h, names], tangent[h, names]) if 0 < m != h else 0.0


@compiled()
def _share_along(arc, tangent, n, labels, mu, d_mu, out):
    """The derivative of what `_share` writes."""
    for h in range(n + 1):
        for m in range(1, n + 1):
            if not mu[h, m] > NOTHING:
                continue
            if labels == 1:
                out[h, m] = d_mu[h, m]
            else:
                names = slice(m * labels, (m + 1) * labels)
                share_out_along(arc[h, names], tangent[h, names], mu[h, m], d_mu[h, m], out[h, names])


@kernel()
def _marginals_along(start, stop, arc, tangent, lengths, single_root, d_marginals):
    chart, (table, weight), vector, law, labels = _scratch(arc, BOTH)
    d_chart = np.empty_like(chart)
    d_weight, mu, d_mu = np.empty_like(weight), np.empty_like(weight), np.empty_like(weight)
    for b in range(start, stop):
        n = lengths[b]
        if not read_scores(arc[b], n, labels, False, table):
            _fill_usable(d_marginals[b], n, labels, np.nan)
            continue
        linear, value = evaluate(n, single_root, table, law, vector, weight, chart)
        d_marginals[b] = 0
        # as a number of the scores' dtype
        if arc.dtype.type(value) == -np.inf:
            continue
        _read_tangent(arc[b], tangent[b], n, labels, d_weight)
        mu[:] = 0
        d_mu[:] = 0
        if linear:
            inside_along(LINEAR, n, single_root, weight, d_weight, chart, d_chart)
            outside_along(n, single_root, weight, d_weight, chart, d_chart, mu, d_mu)
        else:
            inside_along(LOG, n, single_root, weight, d_weight, chart, d_chart)
            outside_log(n, chart, d_chart, mu, d_mu)
        _share_along(arc[b], tangent[b], n, labels, mu, d_mu, d_marginals[b])


@kernel()
def _best(start, stop, arc, lengths, single_root, out):
    chart, (table, _), _, _, labels = _scratch(arc, INSIDE)
    stack, names, noise = np.empty((2 * len(table), 3), np.int64), np.empty((2, labels)), np.zeros(3 * len(table))
    for b in range(start, stop):
        n = lengths[b]
        if not read_scores(arc[b], n, labels, True, table):
            _fill_usable(out[b], n, labels, np.nan)
            continue
        out[b] = 0
        if arc.dtype.type(inside(BEST, n, single_root, table, chart)) > -np.inf:
            walk(BEST, BEST, n, single_root, chart, arc[b], labels, noise, stack, names, out[b])


@kernel()
def _drawn(start, stop, arc, noise, lengths, single_root, out):
    chart, (table, weight), vector, law, labels = _scratch(arc, INSIDE)
    stack, names = np.empty((2 * len(table), 3), np.int64), np.empty((2, labels))
    for b in range(start, stop):
        n = lengths[b]
        if not read_scores(arc[b], n, labels, False, table):
            for s in range(out.shape[1]):
                _fill_usable(out[b, s], n, labels, np.nan)
            continue
        linear, value = evaluate(n, single_root, table, law, vector, weight, chart)
        out[b] = 0
        for s in range(out.shape[1] if arc.dtype.type(value) > -np.inf else 0):
            if linear:
                walk(LINEAR, LOG, n, single_root, chart, arc[b], labels, noise[b, s], stack, names, out[b, s])
            else:
                walk(LOG, LOG, n, single_root, chart, arc[b], labels, noise[b, s], stack, names, out[b, s])


# --- the questions -------------------------------------------------------------------------------------------------


def _rows(arc: Tensor) -> Tensor:
    """(B, N + 1, (N + 1) · labels), a view."""
    return arc.flatten(2)


def _work(arc: Tensor) -> int:
    return len(arc) * arc.shape[1] ** 3


def log_partition(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    value = arc.new_empty(len(arc))
    over_rows(_values, len(arc), _work(arc), _rows(arc).numpy(), words.numpy(), bool(single_root), value.numpy())
    return value


def log_partition_and_marginals(
    arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor]:
    arc, words = as_arcs(arc, lengths, directed)
    value, marginals = arc.new_empty(len(arc)), torch.empty_like(arc)
    arrays = (_rows(arc).numpy(), words.numpy(), bool(single_root), value.numpy(), _rows(marginals).numpy())
    over_rows(_values_and_marginals, len(arc), _work(arc), *arrays)
    return value, from_arcs(marginals, directed, arc.dim() == 4)


def marginals_jvp(arc: Tensor, tangent: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    tangent, _ = as_arcs(tangent, lengths, directed)
    arc, words = as_arcs(arc, lengths, directed)
    d_marginals = torch.empty_like(arc)
    arrays = (
        _rows(arc).numpy(),
        _rows(tangent).numpy(),
        words.numpy(),
        bool(single_root),
        _rows(d_marginals).numpy(),
    )
    over_rows(_marginals_along, len(arc), _work(arc), *arrays)
    return from_arcs(d_marginals, directed, arc.dim() == 4)


def argmax(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    best = torch.empty_like(arc)
    over_rows(_best, len(arc), _work(arc), _rows(arc).numpy(), words.numpy(), bool(single_root), _rows(best).numpy())
    return from_arcs(best, directed, arc.dim() == 4)


def sample(arc: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    drawn = arc.new_empty(len(arc), noise.shape[1], *arc.shape[1:])
    arrays = (_rows(arc).numpy(), noise.numpy(), words.numpy(), bool(single_root), drawn.flatten(3).numpy())
    over_rows(_drawn, len(arc), _work(arc), *arrays)
    return from_arcs(drawn, directed, arc.dim() == 4)
