"""From a chart down to parses, the best or drawn ones: one walk to a program.

What is still to be derived are symbols over spans side by side, and the next is the leftmost: a walk keeps, for the
first word of each, where it ends and its symbol. That is depth first, left before right, without a stack. The pairs of
each span of the parse are summed again, in the program's own memory.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import above, drawn, first_best, log_of


@triton.jit
def _choose(b_score, uniform, DRAW: tl.constexpr, COLUMNS: tl.constexpr):
    """The first best of one row (1, COLUMNS), or one by chance: (1,)."""
    if DRAW:
        return drawn(b_score, uniform, COLUMNS)
    else:
        return first_best(b_score, COLUMNS)


@triton.jit
def _weigh_pairs(
    p_chart, p_rule, p_weights, i, w, N, S,
    WORK: tl.constexpr, DRAW: tl.constexpr, ROWS: tl.constexpr, SYMBOLS: tl.constexpr,
):  # fmt: skip
    """Stores rule + log Σ exp, or the best, over splits for each pair (S, S); behind them that for each left symbol."""
    o_right = tl.arange(0, SYMBOLS)
    m_right = o_right < S
    p_right = p_chart + ((w - 1) * N + i + 1) * S + o_right
    for start in range(0, S, ROWS):
        o_left = start + tl.arange(0, ROWS)
        m_left = o_left < S
        p_left = p_chart + i * S + o_left
        b_peak = tl.full((ROWS, SYMBOLS), float("-inf"), tl.float64)
        for t in range(0, w):
            b_left = tl.load(p_left + t * N * S, mask=m_left, other=float("-inf"))
            b_right = tl.load(p_right + t * (1 - N) * S, mask=m_right, other=float("-inf"))
            b_peak = tl.maximum(b_peak, b_left[:, None] + b_right[None, :])
        b_pair = b_peak
        if DRAW:
            b_total = tl.zeros((ROWS, SYMBOLS), WORK)
            for t in range(0, w):
                b_left = tl.load(p_left + t * N * S, mask=m_left, other=float("-inf"))
                b_right = tl.load(p_right + t * (1 - N) * S, mask=m_right, other=float("-inf"))
                b_total += tl.exp(((b_left[:, None] + b_right[None, :]) - above(b_peak)).to(WORK))
            b_pair = b_peak + log_of(b_total)
        o_pair = o_left[:, None] * S + o_right[None, :]
        m_pair = m_left[:, None] & m_right[None, :]
        b_rule = tl.load(p_rule + o_pair, mask=m_pair, other=float("-inf"))
        # Where no split allows a pair, its rule may hold anything.
        b_x = tl.where(b_pair == float("-inf"), float("-inf"), b_pair + b_rule)
        tl.store(p_weights + o_pair, b_x, mask=m_pair)
        b_best = tl.max(b_x, 1)
        if DRAW:
            b_best += log_of(tl.sum(tl.exp(b_x - above(b_best)[:, None]), 1))
        tl.store(p_weights + S * S + o_left, b_best, mask=m_left)


@triton.jit(do_not_specialize=["D", "N", "K", "T", "numbers"])
def walk(
    p_chart, p_rules, p_roots, p_value, p_noise, p_lengths, p_weights, p_d_terms, p_d_rules, p_d_roots, p_d_spans,
    D, N, K, T, numbers,
    WORK: tl.constexpr, DRAW: tl.constexpr, ROWS: tl.constexpr, SYMBOLS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Writes the parts of a parse into zeros. Instances without a value have none."""
    i_walk = tl.program_id(0).to(tl.int64)
    i_b = i_walk // D
    S = K + T
    o_word = tl.arange(0, WORDS)
    o_symbol = tl.arange(0, SYMBOLS)[None, :]
    value = tl.load(p_value + i_b)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    n = tl.where(value > float("-inf"), n, 0)
    p_chart += i_b * N * N * S
    p_rules += i_b * K * S * S
    p_d_rules += i_walk * K * S * S
    p_weights += i_walk * (S * S + S)
    if DRAW:
        p_noise += i_walk * numbers
    if n > 1:
        # the nonterminal over the whole
        b_cell = tl.load(p_chart + (n - 1) * N * S + o_symbol, mask=o_symbol < K, other=float("-inf"))
        b_root = tl.load(p_roots + i_b * K + o_symbol, mask=o_symbol < K, other=0.0)
        b_x = tl.where(b_cell == float("-inf"), float("-inf"), b_cell + b_root)
        spent = tl.where(K > 1, 1, 0)
        uniform = tl.zeros((1,), tl.float64)
        if DRAW:
            uniform += tl.load(p_noise, mask=K > 1, other=0.0)
        root = tl.max(_choose(b_x, uniform, DRAW, SYMBOLS), 0)
        tl.store(p_d_roots + i_walk * K + root, 1.0)
        # S · (one past the last word) + symbol, and 0 where nothing begins
        b_open = tl.where(o_word == 0, n * S + root, 0)
        for _ in range(0, 2 * n - 1):
            i = tl.min(tl.where(b_open > 0, o_word, WORDS), 0)
            entry = tl.sum(tl.where(o_word == i, b_open, 0), 0)
            end = entry // S
            symbol = entry % S
            w = end - 1 - i
            if w == 0:
                tl.store(p_d_terms + (i_walk * N + i) * T + symbol - K, 1.0)
                b_open = tl.where(o_word == i, 0, b_open)
            else:
                tl.store(p_d_spans + ((i_walk * N + i) * N + end - 1) * K + symbol, 1.0)
                _weigh_pairs(p_chart, p_rules + symbol * S * S, p_weights, i, w, N, S, WORK, DRAW, ROWS, SYMBOLS)
                tl.debug_barrier()
                # the left symbol, then the right one, by one number: what is left of it decides among the right ones
                b_left = tl.load(p_weights + S * S + o_symbol, mask=o_symbol < S, other=float("-inf"))
                m_choice = (w > 1) | (T > 1)
                if DRAW:
                    uniform = tl.zeros((1,), tl.float64)
                    uniform += tl.load(p_noise + spent, mask=m_choice, other=0.0)
                    spent += m_choice.to(tl.int32)
                left = tl.max(_choose(b_left, uniform, DRAW, SYMBOLS), 0)
                if DRAW:
                    b_mass = tl.exp(b_left - above(tl.max(b_left, 1, keep_dims=True)))
                    before = tl.sum(tl.where(o_symbol < left, b_mass, 0.0), 1)
                    own = tl.sum(tl.where(o_symbol == left, b_mass, 0.0), 1)
                    uniform = (uniform * tl.sum(b_mass, 1) - before) / own
                b_right = tl.load(p_weights + left * S + o_symbol, mask=o_symbol < S, other=float("-inf"))
                right = tl.max(_choose(b_right, uniform, DRAW, SYMBOLS), 0)
                o_rule = (symbol * S + left) * S + right
                tl.store(p_d_rules + o_rule, tl.load(p_d_rules + o_rule) + 1.0)
                # the split
                o_t = o_word[None, :]
                m_t = o_t < w
                p_first = p_chart + (o_t * N + i) * S + left
                p_second = p_chart + ((w - o_t - 1) * N + i + o_t + 1) * S + right
                b_score = tl.load(p_first, mask=m_t, other=float("-inf"))
                b_score += tl.load(p_second, mask=m_t, other=float("-inf"))
                m_choice = (left < K) & (right < K) & (w > 3)
                if DRAW:
                    uniform = tl.zeros((1,), tl.float64)
                    uniform += tl.load(p_noise + spent, mask=m_choice, other=0.0)
                    spent += m_choice.to(tl.int32)
                t = tl.max(_choose(b_score, uniform, DRAW, WORDS), 0)
                b_open = tl.where(o_word == i, (i + t + 1) * S + left, b_open)
                b_open = tl.where(o_word == i + t + 1, end * S + right, b_open)
            # The weights and the counts are read again by whichever thread needs them.
            tl.debug_barrier()
