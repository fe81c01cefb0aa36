"""Attention with weights of the Tsallis family in Triton. No score is kept, but which blocks have weights.

A program has a tile of queries and goes over the blocks of keys several times. The first time it keeps the largest
score of each lane, that is of the keys that have the same place in their blocks. Solved as if they were the rows, these
give a threshold τ that is a lower bound, and close. From there Newton's method goes over all blocks, and drops those
without a positive weight: τ only grows, so they stay without one. The last time weights are multiplied by the values.

The blocks that are left are what the backward pass reads. With s = p^(2−α) and U = Σ s v / Σ s, which is kept beside
the output, the cotangent of a score is s (⟨d_out, v⟩ − ⟨d_out, U⟩): see ../README.md.
"""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.tile import (
    MAX_STEPS,
    growth,
    last_step,
    levels,
    load_e,
    log2,
    masses,
    newton,
    rough_levels,
    solve,
    threshold,
)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _load_e(p_alpha, e, head, PER_HEAD: tl.constexpr):
    """α − 1 of a head: (1, 1). No host has looked at it: outside of 0 … 1 it costs NaN."""
    o_head = tl.full((1, 1), 0, tl.int64) + head
    e = load_e(p_alpha, e, o_head, o_head >= 0, PER_HEAD)
    return tl.where((e < 0) | (e > 1), float("nan"), e)


@triton.jit
def _load(p_rows, o_row, o_feature, rows, D: tl.constexpr):
    """Rows of D features, zeros past the last of either: (ROWS, BLOCK_D)."""
    return tl.load(p_rows + o_row * D + o_feature, mask=(o_row < rows) & (o_feature < D), other=0.0)


@triton.jit
def _scores(
    b_a, b_b, p_mask, o_query, o_key, Q, K, row_stride, key_stride, scale,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """scale · a b, −inf where the query may not read the key: queries by keys, or keys by queries, as offsets lie."""
    b_x = tl.dot(b_a, b_b, input_precision=PRECISION) * scale
    m_tile = (o_query < Q) & (o_key < K)
    allowed = m_tile
    if CAUSAL:
        allowed = allowed & (o_key <= o_query)
    if MASK != "none":
        b_mask = tl.load(p_mask + o_query.to(tl.int64) * row_stride + o_key * key_stride, mask=m_tile, other=0)
        if MASK == "bools":
            allowed = allowed & (b_mask != 0)
        else:
            b_x += b_mask.to(tl.float32)
    return tl.where(allowed, b_x, float("-inf"))


@triton.jit
def _tile_and_head(tiles):
    """The tile of this program and its head, of all instances. A grid is long in its first dimension alone."""
    return tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)


@triton.jit
def _place(i_head, heads, batch_stride, head_stride):
    """Where the mask of a head begins, of all heads of all instances."""
    return (i_head // heads).to(tl.int64) * batch_stride + (i_head % heads) * head_stride


@triton.jit
def attend(
    p_q, p_k, p_v, p_alpha, p_mask, p_out, p_mean, p_peak, p_tau, p_live, p_list,
    Q, K, heads, group, batch_stride, head_stride, row_stride, key_stride, scale, e: tl.float64,
    KIND: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
    DIGITS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Outputs, the means U, maxima and thresholds of a tile of queries, and which blocks of keys it reads."""
    tiles, blocks = tl.cdiv(Q, QUERIES), tl.cdiv(K, KEYS)
    i_tile, i_head = _tile_and_head(tiles)
    o_query = i_tile * QUERIES + tl.arange(0, QUERIES)[:, None]
    o_lane, o_feature = tl.arange(0, KEYS), tl.arange(0, BLOCK_D)[None, :]
    e = _load_e(p_alpha, e, i_head % heads, PER_HEAD)
    i_shared = i_head // group * K * D
    p_k += i_shared
    p_v += i_shared
    if MASK != "none":
        p_mask += _place(i_head, heads, batch_stride, head_stride)
    p_live += (i_head * tiles + i_tile) * blocks
    p_list += (i_head * tiles + i_tile) * blocks
    b_q = _load(p_q + i_head * Q * D, o_query, o_feature, Q, D)
    if CAUSAL:
        blocks = tl.minimum(blocks, tl.cdiv((i_tile + 1) * QUERIES, KEYS))

    b_top = tl.full((QUERIES, KEYS), float("-inf"), tl.float32)
    for block in range(blocks):
        o_key = block * KEYS + o_lane
        b_k = _load(p_k, o_key[:, None], o_feature, K, D)
        b_x = _scores(
            b_q, tl.trans(b_k), p_mask, o_query, o_key[None, :], Q, K, row_stride, key_stride, scale,
            CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        b_top = tl.maximum(b_top, b_x, propagate_nan=tl.PropagateNan.ALL)
    peak = tl.max(b_top, 1, keep_dims=True)
    base = tl.where(peak == float("-inf"), 0.0, peak)

    unknown = solve(b_top - base, e, KIND, tl.float32, DIGITS)
    moving = unknown == unknown
    small = last_step(e, DIGITS, tl.float32)
    steps = 0
    going = 1
    left = blocks
    while going > 0:
        level, error, factor = rough_levels(unknown, e, KIND, tl.float32)
        mass = tl.zeros((QUERIES, 1), tl.float32)
        slope = tl.zeros((QUERIES, 1), tl.float32)
        kept = 0
        for n in range(left):
            block = tl.where(steps == 0, n, tl.load(p_list + n, mask=steps > 0, other=0))
            o_key = block * KEYS + o_lane
            b_k = _load(p_k, o_key[:, None], o_feature, K, D)
            b_x = _scores(
                b_q, tl.trans(b_k), p_mask, o_query, o_key[None, :], Q, K, row_stride, key_stride, scale,
                CAUSAL, MASK, PRECISION,
            )  # fmt: skip
            b_p, b_s = masses(b_x - base, level, error, 1.0, e, KIND, False)
            mass += tl.sum(b_p, 1, keep_dims=True)
            slope += tl.sum(b_s, 1, keep_dims=True)
            # What is kept is never more than what was read. A NaN stays.
            tl.store(p_list + kept, block)
            kept += tl.max(tl.max(tl.where(b_p <= 0, 0, 1), 1), 0)
        if KIND == "general":
            mass, slope = factor * mass, factor * slope
        moved, step = newton(unknown, mass, slope, e, KIND)
        unknown = tl.where(moving, moved, unknown)
        moving = moving & (step > small)
        left = kept
        steps += 1
        going = tl.where(steps < MAX_STEPS, tl.max(tl.max(moving.to(tl.int32), 1), 0), 0)
        # The list that one thread wrote, all of them read.
        tl.debug_barrier()

    rounded, error, factor = levels(unknown, e, KIND, tl.float32)
    b_out = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    b_mean = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    mass = tl.zeros((QUERIES, 1), tl.float32)
    slope = tl.zeros((QUERIES, 1), tl.float32)
    for n in range(left):
        block = tl.load(p_list + n)
        o_key = block * KEYS + o_lane
        b_k = _load(p_k, o_key[:, None], o_feature, K, D)
        b_x = _scores(
            b_q, tl.trans(b_k), p_mask, o_query, o_key[None, :], Q, K, row_stride, key_stride, scale,
            CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        b_p, b_s = masses(b_x - base, rounded, error, factor, e, KIND, True)
        b_v = _load(p_v, o_key[:, None], o_feature, K, D)
        b_out = tl.dot(b_p.to(b_v.dtype), b_v, b_out, input_precision=PRECISION)
        b_mean = tl.dot(b_s.to(b_v.dtype), b_v, b_mean, input_precision=PRECISION)
        mass += tl.sum(b_p, 1, keep_dims=True)
        slope += tl.sum(b_s, 1, keep_dims=True)
        tl.store(p_live + block, 1)
    m_tile = (o_query < Q) & (o_feature < D)
    o_tile = i_head * Q * D + o_query * D + o_feature
    tl.store(p_out + o_tile, b_out / tl.where(mass == 0, 1.0, mass), mask=m_tile)
    tl.store(p_mean + o_tile, b_mean / tl.where(slope == 0, 1.0, slope), mask=m_tile)
    tl.store(p_peak + i_head * Q + o_query, base, mask=o_query < Q)
    tl.store(p_tau + i_head * Q + o_query, threshold(unknown, e, KIND), mask=o_query < Q)


@triton.jit
def list_live(p_live, p_list, p_count, length, inner, outer_stride, row_stride, column_stride, BLOCK: tl.constexpr):
    """The numbers of the columns that a row of the map has, one after the other, and how many they are."""
    i_row = tl.program_id(0).to(tl.int64)
    o_column = tl.arange(0, BLOCK)
    p_live += i_row // inner * outer_stride + i_row % inner * row_stride
    b_live = tl.load(p_live + o_column * column_stride, mask=o_column < length, other=0).to(tl.int32)
    tl.store(p_list + i_row * length + tl.cumsum(b_live, 0) - b_live, o_column, mask=b_live > 0)
    tl.store(p_count + i_row, tl.sum(b_live, 0))


@triton.jit
def _unknown(tau, e, KIND: tl.constexpr):
    """The inverse of `threshold`, and p̂^(1−α), by which `masses` scales p^(2−α) where α is general."""
    if KIND == "general":
        return -growth(tau, e), (1 / (1 - e * tau)).to(tl.float32)
    else:
        return 1 - e * tau, 1.0


@triton.jit
def _store_row(p_row, o_row, total, m_row, base, level, error, factor, scaling, delta, KIND: tl.constexpr):
    """What `pull_keys` needs of a query: six numbers, or four."""
    tl.store(p_row + o_row, base, mask=m_row)
    tl.store(p_row + total + o_row, level, mask=m_row)
    tl.store(p_row + 2 * total + o_row, error, mask=m_row)
    tl.store(p_row + 3 * total + o_row, delta, mask=m_row)
    if KIND == "general":
        tl.store(p_row + 4 * total + o_row, factor, mask=m_row)
        tl.store(p_row + 5 * total + o_row, scaling, mask=m_row)


@triton.jit
def _load_row(p_row, o_row, total, m_row, KIND: tl.constexpr):
    base = tl.load(p_row + o_row, mask=m_row, other=0.0)
    level = tl.load(p_row + total + o_row, mask=m_row, other=0.0)
    error = tl.load(p_row + 2 * total + o_row, mask=m_row, other=0.0)
    delta = tl.load(p_row + 3 * total + o_row, mask=m_row, other=0.0)
    if KIND == "general":
        factor = tl.load(p_row + 4 * total + o_row, mask=m_row, other=0.0)
        scaling = tl.load(p_row + 5 * total + o_row, mask=m_row, other=0.0)
        return base, level, error, delta, factor, scaling
    else:
        return base, level, error, delta, level, 1.0


@triton.jit
def _alpha_numerator(p, e):
    """p log²p ψ((α−1) log p) with ψ(y) = (1 − y − e^(−y)) / y², as in entmax_rules.py."""
    inside = p > 0
    p = tl.where(inside, p, 1.0)
    log_p = log2(p) * LN_2
    y = e.to(tl.float32) * log_p
    small = tl.abs(y) < 0.3
    series = -1 / 2 + y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y * (1 / 720 - y * (1 / 5040 - y * (1 / 40320))))))
    safe = tl.where(small, 1.0, y)
    psi = tl.where(small, series, (1 - safe - tl.exp(-safe)) / (safe * safe))
    return tl.where(inside, p * log_p * log_p * psi, 0.0)


@triton.jit
def pull_queries(
    p_q, p_k, p_v, p_alpha, p_mask, p_d_out, p_mean, p_peak, p_tau, p_list, p_count, p_d_q, p_row, p_d_alpha,
    Q, K, heads, group, batch_stride, head_stride, row_stride, key_stride, scale, e: tl.float64,
    KIND: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Cotangents of a tile of queries and of its α, and what `pull_keys` needs of it."""
    tiles = tl.cdiv(Q, QUERIES)
    i_tile, i_head = _tile_and_head(tiles)
    i_row = i_head * tiles + i_tile
    o_query = i_tile * QUERIES + tl.arange(0, QUERIES)[:, None]
    o_lane, o_feature = tl.arange(0, KEYS), tl.arange(0, BLOCK_D)[None, :]
    e = _load_e(p_alpha, e, i_head % heads, PER_HEAD)
    i_own, i_shared = i_head * Q * D, i_head // group * K * D
    p_k += i_shared
    p_v += i_shared
    if MASK != "none":
        p_mask += _place(i_head, heads, batch_stride, head_stride)
    b_q = _load(p_q + i_own, o_query, o_feature, Q, D)
    b_d_out = _load(p_d_out + i_own, o_query, o_feature, Q, D)
    b_mean = _load(p_mean + i_own, o_query, o_feature, Q, D)
    m_row = o_query < Q
    base = tl.load(p_peak + i_head * Q + o_query, mask=m_row, other=0.0).to(tl.float32)
    tau = tl.load(p_tau + i_head * Q + o_query, mask=m_row, other=0.0)
    unknown, scaling = _unknown(tau, e, KIND)
    level, error, factor = levels(unknown, e, KIND, tl.float32)
    delta = tl.sum(b_d_out.to(tl.float32) * b_mean.to(tl.float32), 1, keep_dims=True)
    total = (tl.num_programs(0) // tiles).to(tl.int64) * Q
    _store_row(p_row, i_head * Q + o_query, total, m_row, base, level, error, factor, scaling, delta, KIND)
    b_d_q = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    d_alpha = tl.zeros((QUERIES, 1), tl.float32)
    p_list += i_row * tl.cdiv(K, KEYS)
    for n in range(tl.load(p_count + i_row)):
        o_key = tl.load(p_list + n) * KEYS + o_lane
        b_k = _load(p_k, o_key[:, None], o_feature, K, D)
        b_x = _scores(
            b_q, tl.trans(b_k), p_mask, o_query, o_key[None, :], Q, K, row_stride, key_stride, scale,
            CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        b_p, b_s = masses(b_x - base, level, error, factor, e, KIND, True)
        b_v = _load(p_v, o_key[:, None], o_feature, K, D)
        b_centred = tl.dot(b_d_out, tl.trans(b_v), input_precision=PRECISION) - delta
        b_d_x = b_s * b_centred * scaling
        b_d_q = tl.dot(b_d_x.to(b_k.dtype), b_k, b_d_q, input_precision=PRECISION)
        if PER_HEAD:
            d_alpha += tl.sum(_alpha_numerator(b_p, e) * b_centred, 1, keep_dims=True)
    b_d_q *= scale
    tl.store(p_d_q + i_own + o_query * D + o_feature, b_d_q, mask=m_row & (o_feature < D))
    if PER_HEAD:
        tl.store(p_d_alpha + i_head * Q + o_query, d_alpha, mask=m_row)


@triton.jit
def pull_keys(
    p_q, p_k, p_v, p_alpha, p_mask, p_d_out, p_row, p_list, p_count, p_d_k, p_d_v,
    Q, K, heads, group, batch_stride, head_stride, row_stride, key_stride, scale, e: tl.float64,
    KIND: tl.constexpr, PER_HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Cotangents of a block of keys and of its values, summed over the heads that share them."""
    blocks = tl.cdiv(K, KEYS)
    i_block, i_shared = _tile_and_head(blocks)
    o_key = i_block * KEYS + tl.arange(0, KEYS)[:, None]
    o_lane, o_feature = tl.arange(0, QUERIES), tl.arange(0, BLOCK_D)[None, :]
    i_own = i_shared * K * D
    total = (tl.num_programs(0) // blocks).to(tl.int64) * group * Q
    b_k = _load(p_k + i_own, o_key, o_feature, K, D)
    b_v = _load(p_v + i_own, o_key, o_feature, K, D)
    b_d_k = tl.zeros((KEYS, BLOCK_D), tl.float32)
    b_d_v = tl.zeros((KEYS, BLOCK_D), tl.float32)
    for i_member in range(group):
        i_head = i_shared * group + i_member
        head_e = _load_e(p_alpha, e, i_head % heads, PER_HEAD)
        p_own_mask = p_mask
        if MASK != "none":
            p_own_mask = p_mask + _place(i_head, heads, batch_stride, head_stride)
        i_row = i_head * blocks + i_block
        for n in range(tl.load(p_count + i_row)):
            o_query = tl.load(p_list + i_row * tl.cdiv(Q, QUERIES) + n) * QUERIES + o_lane
            b_q = _load(p_q + i_head * Q * D, o_query[:, None], o_feature, Q, D)
            b_d_out = _load(p_d_out + i_head * Q * D, o_query[:, None], o_feature, Q, D)
            o_row = o_query[None, :]
            base, level, error, delta, factor, scaling = _load_row(p_row, i_head * Q + o_row, total, o_row < Q, KIND)
            b_x = _scores(
                b_k, tl.trans(b_q), p_own_mask, o_row, o_key, Q, K, row_stride, key_stride, scale,
                CAUSAL, MASK, PRECISION,
            )  # fmt: skip
            b_p, b_s = masses(b_x - base, level, error, factor, head_e, KIND, True)
            b_d_v = tl.dot(b_p.to(b_q.dtype), b_d_out, b_d_v, input_precision=PRECISION)
            b_d_p = tl.dot(b_v, tl.trans(b_d_out), input_precision=PRECISION)
            b_d_x = b_s * (b_d_p - delta) * scaling
            b_d_k = tl.dot(b_d_x.to(b_q.dtype), b_q, b_d_k, input_precision=PRECISION)
    o_tile = i_own + o_key * D + o_feature
    m_tile = (o_key < K) & (o_feature < D)
    tl.store(p_d_k + o_tile, b_d_k * scale, mask=m_tile)
    tl.store(p_d_v + o_tile, b_d_v, mask=m_tile)
