"""Parses of a grammar in Triton, in log space with charts of float64. Derivations: ../README.md.

Scores are terms (B, N, T), rules (B, K, S, S), roots (B, K) and spans (B, N, N, K), with S = K + T. Each width is two
launches on the way up and three on the way down. Memory is that of the chart and of the pairs of one width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.sizes import power_of_two, work_dtype
from structmax.structures.pcfg.kernel_triton.chart import (
    PAIR_TABLES,
    PAIR_TABLES_ALONG,
    RULE_TABLES,
    RULE_TABLES_ALONG,
    apply_rules,
    share_rules,
    sum_pairs,
    to_children,
)
from structmax.structures.pcfg.kernel_triton.parts import check_scores, finish, write_parts
from structmax.structures.pcfg.kernel_triton.walks import walk

# Symbols that a tile has columns for, and words that a walk keeps an entry for.
MOST_SYMBOLS, MOST_WORDS = 2048, 4096


def refuses(name: str, tensors: list[Tensor], fields: dict[str, float]) -> str | None:
    """Why these kernels cannot answer, or None."""
    if tensors[1].shape[3] > MOST_SYMBOLS:
        return f"a program ends at {MOST_SYMBOLS} symbols"
    return f"a program ends at {MOST_WORDS} words" if tensors[0].shape[1] > MOST_WORDS else None


class _Tile(NamedTuple):
    """Tiles of pairs, (left, right) of symbols; and of rules, (nonterminals, spans, pairs)."""

    left: int
    right: int
    rules: int
    spans: int
    pairs: int

    @classmethod
    def of(cls, N: int, K: int, S: int) -> "_Tile":
        side = min(32, power_of_two(S))
        return cls(side, side, min(8, power_of_two(K)), min(8, power_of_two(N)), min(32, power_of_two(S * S)))


class _Chart(NamedTuple):
    """The chart (B, N, N, S) by width, its sums over rules, and pairs of one width; with their tangents, if any."""

    cells: Tensor
    sums: Tensor
    pairs: Tensor
    value: Tensor

    @property
    def strides(self) -> tuple[int, int, int]:
        """From a table to the next: of cells, pairs and sums."""
        return self.cells[0].numel(), self.pairs[0].numel(), self.sums[0].numel()


def _new_chart(terms: Tensor, d_terms: Tensor | None, lengths: Tensor, K: int) -> _Chart:
    """Filled for single words."""
    B, N, T = terms.shape
    S, along = K + T, d_terms is not None
    padding = torch.arange(N, device=terms.device)[:, None] >= lengths[:, None, None]
    cells = terms.new_full((1 + along, B, N, N, S), -torch.inf, dtype=torch.float64)
    cells[0, :, 0, :, K:] = terms.masked_fill(padding, -torch.inf)
    if d_terms is not None:
        cells[1].zero_()
        cells[1, :, 0, :, K:] = d_terms.masked_fill(padding | (terms == -torch.inf), 0.0)
    sums = cells.new_empty(RULE_TABLES_ALONG if along else RULE_TABLES, B, N, N, K)
    pairs = cells.new_empty(PAIR_TABLES_ALONG if along else PAIR_TABLES, B, N, S * S)
    return _Chart(cells, sums, pairs, terms.new_empty(B))


def _sum_pairs(chart: _Chart, lengths: Tensor, w: int, tile: _Tile, best: bool, along: bool) -> None:
    _, B, N, _, S = chart.cells.shape
    arguments = chart.cells, chart.pairs, lengths, w, N, S, *chart.strides[:2]
    grid = (B, N - w, -(-S // tile.left))
    launch(sum_pairs, grid, arguments, (work_dtype(chart.value), best, along, tile.left, tile.right))


def _fill(
    scores: tuple[Tensor, ...], tangent: tuple[Tensor, ...] | None, lengths: Tensor, best: bool, mu: Tensor | None
) -> _Chart:
    """The chart and the value; `mu` receives what reaches the nonterminals over the whole."""
    terms, rules, roots, spans = scores
    d_terms, d_rules, d_roots, d_spans = tangent or (None,) * 4
    (B, N, T), K = terms.shape, roots.shape[1]
    S, along = K + T, tangent is not None
    chart, tile = _new_chart(terms, d_terms, lengths, K), _Tile.of(N, K, S)
    for w in range(1, N):
        _sum_pairs(chart, lengths, w, tile, best, along)
        tensors = chart.cells, chart.pairs, chart.sums, rules, spans, d_rules, d_spans, lengths
        grid = (B, -(-(N - w) // tile.spans), -(-K // tile.rules))
        constants = work_dtype(rules), best, along, tile.rules, tile.spans, tile.pairs
        launch(apply_rules, grid, (*tensors, w, N, K, S, *chart.strides), constants)
    sound = terms.new_empty(B, K)
    launch(check_scores, (B, K), (terms, rules, roots, spans, lengths, sound, N, K, T), (1024,))
    arguments = chart.cells, roots, d_roots, sound, lengths, chart.value, mu, N, K, S, chart.strides[0]
    launch(finish, (B,), arguments, (best, mu is not None, along, power_of_two(K)), 1)
    return chart


def _write(
    mu: Tensor | None, counts: Tensor | None, chart: _Chart, lengths: Tensor, parts: tuple[Tensor, ...], draws: int
) -> None:
    _, B, N, _, S = chart.cells.shape
    K = chart.sums.shape[-1]
    arguments = mu if mu is not None else chart.cells, counts, chart.value, lengths, *parts, N, K, S - K, draws
    launch(write_parts, (B * draws, N + K), arguments, (mu is None, min(1024, power_of_two(max(N * K, S * S)))))


def _collect(scores: tuple[Tensor, ...], tangent: tuple[Tensor, ...] | None, lengths: Tensor) -> tuple[Tensor, ...]:
    """The value, and marginals of all parts, or their derivative along a tangent."""
    (B, N, T), rules, K = scores[0].shape, scores[1], scores[2].shape[1]
    S, along = K + T, tangent is not None
    mu, counts = (rules.new_zeros(1 + along, *shape, dtype=torch.float64) for shape in ((B, N, N, S), rules.shape))
    chart, tile = _fill(scores, tangent, lengths, False, mu), _Tile.of(N, K, S)
    cells, pairs, sums = chart.strides
    for w in range(N - 1, 0, -1):
        _sum_pairs(chart, lengths, w, tile, False, along)
        tensors = mu, chart.pairs, chart.sums, rules, tangent[1] if tangent else None, counts, lengths
        numbers = w, N, K, S, cells, pairs, sums, rules.numel()
        constants = work_dtype(rules), along, tile.rules, tile.spans, tile.pairs
        launch(share_rules, (B, -(-S * S // tile.pairs)), (*tensors, *numbers), constants)
        grid = (B, N, w * -(-S // tile.left))
        arguments = chart.cells, mu, chart.pairs, lengths, w, N, S, cells, pairs
        launch(to_children, grid, arguments, (work_dtype(rules), along, tile.left, tile.right))
    parts = tuple(torch.empty_like(t) for t in scores)
    _write(mu[-1], counts[-1], chart, lengths, parts, 1)
    return chart.value, *parts


def _walk(scores: tuple[Tensor, ...], noise: Tensor | None, lengths: Tensor, parts: tuple[Tensor, ...], D: int) -> None:
    """D parses of each sentence, the best where there is no noise."""
    terms, rules, roots, _ = scores
    (B, N, T), K = terms.shape, roots.shape[1]
    S = K + T
    chart = _fill(scores, None, lengths, noise is None, None)
    _write(None, None, chart, lengths, parts, D)
    weights = chart.cells.new_empty(B * D, S * S + S)
    tensors = chart.cells, rules, roots, chart.value, noise, lengths, weights, *parts
    symbols = power_of_two(S)
    constants = work_dtype(rules), noise is not None, max(1, min(symbols, 2048 // symbols)), symbols, power_of_two(N)
    launch(walk, (B * D,), (*tensors, D, N, K, T, 0 if noise is None else noise.shape[2]), constants)


def log_partition(terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over parses of exp(score): (B,)."""
    return _fill((terms, rules, roots, spans), None, lengths, False, None).value


def log_partition_and_marginals(
    terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor
) -> tuple[Tensor, ...]:
    """The value (B,), and the expected number of uses of each part."""
    return _collect((terms, rules, roots, spans), None, lengths)


def marginals_jvp(
    terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor,
    d_terms: Tensor, d_rules: Tensor, d_roots: Tensor, d_spans: Tensor, lengths: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The derivative of the marginals along a tangent."""
    return _collect((terms, rules, roots, spans), (d_terms, d_rules, d_roots, d_spans), lengths)[1:]


def argmax(terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """The parts of a best parse; among equals the first root, pair of symbols and split."""
    scores = terms, rules, roots, spans
    parts = tuple(torch.empty_like(t) for t in scores)
    _walk(scores, None, lengths, parts, 1)
    return parts


def sample(
    terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, noise: Tensor, lengths: Tensor
) -> tuple[Tensor, ...]:
    """The parts of D parses: (B, D, …)."""
    scores = terms, rules, roots, spans
    parts = tuple(t.new_empty(len(t), noise.shape[1], *t.shape[1:]) for t in scores)
    _walk(scores, noise, lengths, parts, noise.shape[1])
    return parts
