"""Elimination of words and the way back, in numbers of any size: one program for each instance.

The formulas are those of kernel_numba/linear.py, and so are the names. Here `plan` keeps the weights of k's heads as they
are, and who reads them divides by the pivot: a step reads the table once, for both of its products of a vector and a
matrix, and writes a row and a column. A number is a mantissa and an exponent, in two tables, so that no score is too
large and one code is enough; names that end in _e are exponents. Names with d_ are derivatives along a tangent, whose
tables lie behind the others.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.extended import add, from_log, logarithm, normalised, number, over, total

EPS = tl.constexpr(2.0**-52)


@triton.jit
def _load(p_table, p_table_e, offset, mask):
    return tl.load(p_table + offset, mask=mask, other=0.0), tl.load(p_table_e + offset, mask=mask, other=0)


@triton.jit
def _store(p_table, p_table_e, offset, value, value_e, mask):
    tl.store(p_table + offset, value, mask=mask)
    tl.store(p_table_e + offset, value_e, mask=mask)


@triton.jit
def _scaled(a, a_e, number):
    """A number of any size times one in float64; 0 where it is 0, whatever the other is."""
    return normalised(tl.where(a == 0, 0.0, a * number), a_e)


@triton.jit
def _d_over(d, d_e, quotient, quotient_e, d_divisor, d_divisor_e, divisor, divisor_e):
    """The derivative of a quotient: (d − quotient · d_divisor) / divisor."""
    d, d_e = add(d, d_e, -quotient * d_divisor, quotient_e + d_divisor_e)
    return over(d, d_e, divisor, divisor_e)


@triton.jit
def _d_product(a, a_e, d_a, d_a_e, b, b_e, d_b, d_b_e, AXIS: tl.constexpr):
    """Σ a d_b + d_a b along an axis."""
    left, left_e = total(a * d_b, a_e + d_b_e, AXIS)
    right, right_e = total(d_a * b, d_a_e + b_e, AXIS)
    return add(left, left_e, right, right_e)


@triton.jit(do_not_specialize=["size"])
def eliminate(
    p_near, p_lost, p_tangent, p_lengths, p_plan, p_plan_e, p_pivot, p_pivot_e, p_value, size, tables, lines,
    SINGLE_ROOT: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fills plan and pivot, the weight of k's heads among what is left, and log Z.

    `tables` and `lines` are how far the derivatives' tables and lines are behind those of the numbers.
    """
    FIRST: tl.constexpr = 1 if SINGLE_ROOT else 0
    i_instance = tl.program_id(0).to(tl.int64)
    lost = tl.load(p_lost + i_instance)
    n = tl.load(p_lengths + i_instance).to(tl.int32)
    n = tl.where(lost > float("-inf"), n, 0)
    p_near += i_instance * size * size
    p_plan += i_instance * size * size
    p_plan_e += i_instance * size * size
    p_pivot += i_instance * size
    p_pivot_e += i_instance * size
    if ALONG:
        p_tangent += i_instance * size * size
    o_node = tl.arange(0, BLOCK)[None, :]
    if SINGLE_ROOT:
        m_word = (o_node > 0) & (o_node <= n)
        root, root_e = from_log(tl.load(p_near + o_node, mask=m_word, other=float("-inf")))
        _store(p_plan, p_plan_e, o_node, root, root_e, m_word)
        if ALONG:
            root, root_e = _scaled(root, root_e, tl.load(p_tangent + o_node, mask=m_word, other=0.0))
            _store(p_plan + tables, p_plan_e + tables, o_node, root, root_e, m_word)
        tl.debug_barrier()
    value = tl.zeros((1, 1), tl.float64)
    for i in range(n):
        k = n - i
        m_after = (o_node > k) & (o_node <= n)
        m_before = (o_node > 0) & (o_node < k)
        # What comes to k through a word that has gone: its arc to k, over its pivot
        pivot, pivot_e = _load(p_pivot, p_pivot_e, o_node, m_after)
        below, below_e = _load(p_plan, p_plan_e, o_node * size + k, m_after)
        below, below_e = over(below, below_e, pivot, pivot_e)
        if ALONG:
            d_pivot, d_pivot_e = _load(p_pivot + lines, p_pivot_e + lines, o_node, m_after)
            d_below, d_below_e = _load(p_plan + tables, p_plan_e + tables, o_node * size + k, m_after)
            d_below, d_below_e = _d_over(
                d_below, d_below_e, below, below_e, d_pivot, d_pivot_e, pivot, pivot_e
            )
        row, row_e = from_log(tl.load(p_near + k * size + o_node, mask=m_before, other=float("-inf")))
        whole, whole_e = tl.zeros((1, 1), tl.float64), tl.zeros((1, 1), tl.int32)
        if ALONG:
            d_row, d_row_e = _scaled(row, row_e, tl.load(p_tangent + k * size + o_node, mask=m_before, other=0.0))
            d_whole, d_whole_e = tl.zeros((1, 1), tl.float64), tl.zeros((1, 1), tl.int32)
        for start in range(0, n + 1, ROWS):
            o_head = start + tl.arange(0, ROWS)[:, None]
            m_head = (o_head >= FIRST) & (o_head < k)
            m_gone = (o_head > k) & (o_head <= n)
            # Heads' weights right of k, and the rows of words that have gone left of it
            m_tile = (m_head & m_after) | (m_gone & m_before)
            tile, tile_e = _load(p_plan, p_plan_e, o_head * size + o_node, m_tile)
            column, column_e = total(tile * below, tile_e + below_e, 1)
            own, own_e = from_log(tl.load(p_near + o_head * size + k, mask=m_head, other=float("-inf")))
            column, column_e = add(column, column_e, own, own_e)
            _store(p_plan, p_plan_e, o_head * size + k, column, column_e, m_head)
            part, part_e = total(column, column_e, 0)
            whole, whole_e = add(whole, whole_e, part, part_e)
            # What k hands on through a word that has gone: its share of the word's heads, over its pivot
            gone, gone_e = _load(p_pivot, p_pivot_e, o_head, m_gone)
            share, share_e = _load(p_plan, p_plan_e, k * size + o_head, m_gone)
            share, share_e = over(share, share_e, gone, gone_e)
            if ALONG:
                d_tile, d_tile_e = _load(p_plan + tables, p_plan_e + tables, o_head * size + o_node, m_tile)
                d_column, d_column_e = _d_product(
                    tile, tile_e, d_tile, d_tile_e, below, below_e, d_below, d_below_e, 1
                )
                d_own = tl.load(p_tangent + o_head * size + k, mask=m_head, other=0.0)
                own, own_e = _scaled(own, own_e, d_own)
                d_column, d_column_e = add(d_column, d_column_e, own, own_e)
                _store(p_plan + tables, p_plan_e + tables, o_head * size + k, d_column, d_column_e, m_head)
                part, part_e = total(d_column, d_column_e, 0)
                d_whole, d_whole_e = add(d_whole, d_whole_e, part, part_e)
                d_gone, d_gone_e = _load(p_pivot + lines, p_pivot_e + lines, o_head, m_gone)
                d_share, d_share_e = _load(p_plan + tables, p_plan_e + tables, k * size + o_head, m_gone)
                d_share, d_share_e = _d_over(
                    d_share, d_share_e, share, share_e, d_gone, d_gone_e, gone, gone_e
                )
                part, part_e = _d_product(tile, tile_e, d_tile, d_tile_e, share, share_e, d_share, d_share_e, 0)
                d_row, d_row_e = add(d_row, d_row_e, part, part_e)
            part, part_e = total(tile * share, tile_e + share_e, 0)
            row, row_e = add(row, row_e, part, part_e)
        _store(p_plan, p_plan_e, k * size + o_node, row, row_e, m_before)
        if ALONG:
            _store(p_plan + tables, p_plan_e + tables, k * size + o_node, d_row, d_row_e, m_before)
        o_pivot = tl.zeros((1, 1), tl.int32) + k
        _store(p_pivot, p_pivot_e, o_pivot, whole, whole_e, o_pivot > 0)
        if ALONG:
            _store(p_pivot + lines, p_pivot_e + lines, o_pivot, d_whole, d_whole_e, o_pivot > 0)
        if SINGLE_ROOT:
            tl.debug_barrier()
            # A word without heads among the words can only hang on the root: any share will do, and word 1 gets all.
            m_lonely = (o_node == 1) & (o_node < k) & (whole == 0)
            _store(p_plan, p_plan_e, o_node * size + k, tl.where(m_lonely, 1.0, 0.0), o_node * 0, m_lonely)
            root, root_e = _load(p_plan, p_plan_e, o_node, m_before)
            hangs, hangs_e = _load(p_plan, p_plan_e, o_pivot, o_pivot > 0)
            among, among_e = whole, whole_e
            whole, whole_e = add(among, among_e, hangs, hangs_e)
            stays, stays_e = over(among, among_e, whole, whole_e)
            hangs, hangs_e = over(hangs, hangs_e, whole, whole_e)
            moved, moved_e = add(stays * root, stays_e + root_e, hangs * row, hangs_e + row_e)
            _store(p_plan, p_plan_e, o_node, moved, moved_e, m_before)
            if ALONG:
                d_hangs, d_hangs_e = _load(p_plan + tables, p_plan_e + tables, o_pivot, o_pivot > 0)
                d_hangs, d_hangs_e = add(
                    stays * d_hangs, stays_e + d_hangs_e, -hangs * d_whole, hangs_e + d_whole_e
                )
                d_hangs, d_hangs_e = over(d_hangs, d_hangs_e, whole, whole_e)
                d_root, d_root_e = _load(p_plan + tables, p_plan_e + tables, o_node, m_before)
                d_root, d_root_e = add(stays * d_root, stays_e + d_root_e, hangs * d_row, hangs_e + d_row_e)
                apart, apart_e = add(row, row_e, -root, root_e)
                d_root, d_root_e = add(d_root, d_root_e, d_hangs * apart, d_hangs_e + apart_e)
                _store(p_plan + tables, p_plan_e + tables, o_node, d_root, d_root_e, m_before)
        value += logarithm(whole, whole_e)
        tl.debug_barrier()
    tl.store(p_value + i_instance, (lost + tl.sum(value)).to(p_value.dtype.element_ty))


@triton.jit(do_not_specialize=["size"])
def pull(
    p_near, p_value, p_tangent, p_lengths, p_plan, p_plan_e, p_pivot, p_pivot_e, p_slope, p_slope_e, p_mu, p_d_mu,
    size, tables, lines,
    SINGLE_ROOT: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Marginals, after `eliminate`: slopes of log Z by weights, where words come back in the order 1, 2, … n."""
    FIRST: tl.constexpr = 1 if SINGLE_ROOT else 0
    i_instance = tl.program_id(0).to(tl.int64)
    value = tl.load(p_value + i_instance)
    every = tl.load(p_lengths + i_instance).to(tl.int32)
    n = tl.where(value > float("-inf"), every, 0)
    nothing = tl.where(value == value, 0.0, float("nan"))
    p_near += i_instance * size * size
    p_plan += i_instance * size * size
    p_plan_e += i_instance * size * size
    p_slope += i_instance * size * size
    p_slope_e += i_instance * size * size
    p_pivot += i_instance * size
    p_pivot_e += i_instance * size
    p_mu += i_instance * size * size
    if ALONG:
        p_tangent += i_instance * size * size
        p_d_mu += i_instance * size * size
    o_node = tl.arange(0, BLOCK)[None, :]
    for k in range(1, n + 1):
        m_before = (o_node > 0) & (o_node < k)
        o_pivot = tl.zeros((1, 1), tl.int32) + k
        pivot, pivot_e = _load(p_pivot, p_pivot_e, o_pivot, o_pivot > 0)
        row, row_e = _load(p_plan, p_plan_e, k * size + o_node, m_before)
        # How likely k has a head among what is left, less how many paths go through k
        likely = tl.full((1, 1), 1.0, tl.float64)
        out, out_e = tl.zeros((1, BLOCK), tl.float64), tl.zeros((1, BLOCK), tl.int32)
        if ALONG:
            d_pivot, d_pivot_e = _load(p_pivot + lines, p_pivot_e + lines, o_pivot, o_pivot > 0)
            d_row, d_row_e = _load(p_plan + tables, p_plan_e + tables, k * size + o_node, m_before)
            d_likely = tl.zeros((1, 1), tl.float64)
            d_out, d_out_e = out, out_e
        if SINGLE_ROOT:
            root, root_e = _load(p_slope, p_slope_e, o_node, m_before)
            hangs, hangs_e = _load(p_plan, p_plan_e, o_pivot, o_pivot > 0)
            whole, whole_e = add(pivot, pivot_e, hangs, hangs_e)
            stays, stays_e = over(pivot, pivot_e, whole, whole_e)
            hangs, hangs_e = over(hangs, hangs_e, whole, whole_e)
            below_root, below_root_e = total(root * row, root_e + row_e, 1)
            below_root = tl.where(o_pivot == 1, 1.0, below_root)
            out, out_e = normalised(hangs * root, hangs_e + root_e)
            likely -= number(hangs * below_root, hangs_e + below_root_e)
            last, last_e = over(below_root, below_root_e, whole, whole_e)
            if ALONG:
                d_root, d_root_e = _load(p_slope + tables, p_slope_e + tables, o_node, m_before)
                d_head, d_head_e = _load(p_plan + tables, p_plan_e + tables, o_pivot, o_pivot > 0)
                d_whole, d_whole_e = add(d_pivot, d_pivot_e, d_head, d_head_e)
                d_hangs, d_hangs_e = add(
                    stays * d_head, stays_e + d_head_e, -hangs * d_pivot, hangs_e + d_pivot_e
                )
                d_hangs, d_hangs_e = over(d_hangs, d_hangs_e, whole, whole_e)
                d_below_root, d_below_root_e = _d_product(
                    root, root_e, d_root, d_root_e, row, row_e, d_row, d_row_e, 1
                )
                d_out, d_out_e = add(hangs * d_root, hangs_e + d_root_e, d_hangs * root, d_hangs_e + root_e)
                d_likely -= number(hangs * d_below_root, hangs_e + d_below_root_e)
                d_likely -= number(d_hangs * below_root, d_hangs_e + below_root_e)
                d_last, d_last_e = _d_over(
                    d_below_root, d_below_root_e, last, last_e, d_whole, d_whole_e, whole, whole_e
                )
                d_root, d_root_e = add(stays * d_root, stays_e + d_root_e, -d_hangs * root, d_hangs_e + root_e)
                tl.debug_barrier()
                _store(p_slope + tables, p_slope_e + tables, o_node, d_root, d_root_e, m_before)
                _store(p_slope + tables, p_slope_e + tables, o_pivot, d_last, d_last_e, o_pivot > 0)
            root, root_e = normalised(stays * root, stays_e + root_e)
            _store(p_slope, p_slope_e, o_node, root, root_e, m_before)
            _store(p_slope, p_slope_e, o_pivot, last, last_e, o_pivot > 0)
        for start in range(0, k, ROWS):
            o_head = start + tl.arange(0, ROWS)[:, None]
            m_head = (o_head >= FIRST) & (o_head < k)
            m_tile = m_head & m_before & (o_head != o_node)
            tile, tile_e = _load(p_slope, p_slope_e, o_head * size + o_node, m_tile)
            share, share_e = _load(p_plan, p_plan_e, o_head * size + k, m_head)
            share, share_e = over(share, share_e, pivot, pivot_e)
            through, through_e = total(tile * row, tile_e + row_e, 1)
            likely -= tl.sum(number(share * through, share_e + through_e), 0, keep_dims=True)
            part, part_e = total(tile * share, tile_e + share_e, 0)
            out, out_e = add(out, out_e, part, part_e)
            # completed below, when `likely` is known
            _store(p_slope, p_slope_e, o_head * size + k, through, through_e, m_head)
            if ALONG:
                d_tile, d_tile_e = _load(p_slope + tables, p_slope_e + tables, o_head * size + o_node, m_tile)
                d_share, d_share_e = _load(p_plan + tables, p_plan_e + tables, o_head * size + k, m_head)
                d_share, d_share_e = _d_over(
                    d_share, d_share_e, share, share_e, d_pivot, d_pivot_e, pivot, pivot_e
                )
                d_through, d_through_e = _d_product(tile, tile_e, d_tile, d_tile_e, row, row_e, d_row, d_row_e, 1)
                moved = number(share * d_through, share_e + d_through_e)
                moved += number(d_share * through, d_share_e + through_e)
                d_likely -= tl.sum(moved, 0, keep_dims=True)
                part, part_e = _d_product(tile, tile_e, d_tile, d_tile_e, share, share_e, d_share, d_share_e, 0)
                d_out, d_out_e = add(d_out, d_out_e, part, part_e)
                _store(p_slope + tables, p_slope_e + tables, o_head * size + k, d_through, d_through_e, m_head)
        _store(p_slope, p_slope_e, k * size + o_node, out, out_e, m_before)
        if ALONG:
            _store(p_slope + tables, p_slope_e + tables, k * size + o_node, d_out, d_out_e, m_before)
        tl.debug_barrier()
        # Rounding leaves something of nothing, which no mask bears.
        likely = tl.where(tl.abs(likely) > n * EPS, likely, 0.0)
        m_head = (o_node >= FIRST) & (o_node < k)
        through, through_e = _load(p_slope, p_slope_e, o_node * size + k, m_head)
        slope, slope_e = add(likely, through_e * 0, through, through_e)
        slope = tl.where((pivot > 0) & (slope > 0), slope, 0.0)
        slope, slope_e = over(slope, slope_e, pivot, pivot_e)
        _store(p_slope, p_slope_e, o_node * size + k, slope, slope_e, m_head)
        if ALONG:
            d_through, d_through_e = _load(p_slope + tables, p_slope_e + tables, o_node * size + k, m_head)
            d_slope, d_slope_e = add(d_likely, through_e * 0, d_through, d_through_e)
            d_slope, d_slope_e = _d_over(d_slope, d_slope_e, slope, slope_e, d_pivot, d_pivot_e, pivot, pivot_e)
            d_slope = tl.where(pivot > 0, d_slope, 0.0)
            _store(p_slope + tables, p_slope_e + tables, o_node * size + k, d_slope, d_slope_e, m_head)
        tl.debug_barrier()
    for start in range(0, size, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        o_arc = o_head * size + o_node
        m_arc = (o_head <= every) & (o_node <= every) & (o_node > 0) & (o_head != o_node)
        m_real = m_arc & (o_head <= n) & (o_node <= n)
        weight, weight_e = from_log(tl.load(p_near + o_arc, mask=m_real, other=float("-inf")))
        slope, slope_e = _load(p_slope, p_slope_e, o_arc, m_real)
        b_nothing = tl.where(m_arc, nothing, 0.0)
        b_mu = number(weight * slope, weight_e + slope_e)
        m_out = (o_head < size) & (o_node < size)
        tl.store(p_mu + o_arc, tl.where(m_real, b_mu, b_nothing).to(p_mu.dtype.element_ty), mask=m_out)
        if ALONG:
            d_slope, d_slope_e = _load(p_slope + tables, p_slope_e + tables, o_arc, m_real)
            b_tangent = tl.load(p_tangent + o_arc, mask=m_real & (weight > 0), other=0.0)
            b_d_mu = number(weight * d_slope, weight_e + d_slope_e) + b_mu * b_tangent
            b_d_mu = tl.where(m_real, tl.where(weight > 0, b_d_mu, 0.0), b_nothing)
            tl.store(p_d_mu + o_arc, b_d_mu.to(p_d_mu.dtype.element_ty), mask=m_out)
