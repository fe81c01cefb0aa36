"""Sums in numbers as they are, for scores whose trees fit into float64: one program for each instance.

The steps are those of kernel_numba/linear.py, and so are the names. The plan is in two tables, both read by rows,

    down[k, m], m < k    the arc k → m at the time when k is eliminated
    up[k, h], h < k      the share of h in k's heads at that time; of a single root, up[k, 0] is its arc to k

and slopes are written twice, as slope[h, m] and as turned[m, h]: so a lane adds up the numbers of its node in
registers, and a step waits for others once, at its end. Names with `d_` are derivatives along a tangent, in the table
behind.
"""

import triton
import triton.language as tl

from structmax.structures.spanning_tree.kernel_triton.search import usable_arcs

# A word whose heads among the words weigh less has none; the reason is in ../README.md.
LONELY = tl.constexpr(1e-290)
# With columns that sum to 1, a log Z above this is exact in linear numbers; the reason is in ../README.md.
SMALLEST_LOG = tl.constexpr(-500.0)


@triton.jit
def product(p_factor, stride, p_table, size, first, last, m_lane, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Σ over rows first ≤ i < last of factor[i] table[i, lane] in the lanes of the mask, 0 elsewhere: (1, BLOCK)."""
    o_lane = tl.arange(0, BLOCK)[None, :]
    b_sum = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(first, last, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        m_row = o_row < last
        factor = tl.load(p_factor + o_row * stride, mask=m_row, other=0.0)
        b_sum += factor * tl.load(p_table + o_row * size + o_lane, mask=m_row & m_lane, other=0.0)
    return tl.sum(b_sum, 0, keep_dims=True)


@triton.jit
def positive(x):
    """1 in place of 0."""
    return tl.where(x > 0, x, 1.0)


@triton.jit
def weigh(
    p_arc, p_extra, p_tangent, p_weight, size, n, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Fills the weights of arcs, scaled such that those into a word sum to 1.

    Returns the logarithm of the scale in two parts, of which the first may be large: −inf for want of heads, NaN where
    a score is NaN or +inf. Before it how many words there are to count, behind it a bound for the difference of two
    trees' tangents.
    """
    o_node = tl.arange(0, BLOCK)[None, :]
    m_word = (o_node > 0) & (o_node <= n)
    b_peak = tl.full((ROWS, BLOCK), float("-inf"), tl.float64)
    b_broken = tl.zeros((ROWS, BLOCK), tl.int32)
    for start in range(0, n + 1, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        m_arc = usable_arcs(o_head, o_node, n)
        b_arc = tl.load(p_arc + o_head * size + o_node, mask=m_arc, other=float("-inf")).to(tl.float64)
        b_broken |= tl.where(b_arc < float("inf"), 0, 1)
        b_peak = tl.maximum(b_peak, b_arc)
    peak = tl.max(b_peak, 0, keep_dims=True)
    lost = tl.sum(tl.where(m_word, peak, 0.0))
    lost = tl.where(tl.max(tl.max(b_broken, 1), 0) > 0, float("nan"), lost)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    # Nothing is asked of scores without a tree.
    n = tl.where(lost > float("-inf"), n, 0)
    b_total = tl.zeros((ROWS, BLOCK), tl.float64)
    b_steep = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n + 1, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        o_arc = o_head * size + o_node
        m_arc = usable_arcs(o_head, o_node, n)
        b_log = tl.load(p_arc + o_arc, mask=m_arc, other=float("-inf")).to(tl.float64) - peak
        if p_extra is not None:
            b_log += tl.load(p_extra + o_arc, mask=m_arc, other=0.0)
        b_weight = tl.where(m_arc, tl.exp(b_log), 0.0)
        b_total += b_weight
        tl.store(p_weight + o_arc, b_weight, mask=(o_head <= n) & (o_node <= n))
        if ALONG:
            b_tangent = tl.load(p_tangent + o_arc, mask=m_arc & (b_weight > 0), other=0.0)
            b_steep = tl.maximum(b_steep, tl.abs(b_tangent))
    total = positive(tl.sum(b_total, 0, keep_dims=True))
    tl.debug_barrier()
    for start in range(0, n + 1, ROWS):
        o_head = start + tl.arange(0, ROWS)[:, None]
        o_arc = o_head * size + o_node
        m_table = (o_head <= n) & (o_node <= n)
        b_weight = tl.load(p_weight + o_arc, mask=m_table, other=0.0)
        tl.store(p_weight + o_arc, b_weight / total, mask=m_table)
    return n, lost, tl.sum(tl.log(total)), 2 * tl.sum(tl.max(b_steep, 0))


@triton.jit
def along(p_weight, p_tangent, offset, mask):
    """The derivative of a weight. An arc that cannot be has no say."""
    b_weight = tl.load(p_weight + offset, mask=mask, other=0.0)
    return b_weight * tl.load(p_tangent + offset, mask=mask & (b_weight > 0), other=0.0)


@triton.jit
def eliminate(
    p_weight, p_tangent, p_down, p_up, p_pivot, p_whole, p_d_pivot, size, tables, n,
    SINGLE_ROOT: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fills the plan, pivots, which are the weights of k's heads among what is left, and the factors of Z."""
    FIRST: tl.constexpr = 1 if SINGLE_ROOT else 0
    p_d_down, p_d_up = p_down + tables, p_up + tables
    o_node = tl.arange(0, BLOCK)[None, :]
    m_word = (o_node > 0) & (o_node <= n)
    root, d_root = tl.zeros((1, BLOCK), tl.float64), tl.zeros((1, BLOCK), tl.float64)
    if SINGLE_ROOT:
        root = tl.load(p_weight + o_node, mask=m_word, other=0.0)
        if ALONG:
            d_root = along(p_weight, p_tangent, o_node, m_word)
    for i in range(n):
        k = n - i
        o_k = tl.zeros((1, 1), tl.int32) + k
        m_left, m_head = (o_node > 0) & (o_node < k), (o_node >= FIRST) & (o_node < k)
        row = tl.load(p_weight + k * size + o_node, mask=m_left, other=0.0)
        row += product(p_up + k, size, p_down, size, k + 1, n + 1, m_left, ROWS, BLOCK)
        column = tl.load(p_weight + o_node * size + k, mask=m_head, other=0.0)
        column += product(p_down + k, size, p_up, size, k + 1, n + 1, m_head, ROWS, BLOCK)
        pivot = tl.sum(column, 1, keep_dims=True)
        if SINGLE_ROOT:
            # A word without heads among the words can only hang on the root: any share will do, and word 1 gets all.
            pivot = tl.where(pivot < LONELY, 0.0, pivot)
            column = tl.where((pivot == 0) & (o_node > 0), tl.where(o_node == 1, 1.0, 0.0), column)
        share = column / positive(pivot)
        hangs_on = tl.sum(tl.where(o_node == k, root, 0.0), 1, keep_dims=True)
        whole = pivot + hangs_on
        if SINGLE_ROOT:
            share = tl.where(o_node == 0, hangs_on, share)
        tl.store(p_down + k * size + o_node, row, mask=o_node < k)
        tl.store(p_up + k * size + o_node, share, mask=o_node < k)
        tl.store(p_pivot + o_k, pivot)
        tl.store(p_whole + o_k, whole)
        if ALONG:
            d_row = along(p_weight, p_tangent, k * size + o_node, m_left)
            d_row += product(p_d_up + k, size, p_down, size, k + 1, n + 1, m_left, ROWS, BLOCK)
            d_row += product(p_up + k, size, p_d_down, size, k + 1, n + 1, m_left, ROWS, BLOCK)
            d_column = along(p_weight, p_tangent, o_node * size + k, m_head)
            d_column += product(p_d_down + k, size, p_up, size, k + 1, n + 1, m_head, ROWS, BLOCK)
            d_column += product(p_down + k, size, p_d_up, size, k + 1, n + 1, m_head, ROWS, BLOCK)
            d_pivot = tl.where(pivot > 0, tl.sum(d_column, 1, keep_dims=True), 0.0)
            d_share = tl.where(pivot > 0, (d_column - share * d_pivot) / positive(pivot), 0.0)
            if SINGLE_ROOT:
                d_hangs_on = tl.sum(tl.where(o_node == k, d_root, 0.0), 1, keep_dims=True)
                d_share = tl.where(o_node == 0, d_hangs_on, d_share)
                hangs, stays = hangs_on / positive(whole), pivot / positive(whole)
                d_hangs = (stays * d_hangs_on - hangs * d_pivot) / positive(whole)
                d_root = stays * d_root + hangs * d_row + d_hangs * (row - root)
            tl.store(p_d_down + k * size + o_node, d_row, mask=o_node < k)
            tl.store(p_d_up + k * size + o_node, d_share, mask=o_node < k)
            tl.store(p_d_pivot + o_k, d_pivot)
        if SINGLE_ROOT:
            # The root's row is a mean of its own arcs and those of k.
            root = (pivot * root + hangs_on * row) / positive(whole)
        tl.debug_barrier()


@triton.jit
def pull(
    p_down, p_up, p_slope, p_turned, p_pivot, p_whole, p_d_pivot, size, tables, n, bound,
    SINGLE_ROOT: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fills the slopes of log Z by weights, after `eliminate`: words come back in the order 1, 2, … n."""
    FIRST: tl.constexpr = 1 if SINGLE_ROOT else 0
    p_d_down, p_d_up, p_d_slope, p_d_turned = p_down + tables, p_up + tables, p_slope + tables, p_turned + tables
    o_node = tl.arange(0, BLOCK)[None, :]
    root, d_root = tl.zeros((1, BLOCK), tl.float64), tl.zeros((1, BLOCK), tl.float64)
    # No slope exceeds n / Z, where that of a forbidden arc should be 0 rounding has no bound.
    ceiling = tl.zeros((1, 1), tl.float64) + n
    for k in range(1, n + 1):
        o_k = tl.zeros((1, 1), tl.int32) + k
        o_row, o_column = k * size + o_node, o_node * size + k
        m_left, m_head = (o_node > 0) & (o_node < k), (o_node >= FIRST) & (o_node < k)
        pivot, whole = tl.load(p_pivot + o_k), tl.load(p_whole + o_k)
        share = tl.load(p_up + o_row, mask=m_head, other=0.0)
        through = product(p_down + k * size, 1, p_turned, size, 1, k, m_head, ROWS, BLOCK)
        out = product(p_up + k * size, 1, p_slope, size, FIRST, k, m_left, ROWS, BLOCK)
        # How likely k has a head among what is left, less how many paths go through k
        likely = 1 - tl.sum(share * through, 1, keep_dims=True)
        ceiling /= whole
        d_out, d_likely = out, likely
        if ALONG:
            d_share = tl.load(p_d_up + o_row, mask=m_head, other=0.0)
            d_through = product(p_d_down + k * size, 1, p_turned, size, 1, k, m_head, ROWS, BLOCK)
            d_through += product(p_down + k * size, 1, p_d_turned, size, 1, k, m_head, ROWS, BLOCK)
            d_out = product(p_d_up + k * size, 1, p_slope, size, FIRST, k, m_left, ROWS, BLOCK)
            d_out += product(p_up + k * size, 1, p_d_slope, size, FIRST, k, m_left, ROWS, BLOCK)
            d_likely = -tl.sum(share * d_through + d_share * through, 1, keep_dims=True)
        if SINGLE_ROOT:
            row = tl.load(p_down + o_row, mask=m_left, other=0.0)
            hangs, stays = tl.load(p_up + k * size + o_k * 0) / whole, pivot / whole
            below_root = tl.where(o_k == 1, 1.0, tl.sum(root * row, 1, keep_dims=True))
            out += hangs * root
            likely -= hangs * below_root
            if ALONG:
                d_pivot, d_row = tl.load(p_d_pivot + o_k), tl.load(p_d_down + o_row, mask=m_left, other=0.0)
                d_hangs_on = tl.load(p_d_up + k * size + o_k * 0)
                d_hangs = (stays * d_hangs_on - hangs * d_pivot) / whole
                d_below_root = tl.sum(root * d_row + d_root * row, 1, keep_dims=True)
                d_out += hangs * d_root + d_hangs * root
                d_likely -= hangs * d_below_root + d_hangs * below_root
                d_new = (d_below_root - below_root / whole * (d_pivot + d_hangs_on)) / whole
                d_root = tl.where(o_node == k, d_new, stays * d_root - d_hangs * root)
            root = tl.where(o_node == k, below_root / whole, stays * root)
        m_some = m_head & (pivot > 0)
        column = tl.where(m_some, tl.minimum(ceiling, tl.maximum(likely + through, 0.0) / positive(pivot)), 0.0)
        # What is not there is 0, also on the diagonal.
        m_row, m_column = o_node <= k, o_node < k
        tl.store(p_slope + o_row, out, mask=m_row)
        tl.store(p_turned + o_row, column, mask=m_row)
        tl.store(p_slope + o_column, column, mask=m_column)
        tl.store(p_turned + o_column, out, mask=m_column)
        if ALONG:
            d_column = (d_likely + d_through - column * tl.load(p_d_pivot + o_k)) / positive(pivot)
            limit = ceiling * bound
            d_column = tl.where(m_some, tl.maximum(-limit, tl.minimum(limit, d_column)), 0.0)
            tl.store(p_d_slope + o_row, d_out, mask=m_row)
            tl.store(p_d_turned + o_row, d_column, mask=m_row)
            tl.store(p_d_slope + o_column, d_column, mask=m_column)
            tl.store(p_d_turned + o_column, d_out, mask=m_column)
        tl.debug_barrier()
    if SINGLE_ROOT:
        m_word = (o_node > 0) & (o_node <= n)
        tl.store(p_slope + o_node, root, mask=m_word)
        if ALONG:
            tl.store(p_d_slope + o_node, d_root, mask=m_word)


@triton.jit(do_not_specialize=["size", "tables", "lines"])
def linear_sums(
    p_arc, p_extra, p_tangent, p_lengths, p_tables, p_lines, p_value, p_left, p_mu, p_d_mu, size, tables, lines,
    SINGLE_ROOT: tl.constexpr, PARTS: tl.constexpr, ALONG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """log Z, and marginals and their derivatives if wanted; whether logarithms have to answer instead.

    `tables` and `lines` are how far one of all instances is behind another. `extra` is what an arc's other labels add
    to the score of its best one.
    """
    DEPTH: tl.constexpr = 2 if ALONG else 1
    i_instance = tl.program_id(0).to(tl.int64)
    tables, lines = tables.to(tl.int64), lines.to(tl.int64)
    every = tl.load(p_lengths + i_instance).to(tl.int32)
    o_first = i_instance * size * size
    p_arc += o_first
    if p_extra is not None:
        p_extra += o_first
    if ALONG:
        p_tangent += o_first
    p_weight = p_tables + o_first
    p_down = p_weight + tables
    p_up = p_down + DEPTH * tables
    p_slope = p_up + DEPTH * tables
    p_turned = p_slope + DEPTH * tables
    p_pivot = p_lines + i_instance * size
    p_whole = p_pivot + lines
    p_d_pivot = p_whole + lines
    n, lost, logs, bound = weigh(p_arc, p_extra, p_tangent, p_weight, size, every, ALONG, ROWS, BLOCK)
    tl.debug_barrier()
    eliminate(
        p_weight, p_tangent, p_down, p_up, p_pivot, p_whole, p_d_pivot, size, tables, n,
        SINGLE_ROOT, ALONG, ROWS, BLOCK,
    )  # fmt: skip
    o_node = tl.arange(0, BLOCK)[None, :]
    found = tl.sum(tl.log(tl.load(p_whole + o_node, mask=(o_node > 0) & (o_node <= n), other=1.0)))
    # NaN is left too: it comes from a quotient of two zeros, as scores are sound.
    left = (n > 0) & ((found > SMALLEST_LOG) == 0)
    value = (lost + (logs + found)).to(p_value.dtype.element_ty)
    tl.store(p_value + i_instance, value)
    tl.store(p_left + i_instance, left.to(tl.int32))
    if PARTS:
        # A sum of finite scores may be −inf in their dtype.
        n = tl.where(left | ((value > float("-inf")) == 0), 0, n)
        pull(
            p_down, p_up, p_slope, p_turned, p_pivot, p_whole, p_d_pivot, size, tables, n, bound,
            SINGLE_ROOT, ALONG, ROWS, BLOCK,
        )  # fmt: skip
        tl.debug_barrier()
        nothing = tl.where(value == value, 0.0, float("nan"))
        for start in range(0, size, ROWS):
            o_head = start + tl.arange(0, ROWS)[:, None]
            o_arc = o_head * size + o_node
            m_arc, m_out = usable_arcs(o_head, o_node, every), (o_head < size) & (o_node < size)
            m_real = usable_arcs(o_head, o_node, n)
            b_weight = tl.load(p_weight + o_arc, mask=m_real, other=0.0)
            b_slope = tl.load(p_slope + o_arc, mask=m_real, other=0.0)
            b_nothing = tl.where(m_arc, nothing, 0.0)
            b_mu = tl.where(m_real, b_weight * b_slope, b_nothing)
            tl.store(p_mu + o_first + o_arc, b_mu.to(p_mu.dtype.element_ty), mask=m_out)
            if ALONG:
                m_real &= b_weight > 0
                b_d = b_weight * tl.load(p_slope + tables + o_arc, mask=m_real, other=0.0)
                b_d += b_mu * tl.load(p_tangent + o_arc, mask=m_real, other=0.0)
                b_d = tl.where(m_real, b_d, b_nothing).to(p_d_mu.dtype.element_ty)
                tl.store(p_d_mu + o_first + o_arc, b_d, mask=m_out)
