"""Sums in logarithms of near scores, which have digits enough for any: for the instances that linear.py leaves.

The steps are those of linear.py, and so are the names. The plan takes the place of the weights, step by step: right of
k it keeps the weights of heads as they were, and who reads them divides by the pivot. A step reads the table once, for
both of its products of a vector and a matrix, and writes a row and a column. A name with d_ is the derivative of a
logarithm along a tangent, and lies in the table behind; that of a sum is a mean, so it needs no logarithm of its own.
"""

import triton
import triton.language as tl

from structmax.structures.spanning_tree.kernel_triton.search import bring_near, usable_arcs

EPS = tl.constexpr(2.0**-52)


@triton.jit
def finite(log):
    """0 in place of −inf."""
    return tl.where(log == float("-inf"), 0.0, log)


@triton.jit
def load_log(p_table, offset, mask):
    return tl.load(p_table + offset, mask=mask, other=float("-inf"))


@triton.jit
def log_sum(log, d_log, AXIS: tl.constexpr, ALONG: tl.constexpr):
    """log Σ exp along an axis, which stays with length 1, and its derivative."""
    peak = finite(tl.max(log, AXIS, keep_dims=True))
    b_term = tl.exp(log - peak)
    mass = tl.sum(b_term, AXIS, keep_dims=True)
    mean = mass
    if ALONG:
        mean = tl.sum(b_term * d_log, AXIS, keep_dims=True) / tl.where(mass == 0, 1.0, mass)
    return tl.log(mass) + peak, mean


@triton.jit
def log_add(a, d_a, b, d_b, ALONG: tl.constexpr):
    peak = finite(tl.maximum(a, b))
    left, right = tl.exp(a - peak), tl.exp(b - peak)
    mass = left + right
    mean = mass
    if ALONG:
        mean = (left * d_a + right * d_b) / tl.where(mass == 0, 1.0, mass)
    return tl.log(mass) + peak, mean


@triton.jit
def eliminate(
    p_plan, p_pivot, size, tables, lines, n,
    SINGLE_ROOT: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turns near scores into the plan; fills pivots, the weight of k's heads among what is left. Returns log Z."""
    FIRST: tl.constexpr = 1 if SINGLE_ROOT else 0
    p_d_plan, p_d_pivot = p_plan + tables, p_pivot + lines
    o_node = tl.arange(0, BLOCK)[None, :]
    value = tl.zeros((1, 1), tl.float64)
    for i in range(n):
        k = n - i
        m_gone = (o_node > k) & (o_node <= n)
        m_left = (o_node > 0) & (o_node < k)
        # What comes to k by itself and through words that have gone: their arcs to k over their pivots
        below = load_log(p_plan, o_node * size + k, m_gone) - finite(load_log(p_pivot, o_node, m_gone))
        below = tl.where(o_node == k, 0.0, below)
        m_gone |= o_node == k
        row = tl.full((1, BLOCK), float("-inf"), tl.float64)
        whole = tl.full((1, 1), float("-inf"), tl.float64)
        d_below, d_row, d_whole = below, row, whole
        if ALONG:
            m_d = m_gone & (o_node > k)
            d_below = tl.load(p_d_plan + o_node * size + k, mask=m_d, other=0.0)
            d_below -= tl.load(p_d_pivot + o_node, mask=m_d, other=0.0)
            d_row, d_whole = tl.zeros((1, BLOCK), tl.float64), tl.zeros((1, 1), tl.float64)
        for start in range(0, n + 1, ROWS):
            o_head = start + tl.arange(0, ROWS)[:, None]
            m_over = (o_head > k) & (o_head <= n)
            # What k hands on by itself and through words that have gone: its shares in their heads
            share = load_log(p_plan, k * size + o_head, m_over) - finite(load_log(p_pivot, o_head, m_over))
            share = tl.where(o_head == k, 0.0, share)
            m_head = (o_head >= FIRST) & (o_head < k)
            m_into, m_onward = m_head & m_gone, (o_head >= k) & (o_head <= n) & m_left
            b_plan = load_log(p_plan, o_head * size + o_node, m_into | m_onward)
            # One exponential serves both sums, which run along rows above k and along columns below.
            b_path = b_plan + tl.where(m_into, below, share)
            into = finite(tl.max(tl.where(m_into, b_path, float("-inf")), 1, keep_dims=True))
            onward = finite(tl.max(tl.where(m_onward, b_path, float("-inf")), 0, keep_dims=True))
            b_term = tl.exp(b_path - tl.where(m_into, into, onward))
            b_into, b_onward = tl.where(m_into, b_term, 0.0), tl.where(m_onward, b_term, 0.0)
            mass_into, mass_onward = tl.sum(b_into, 1, keep_dims=True), tl.sum(b_onward, 0, keep_dims=True)
            column, part = tl.log(mass_into) + into, tl.log(mass_onward) + onward
            d_column, d_part = column, part
            if ALONG:
                d_share = tl.load(p_d_plan + k * size + o_head, mask=m_over, other=0.0)
                d_share -= tl.load(p_d_pivot + o_head, mask=m_over, other=0.0)
                b_d = tl.load(p_d_plan + o_head * size + o_node, mask=m_into | m_onward, other=0.0)
                b_d += tl.where(m_into, d_below, d_share)
                d_column = tl.sum(b_into * b_d, 1, keep_dims=True) / tl.where(mass_into == 0, 1.0, mass_into)
                d_part = tl.sum(b_onward * b_d, 0, keep_dims=True) / tl.where(mass_onward == 0, 1.0, mass_onward)
            row, d_row = log_add(row, d_row, part, d_part, ALONG)
            part, d_part = log_sum(column, d_column, 0, ALONG)
            whole, d_whole = log_add(whole, d_whole, part, d_part, ALONG)
            # Other lanes have read this column as it was.
            tl.debug_barrier()
            tl.store(p_plan + o_head * size + k, column, mask=m_head)
            if ALONG:
                tl.store(p_d_plan + o_head * size + k, d_column, mask=m_head)
        tl.store(p_plan + k * size + o_node, row, mask=m_left)
        if ALONG:
            tl.store(p_d_plan + k * size + o_node, d_row, mask=m_left)
        o_pivot = tl.zeros((1, 1), tl.int32) + k
        tl.store(p_pivot + o_pivot, whole)
        if ALONG:
            tl.store(p_d_pivot + o_pivot, d_whole)
        if SINGLE_ROOT:
            tl.debug_barrier()
            # A word without heads among the words can only hang on the root: any share will do, and word 1 gets all.
            m_lonely = (o_node == 1) & (o_node < k) & (whole == float("-inf"))
            tl.store(p_plan + o_node * size + k, tl.zeros((1, BLOCK), tl.float64), mask=m_lonely)
            root, hangs = load_log(p_plan, o_node, m_left), tl.load(p_plan + o_pivot)
            d_root, d_hangs, d_among = root, hangs, d_whole
            if ALONG:
                d_root = tl.load(p_d_plan + o_node, mask=m_left, other=0.0)
                d_hangs = tl.load(p_d_plan + o_pivot)
            among = whole
            whole, d_whole = log_add(among, d_among, hangs, d_hangs, ALONG)
            # The root's row is a mean of its own arcs and those of k.
            stays, hangs = among - finite(whole) + root, hangs - finite(whole) + row
            d_stays, d_hangs = d_among - d_whole + d_root, d_hangs - d_whole + d_row
            root, d_root = log_add(stays, d_stays, hangs, d_hangs, ALONG)
            tl.debug_barrier()
            tl.store(p_plan + o_node, root, mask=m_left)
            if ALONG:
                tl.store(p_d_plan + o_node, d_root, mask=m_left)
        value += whole
        tl.debug_barrier()
    return tl.sum(value)


@triton.jit
def pull(
    p_plan, p_pivot, p_slope, size, tables, lines, n,
    SINGLE_ROOT: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fills the slopes of log Z by weights, after `eliminate`: words come back in the order 1, 2, … n."""
    FIRST: tl.constexpr = 1 if SINGLE_ROOT else 0
    p_d_plan, p_d_slope, p_d_pivot = p_plan + tables, p_slope + tables, p_pivot + lines
    o_node = tl.arange(0, BLOCK)[None, :]
    for k in range(1, n + 1):
        m_left = (o_node > 0) & (o_node < k)
        o_pivot = tl.zeros((1, 1), tl.int32) + k
        pivot, row = tl.load(p_pivot + o_pivot), load_log(p_plan, k * size + o_node, m_left)
        # How likely k has a head among what is left, less how many paths go through k
        likely = tl.full((1, 1), 1.0, tl.float64)
        out = tl.full((1, BLOCK), float("-inf"), tl.float64)
        d_pivot, d_row, d_likely, d_out = pivot, row, likely, out
        if ALONG:
            d_pivot = tl.load(p_d_pivot + o_pivot)
            d_row = tl.load(p_d_plan + k * size + o_node, mask=m_left, other=0.0)
            d_likely, d_out = tl.zeros((1, 1), tl.float64), tl.zeros((1, BLOCK), tl.float64)
        if SINGLE_ROOT:
            root, hangs = load_log(p_slope, o_node, m_left), tl.load(p_plan + o_pivot)
            d_root, d_hangs = root, hangs
            if ALONG:
                d_root = tl.load(p_d_slope + o_node, mask=m_left, other=0.0)
                d_hangs = tl.load(p_d_plan + o_pivot)
            whole, d_whole = log_add(pivot, d_pivot, hangs, d_hangs, ALONG)
            below_root, d_below_root = log_sum(root + row, d_root + d_row, 1, ALONG)
            below_root = tl.where(o_pivot == 1, 0.0, below_root)
            hangs, d_hangs = hangs - whole, d_hangs - d_whole
            likely -= tl.exp(hangs + below_root)
            out = hangs + root
            tl.debug_barrier()
            tl.store(p_slope + o_node, pivot - whole + root, mask=m_left)
            tl.store(p_slope + o_pivot, below_root - whole)
            if ALONG:
                d_likely -= tl.exp(hangs + below_root) * (d_hangs + d_below_root)
                d_out = d_hangs + d_root
                tl.store(p_d_slope + o_node, d_pivot - d_whole + d_root, mask=m_left)
                tl.store(p_d_slope + o_pivot, d_below_root - d_whole)
        for start in range(0, k, ROWS):
            o_head = start + tl.arange(0, ROWS)[:, None]
            m_head = (o_head >= FIRST) & (o_head < k)
            m_tile = m_head & m_left & (o_head != o_node)
            b_slope = load_log(p_slope, o_head * size + o_node, m_tile)
            share = load_log(p_plan, o_head * size + k, m_head) - finite(pivot)
            d_share, b_d = share, b_slope
            if ALONG:
                d_share = tl.load(p_d_plan + o_head * size + k, mask=m_head, other=0.0) - d_pivot
                b_d = tl.load(p_d_slope + o_head * size + o_node, mask=m_tile, other=0.0)
            through, d_through = log_sum(b_slope + row, b_d + d_row, 1, ALONG)
            part, d_part = log_sum(b_slope + share, b_d + d_share, 0, ALONG)
            out, d_out = log_add(out, d_out, part, d_part, ALONG)
            b_paths = tl.exp(share + through)
            likely -= tl.sum(b_paths, 0, keep_dims=True)
            # completed below, when `likely` is known
            tl.store(p_slope + o_head * size + k, through, mask=m_head)
            if ALONG:
                d_likely -= tl.sum(b_paths * (d_share + d_through), 0, keep_dims=True)
                tl.store(p_d_slope + o_head * size + k, d_through, mask=m_head)
        tl.store(p_slope + k * size + o_node, out, mask=m_left)
        if ALONG:
            tl.store(p_d_slope + k * size + o_node, d_out, mask=m_left)
        tl.debug_barrier()
        # Rounding leaves something of nothing, which no mask bears.
        likely = tl.where(tl.abs(likely) > n * EPS, likely, 0.0)
        m_head = (o_node >= FIRST) & (o_node < k)
        through = load_log(p_slope, o_node * size + k, m_head)
        scale = tl.maximum(through, 0.0)
        b_through, b_unit = tl.exp(through - scale), tl.exp(-scale)
        b_sum = likely * b_unit + b_through
        m_some = (b_sum > 0) & (pivot > float("-inf"))
        b_sum = tl.where(m_some, b_sum, 1.0)
        tl.store(
            p_slope + o_node * size + k,
            tl.where(m_some, tl.log(b_sum) + scale - finite(pivot), float("-inf")),
            mask=m_head,
        )
        if ALONG:
            d_through = tl.load(p_d_slope + o_node * size + k, mask=m_head, other=0.0)
            b_d = (d_likely * b_unit + d_through * b_through) / b_sum - d_pivot
            tl.store(p_d_slope + o_node * size + k, tl.where(m_some, b_d, 0.0), mask=m_head)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["size", "labels", "tables", "lines"])
def log_sums(
    p_arc, p_extra, p_tangent, p_lengths, p_tables, p_lines, p_value, p_left, p_mu, p_d_mu, size, tables, lines, labels,
    SINGLE_ROOT: tl.constexpr, PARTS: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What `linear_sums` has left to do."""
    DEPTH: tl.constexpr = 2 if ALONG else 1
    i_instance = tl.program_id(0).to(tl.int64)
    tables, lines = tables.to(tl.int64), lines.to(tl.int64)
    o_first = i_instance * size * size
    p_near = p_tables + o_first
    p_plan = p_near + tables
    p_slope = p_plan + DEPTH * tables
    p_pivot = p_lines + i_instance * size
    if p_extra is not None:
        p_extra += o_first
    o_node = tl.arange(0, BLOCK)[None, :]
    if tl.load(p_left + i_instance) > 0:
        every = tl.load(p_lengths + i_instance).to(tl.int32)
        # Slopes come when the scratch of the search is not needed any more.
        lost = bring_near(
            p_arc + o_first, p_extra, p_slope, p_slope + tables, p_slope + 2 * tables, p_near, p_plan, size, labels,
            every, SINGLE_ROOT, ROWS, BLOCK,
        )  # fmt: skip
        n = tl.where(lost > float("-inf"), every, 0)
        tl.debug_barrier()
        if ALONG:
            for start in range(0, n + 1, ROWS):
                o_head = start + tl.arange(0, ROWS)[:, None]
                o_arc = o_head * size + o_node
                # An arc that cannot be has no say.
                m_arc = load_log(p_near, o_arc, usable_arcs(o_head, o_node, n)) > float("-inf")
                b_tangent = tl.load(p_tangent + o_first + o_arc, mask=m_arc, other=0.0)
                tl.store(p_plan + tables + o_arc, b_tangent, mask=(o_head <= n) & (o_node <= n))
            tl.debug_barrier()
        found = eliminate(p_plan, p_pivot, size, tables, lines, n, SINGLE_ROOT, ALONG, ROWS, BLOCK)
        value = (lost + found).to(p_value.dtype.element_ty)
        tl.store(p_value + i_instance, value)
        if PARTS:
            n = tl.where(value > float("-inf"), n, 0)
            pull(p_plan, p_pivot, p_slope, size, tables, lines, n, SINGLE_ROOT, ALONG, ROWS, BLOCK)
            for start in range(0, size, ROWS):
                o_head = start + tl.arange(0, ROWS)[:, None]
                o_arc = o_head * size + o_node
                m_arc, m_out = usable_arcs(o_head, o_node, n), (o_head < size) & (o_node < size)
                b_mu = tl.exp(load_log(p_near, o_arc, m_arc) + load_log(p_slope, o_arc, m_arc))
                tl.store(p_mu + o_first + o_arc, b_mu.to(p_mu.dtype.element_ty), mask=m_out)
                if ALONG:
                    m_arc &= b_mu > 0
                    b_d = tl.load(p_slope + tables + o_arc, mask=m_arc, other=0.0)
                    b_d += tl.load(p_tangent + o_first + o_arc, mask=m_arc, other=0.0)
                    tl.store(p_d_mu + o_first + o_arc, (b_mu * b_d).to(p_d_mu.dtype.element_ty), mask=m_out)
