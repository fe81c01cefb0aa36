"""Kernels over slices of the batch, made for one semiring.

All is float64 in between. `score` (P, K), `value` (V, K) and what is derived of them hold an element in each row. A
fold starts from its first item: `total` is that of the items so far, if there is `some`.
"""

from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from structmax.recursion.kernel_numba.passes import most_edges, reach
from structmax.recursion.semiring import Semiring
from structmax.recursion.semiring.kernel_numba.functions import SETTINGS

_inner = numba.njit(**SETTINGS)
_kernel = numba.njit(nogil=True, **SETTINGS)


def _cells(semiring: Semiring) -> SimpleNamespace:
    """How an element is read from a row of an array, written to it and added to it, and whether it is 0."""
    K = semiring.width
    if semiring.is_tuple:

        @_inner
        def read(rows, i):
            return to_fixed_tuple(rows[i], K)

        @_inner
        def write(rows, i, element):
            for k in range(K):
                rows[i, k] = element[k]

        @_inner
        def add(rows, i, element):
            for k in range(K):
                rows[i, k] += element[k]

        @_inner
        def is_still(element):
            moved = 0
            for k in range(K):
                moved += element[k] != 0
            return moved == 0

    else:

        @_inner
        def read(rows, i):
            return rows[i, 0]

        @_inner
        def write(rows, i, element):
            rows[i, 0] = element

        @_inner
        def add(rows, i, element):
            rows[i, 0] += element

        @_inner
        def is_still(element):
            return element == 0

    return SimpleNamespace(read=read, write=write, add=add, is_still=is_still)


@_inner
def _load(x, i, score):
    """Instance i of x (B, K, P)."""
    for p in range(score.shape[0]):
        for k in range(score.shape[1]):
            score[p, k] = x[i, k, p]


def _passes(semiring: Semiring, plus: Any, times: Any) -> SimpleNamespace:
    """The product of an edge, and the pass that computes the value of every node that counts."""
    cells = _cells(semiring)
    read, write, zero, one = cells.read, cells.write, semiring.zero, semiring.one

    @_inner
    def product(tails, parts, e, score, value):
        total, some = one, False
        for j in range(parts.shape[1]):
            if parts[e, j] >= 0:
                factor = read(score, parts[e, j])
                total = times(total, factor) if some else factor
                some = True
        for j in range(tails.shape[1]):
            if tails[e, j] >= 0:
                factor = read(value, tails[e, j])
                total = times(total, factor) if some else factor
                some = True
        return total

    @_inner
    def ascend(graph, nodes, score, value):
        first, tails, parts = graph
        for v in nodes:
            total = zero
            for e in range(first[v], first[v + 1]):
                term = product(tails, parts, e, score, value)
                total = plus(total, term) if e > first[v] else term
            write(value, v, total)

    return SimpleNamespace(product=product, ascend=ascend)


def value_kernel(semiring: Semiring, plus: Any, times: Any) -> Any:
    """The kernel that fills out (B, K)."""
    ascend, K = _passes(semiring, plus, times).ascend, semiring.width

    @_kernel
    def value_rows(start, stop, x, goal, first, tails, parts, out):
        graph = (first, tails, parts)
        needed, order = np.zeros(first.size, np.bool_), np.empty(first.size, np.int32)
        nodes = order[:0]
        score, value = np.empty((x.shape[2], K)), np.empty((first.size, K))
        for i in range(start, stop):
            nodes = reach(graph, goal[i], needed, order, nodes)
            _load(x, i, score)
            ascend(graph, nodes, score, value)
            for k in range(K):
                out[i, k] = value[goal[i], k]

    return value_rows


def pullback_kernel(semiring: Semiring, plus: Any, times: Any, plus_pullback: Any, times_pullback: Any) -> Any:
    """The kernel that fills out (B, K, P), from cotangents (B, K)."""
    passes, cells, K = _passes(semiring, plus, times), _cells(semiring), semiring.width
    product, ascend = passes.product, passes.ascend
    read, write, add, is_still = cells.read, cells.write, cells.add, cells.is_still

    @_inner
    def descend_edge(tails, parts, e, d_total, score, value, d_score, d_value, totals, factors):
        """Passes the cotangent of an edge on to its parts and tails.

        `totals` (Q + T, K) are the products up to each factor, which `factors` names: a part, or beyond them a tail.
        """
        count, size = 0, score.shape[0]
        for j in range(parts.shape[1]):
            if parts[e, j] >= 0:
                factors[count] = parts[e, j]
                count += 1
        for j in range(tails.shape[1]):
            if tails[e, j] >= 0:
                factors[count] = size + tails[e, j]
                count += 1
        for c in range(count):
            f = factors[c]
            factor = read(score, f) if f < size else read(value, f - size)
            write(totals, c, times(read(totals, c - 1), factor) if c > 0 else factor)
        for c in range(count - 1, -1, -1):
            f = factors[c]
            d_factor = d_total
            if c > 0 and not is_still(d_total):
                factor = read(score, f) if f < size else read(value, f - size)
                d_total, d_factor = times_pullback(read(totals, c - 1), factor, read(totals, c), d_total)
            if f < size:
                add(d_score, f, d_factor)
            else:
                add(d_value, f - size, d_factor)

    @_inner
    def descend(graph, nodes, score, value, d_score, d_value, terms, sums, totals, factors):
        first, tails, parts = graph
        for n in range(nodes.size - 1, -1, -1):
            v = nodes[n]
            d_total = read(d_value, v)
            if is_still(d_total):
                continue
            start, count = first[v], first[v + 1] - first[v]
            for j in range(count):
                term = product(tails, parts, start + j, score, value)
                write(terms, j, term)
                write(sums, j, plus(read(sums, j - 1), term) if j > 0 else term)
            for j in range(count - 1, -1, -1):
                d_term = d_total
                if j > 0 and not is_still(d_total):
                    d_total, d_term = plus_pullback(read(sums, j - 1), read(terms, j), read(sums, j), d_total)
                if not is_still(d_term):
                    descend_edge(tails, parts, start + j, d_term, score, value, d_score, d_value, totals, factors)

    @_kernel
    def pullback_rows(start, stop, x, goal, first, tails, parts, d_out, out):
        graph = (first, tails, parts)
        needed, order = np.zeros(first.size, np.bool_), np.empty(first.size, np.int32)
        nodes = order[:0]
        score, d_score = np.empty((x.shape[2], K)), np.empty((x.shape[2], K))
        value, d_value = np.empty((first.size, K)), np.empty((first.size, K))
        most, longest = most_edges(first), parts.shape[1] + tails.shape[1]
        terms, sums = np.empty((most, K)), np.empty((most, K))
        totals, factors = np.empty((longest, K)), np.empty(longest, np.int64)
        for i in range(start, stop):
            nodes = reach(graph, goal[i], needed, order, nodes)
            _load(x, i, score)
            ascend(graph, nodes, score, value)
            for p in range(x.shape[2]):
                for k in range(K):
                    d_score[p, k] = 0.0
            for v in nodes:
                for k in range(K):
                    d_value[v, k] = d_out[i, k] if v == goal[i] else 0.0
            descend(graph, nodes, score, value, d_score, d_value, terms, sums, totals, factors)
            for p in range(x.shape[2]):
                for k in range(K):
                    out[i, k, p] = d_score[p, k]

    return pullback_rows
