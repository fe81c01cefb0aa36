"""A linear layer of few inputs with its log loss in Triton: each score is made where it is read, and none is written.

A score is a sum of few products, so that making it takes less time than reading it from memory would. Forward, a
program has some rows and goes over the words; backward it has all words and goes over tiles of rows, and what it sums
for weights and biases is added up over programs at the end, always in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch

# Rows of a tile forward and backward, and the words that are read together.
ROWS, PULLED, WORDS = 32, 16, 256
# Programs with which a GPU is busy.
PROGRAMS = 512


@triton.jit
def _scores(p_hidden, p_weight, p_bias, o_row, o_word, rows, n, D: tl.constexpr):
    """Scores of rows (ROWS, 1) and words (1, WORDS), −inf past the last word. Weights are (D, n)."""
    m_row, m_word = o_row < rows, o_word < n
    b_x = tl.load(p_bias + o_word, mask=m_word, other=float("-inf")) + tl.zeros(o_row.shape, tl.float32)
    for i in tl.static_range(D):
        b_hidden = tl.load(p_hidden + o_row * D + i, mask=m_row, other=0.0)
        b_weight = tl.load(p_weight + i * n + o_word, mask=m_word, other=0.0)
        b_x += b_hidden * b_weight
    return b_x


@triton.jit
def lose(
    p_hidden, p_weight, p_bias, p_target, p_loss, p_peak, p_mass, rows, n, tiles, ignored,
    D: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The loss of each row, the largest of its scores x, and log Σ exp(x − largest)."""
    i_layer = (tl.program_id(0) // tiles).to(tl.int64)
    o_row = (tl.program_id(0) % tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    m_row, o_lane = o_row < rows, tl.arange(0, WORDS)[None, :]
    p_hidden += i_layer * rows * D
    p_weight += i_layer * n * D
    p_bias += i_layer * n
    o_out = i_layer * rows + o_row
    target = tl.load(p_target + o_out, mask=m_row, other=ignored)
    peak = tl.full((ROWS, 1), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS, 1), tl.float32)
    chosen = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, n, WORDS):
        b_x = _scores(p_hidden, p_weight, p_bias, o_row, start + o_lane, rows, n, D)
        chosen += tl.sum(tl.where(start + o_lane == target, b_x, 0.0), 1, keep_dims=True)
        higher = tl.maximum(peak, tl.max(b_x, 1, keep_dims=True))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        mass = mass * tl.exp(peak - base) + tl.sum(tl.exp(b_x - base), 1, keep_dims=True)
        peak = higher
    # No host has looked at the targets: one that is no word costs NaN.
    chosen = tl.where((target >= 0) & (target < n), chosen, float("nan"))
    log_mass = tl.log(tl.where(mass == 0, 1.0, mass))
    # a NaN may not be the largest, but is in the sum
    peak = tl.where(mass == mass, peak, mass)
    loss = tl.where(peak == float("-inf"), float("inf"), log_mass + (peak - chosen))
    tl.store(p_loss + o_out, tl.where(target == ignored, 0.0, loss), mask=m_row)
    tl.store(p_peak + o_out, peak, mask=m_row)
    tl.store(p_mass + o_out, log_mass, mask=m_row)


@triton.jit
def pull(
    p_hidden, p_weight, p_bias, p_target, p_peak, p_mass, p_d_loss, p_d_hidden, p_d_weight, p_d_bias,
    rows, n, tiles, programs, ignored,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Cotangents of the hidden states of every so many tiles of rows, and what these add to weights and biases."""
    i_layer, first = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(0) % programs
    o_word, o_feature = tl.arange(0, WORDS)[None, :], tl.arange(0, BLOCK_D)[None, :]
    m_word, m_feature = o_word < n, o_feature < D
    p_hidden += i_layer * rows * D
    p_d_hidden += i_layer * rows * D
    p_weight += i_layer * n * D
    p_bias += i_layer * n
    o_weight = tl.trans(o_feature) * n + o_word
    m_weight = tl.trans(m_feature) & m_word
    b_d_weight = tl.zeros((BLOCK_D, WORDS), tl.float32)
    b_d_bias = tl.zeros((1, WORDS), tl.float32)
    for tile in range(first, tiles, programs):
        o_row = tl.full((1, 1), ROWS, tl.int64) * tile + tl.arange(0, ROWS)[:, None]
        m_row, o_own = o_row < rows, i_layer * rows + o_row
        target = tl.load(p_target + o_own, mask=m_row, other=ignored)
        peak = tl.load(p_peak + o_own, mask=m_row, other=float("-inf"))
        d_loss = tl.load(p_d_loss + o_own, mask=m_row, other=0.0)
        counts = (target != ignored) & (d_loss != 0) & (peak != float("-inf"))
        b_x = _scores(p_hidden, p_weight, p_bias, o_row, o_word, rows, n, D)
        b_p = tl.exp(b_x - peak - tl.load(p_mass + o_own, mask=m_row, other=0.0))
        b_d_x = tl.where(counts & m_word, d_loss * (b_p - tl.where(o_word == target, 1.0, 0.0)), 0.0)
        for i in tl.static_range(D):
            b_weight = tl.load(p_weight + i * n + o_word, mask=m_word, other=0.0)
            tl.store(p_d_hidden + o_row * D + i, tl.sum(b_d_x * b_weight, 1, keep_dims=True), mask=m_row)
        # a row that does not count may hold anything
        b_hidden = tl.load(p_hidden + o_row * D + o_feature, mask=m_row & m_feature & counts, other=0.0)
        b_d_weight = tl.dot(tl.trans(b_hidden), b_d_x, b_d_weight, input_precision="tf32x3")
        b_d_bias += tl.sum(b_d_x, 0, keep_dims=True)
    i_part = tl.program_id(0).to(tl.int64)
    tl.store(p_d_weight + i_part * n * D + o_weight, b_d_weight, mask=m_weight)
    tl.store(p_d_bias + i_part * n + o_word, b_d_bias, mask=m_word)


def layer_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, ignored: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As in reference.py, in float32."""
    (B, _, D), n = hidden.shape, weight.shape[1]
    found = hidden.new_empty(3, B, rows)
    words, tiles = min(WORDS, triton.next_power_of_2(n)), -(-rows // ROWS)
    arguments = hidden, weight.mT.contiguous(), bias, target, *found.unbind(), rows, n, tiles, ignored
    launch(lose, (B * tiles,), arguments, (D, ROWS, words))
    loss, peak, log_mass = found
    return loss, peak, log_mass


def layer_loss_pullback(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, peak: Tensor, log_mass: Tensor, d_loss: Tensor,
    ignored: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As in reference.py, in float32. A program holds all words: more than a few hundred are too many."""
    (B, rows, D), n = hidden.shape, weight.shape[1]
    tiles = -(-rows // PULLED)
    programs = max(1, min(PROGRAMS, tiles))
    d_hidden = torch.empty_like(hidden)
    d_weight, d_bias = hidden.new_empty(B, programs, D, n), hidden.new_empty(B, programs, n)
    given = hidden, weight.mT.contiguous(), bias, target, peak, log_mass, d_loss
    block, words = max(16, triton.next_power_of_2(D)), triton.next_power_of_2(n)
    numbers = rows, n, tiles, programs, ignored
    launch(pull, (B * programs,), (*given, d_hidden, d_weight, d_bias, *numbers), (D, block, PULLED, words))
    return d_hidden, d_weight.sum(1).mT, d_bias.sum(1)
