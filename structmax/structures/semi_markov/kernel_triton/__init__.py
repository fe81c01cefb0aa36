"""The semi-Markov chain in Triton, in the log domain. Derivations: ../README.md.

A program walks over the positions of an instance: at each it takes the segments that end there in tiles of widths by
labels, then one matrix. Marginals are written for all positions at once, after a walk back of the masses. Segments and
matrices are read once by `log_partition` (one launch), three times by `log_partition_and_marginals` (four launches).
Memory beyond input and output: O(B N C).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.blanks import fill
from structmax.numerics.kernel_triton.searches import few_searches
from structmax.numerics.kernel_triton.transitions import pairs, sum_pairs
from structmax.structures.semi_markov.kernel_triton.inside import push, walk
from structmax.structures.semi_markov.kernel_triton.outside import flow, segments
from structmax.structures.semi_markov.kernel_triton.walks import go_back

# The most labels, whose matrix is one tile, and widths, which a draw looks at together.
MOST_LABELS, MOST_WIDTHS = 128, 4096
# Entries of a tile of segments, and the side of those that transitions are written in.
TILE, SIDE = 2048, 64
# Programs with which a GPU is busy.
BUSY = 264
BLOCK = 1024


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    widths, labels = tensors[0].shape[-2:]
    if labels > MOST_LABELS:
        return f"{labels} labels are more than {MOST_LABELS}"
    if widths > MOST_WIDTHS:
        return f"{widths} widths are more than {MOST_WIDTHS}"
    return "pairwise scores depend on the width" if tensors[1].dim() == 5 else None


def _few(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    instances, _, widths, labels = tensors[0].shape
    return few_searches(instances, labels * (widths + labels))


YIELDS = {"sparsemap": _few}


class _Sizes(NamedTuple):
    """What the scores say about a launch."""

    B: int
    N: int
    W: int
    C: int
    shared: bool
    # the dtype in which is computed
    wide: torch.dtype
    # a power of two that holds the labels, and the widths of a tile
    span: int
    widths: int

    @property
    def double(self) -> bool:
        return self.wide == torch.float64

    @property
    def warps(self) -> int:
        return max(1, min(8, self.span**2 // 512))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _sizes(segment: Tensor, pairwise: Tensor, tile: int = TILE) -> _Sizes:
    B, N, W, C = segment.shape
    span = _power(C)
    wide = torch.promote_types(segment.dtype, torch.float32)
    return _Sizes(B, N, W, C, pairwise.dim() == 3, wide, span, max(1, min(_power(W), tile // span)))


class _Chart(NamedTuple):
    value: Tensor
    start: Tensor
    end: Tensor
    peak: Tensor | None
    end_share: Tensor | None
    alpha: Tensor | None
    reach: Tensor | None
    share: Tensor | None


def _rows(segment: Tensor, dtype: torch.dtype) -> Tensor:
    B, N, _, C = segment.shape
    return torch.empty(B, N, C, dtype=dtype, device=segment.device)


def _walk(segment: Tensor, pairwise: Tensor, lengths: Tensor, sizes: _Sizes, best: bool = False) -> _Chart:
    value = torch.empty(sizes.B, dtype=sizes.wide, device=segment.device)
    start, end = _rows(segment, torch.float64), _rows(segment, torch.float64)
    rest: list[Tensor | None] = [None] * 5
    if not best:
        rest = [_rows(segment, torch.float64), *(_rows(segment, sizes.wide) for _ in range(4))]
    chart = _Chart(value, start, end, *rest)
    constants = sizes.shared, best, sizes.double, sizes.W, sizes.C, sizes.span, sizes.widths
    launch(walk, (sizes.B,), (segment, pairwise, lengths, *chart, sizes.N), constants, sizes.warps)
    return chart


def log_partition(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """log Z: (B,)."""
    return _walk(segment, pairwise, lengths, _sizes(segment, pairwise)).value


def log_partition_and_marginals(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z: (B,), and its gradient."""
    return _marginals(segment, pairwise, None, lengths, _sizes(segment, pairwise))


def marginals_jvp(
    segment: Tensor, pairwise: Tensor, d_segment: Tensor, d_pairwise: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The Hessian of log Z times the tangent."""
    return _marginals(segment, pairwise, (d_segment, d_pairwise), lengths, _sizes(segment, pairwise))[1:]


def _marginals(
    segment: Tensor, pairwise: Tensor, tangent: tuple[Tensor, Tensor] | None, lengths: Tensor, sizes: _Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """log Z and the marginals, or their derivatives along a tangent."""
    B, N, W, C, shared, wide, span, widths = sizes
    chart = _walk(segment, pairwise, lengths, sizes)
    value, start, _, peak, _, alpha, reach, _ = chart
    t_segment, t_pairwise = tangent or (None, None)
    start_t = end_t = alpha_t = reach_t = end_slope = slope = None
    end_scale, scale = _rows(segment, wide), _rows(segment, wide)
    tiles = sizes.double, W, C, span, widths
    if tangent:
        start_t, end_t = _rows(segment, torch.float64), _rows(segment, torch.float64)
        alpha_t, reach_t, end_slope, slope = (_rows(segment, wide) for _ in range(4))
        arguments = segment, t_segment, pairwise, t_pairwise, lengths, *chart[1:], start_t, end_t, alpha_t, reach_t, N
        launch(push, (B,), arguments, (shared, *tiles), sizes.warps)
    arguments = segment, t_segment, pairwise, t_pairwise, lengths, *chart[1:], start_t, end_t, alpha_t, reach_t
    launch(
        flow, (B,), (*arguments, end_scale, end_slope, scale, slope, N), (shared, bool(tangent), *tiles), sizes.warps
    )
    d_segment, block = torch.empty_like(segment), min(BLOCK, _power(N * W * C))
    blocks = -(-N * W * C // block)
    arguments = segment, t_segment, lengths, value, start, peak, start_t, end_t, end_scale, end_slope, d_segment
    launch(segments, (B * blocks,), (*arguments, N, blocks), (bool(tangent), sizes.double, W, C, block))
    side = min(span, SIDE)
    blocks = (-(-C // side)) ** 2
    given = pairwise, t_pairwise, lengths, value, alpha, alpha_t, reach, scale, slope
    flags = bool(tangent), sizes.double, C, side
    if not shared:
        d_pairwise, count, rows = torch.empty_like(pairwise), B * (N - 1), max(1, 1024 // side**2)
        launch(pairs, (-(-count // rows), blocks), (*given, d_pairwise, N, count), (*flags, rows))
        return value, d_segment, d_pairwise
    chunks = max(1, min(-(-BUSY // max(1, B * blocks)), (N - 1) // max(C, 32)))
    sums = torch.empty(B, chunks, C, C, dtype=wide, device=segment.device)
    launch(sum_pairs, (B * chunks, blocks), (*given, sums, N, chunks), (*flags, 4))
    return value, d_segment, sums.sum(1).to(pairwise.dtype)


def argmax(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One best structure."""
    y_segment, y_pairwise = _paths(segment, pairwise, None, lengths, _sizes(segment, pairwise))
    return y_segment[:, 0], y_pairwise[:, 0]


def sample(segment: Tensor, pairwise: Tensor, noise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (B, S, …)."""
    return _paths(segment, pairwise, noise, lengths, _sizes(segment, pairwise))


def _paths(
    segment: Tensor, pairwise: Tensor, noise: Tensor | None, lengths: Tensor, sizes: _Sizes
) -> tuple[Tensor, Tensor]:
    """The best structure, or draws by noise: (B, S, …)."""
    B, N, W, C, shared, wide, span, _ = sizes
    S, K = (1, 0) if noise is None else noise.shape[1:]
    value, start, end, *_ = _walk(segment, pairwise, lengths, sizes, best=noise is None)
    # Counts may be more than half precision holds.
    y_segment, y_pairwise = (torch.empty(B, S, *t.shape[1:], dtype=wide, device=t.device) for t in (segment, pairwise))
    fill(y_segment, lengths, value, N, W * C, widths=W, labels=C)
    fill(y_pairwise, lengths, value, 1 if shared else N - 1, C * C, first=1)
    widest = _power(W)
    together = max(1, min(_power(max(1, S)), 4096 // max(span, widest)))
    blocks = -(-S // together)
    arguments = segment, pairwise, lengths, value, noise, start, end, y_segment, y_pairwise, N, S, K, blocks
    constants = shared, noise is not None, sizes.double, W, C, span, widest, together
    launch(go_back, (B * blocks,), arguments, constants, max(1, min(8, together * max(span, widest) // 512)))
    return y_segment, y_pairwise
