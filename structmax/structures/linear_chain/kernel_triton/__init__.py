"""The linear chain in Triton, in the log domain, but for walks with one matrix (scaled.py). Derivations: ../README.md.

The walks over positions are what takes time: forwards and backwards run beside each other, in two programs of an
instance, with the matrices loaded some positions ahead. Where instances are few and long, their segments are walked
side by side, which takes two launches more. All else is done for all positions at once, at the speed of memory.

| question | launches | how often the matrices are read |
|---|---|---|
| `log_partition` | 1 | once |
| `log_partition_and_marginals` | 4 | three times (once more where scores are so large that digits are lost) |
| `marginals_jvp` | 4 | four times, their tangents three times |
| `argmax`, `sample` | 5 | twice |
| `argmax` of few labels | 1 | once |
| `sparsemap` of few labels | 1 for many searches | once in a search |

Where one matrix serves all positions it stays in registers, and marginals and counts of it may take one or two launches
more, to add them up.
Memory beyond input and output: O(B N C), for `sample` of each draw.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import active_set, launch, shared_memory
from structmax.numerics.kernel_triton.blanks import fill
from structmax.numerics.kernel_triton.paths import trace
from structmax.numerics.kernel_triton.searches import few_instances, few_searches
from structmax.numerics.kernel_triton.transitions import pairs, sum_pairs
from structmax.structures.linear_chain.kernel_triton.best import best_sequences
from structmax.structures.linear_chain.kernel_triton.inside import walk
from structmax.structures.linear_chain.kernel_triton.outside import flow, meet, push
from structmax.structures.linear_chain.kernel_triton.scaled import FAR_DOUBLE, FAR_SINGLE
from structmax.structures.linear_chain.kernel_triton.segments import cross
from structmax.structures.linear_chain.kernel_triton.segments import fill as fill_segments
from structmax.structures.linear_chain.kernel_triton.sparse import search_sequences
from structmax.structures.linear_chain.kernel_triton.walks import count_pairs, mark_labels, mark_pairs, point

# Entries of the largest tile that a program of a walk holds, and the side of those that transitions are written in.
WALKED, SIDE = 16384, 64
# Bytes of shared memory for matrices that are loaded ahead, and those that are left for all else.
AHEAD, SPARE = 163840, 16384
# Programs of a warp or a few with which a GPU is busy.
BUSY = 1056
# The most labels, rounded up to a power of two, with which a best structure takes one launch, and a sparse map few.
FEW, FEW_SPARSE = 16, 32
# Pairs of labels that a core goes through while a GPU takes one step.
FEW_PAIRS = 512
# Searches of an instance between two questions of the host.
TURNS = 64
# The most labels: a strip of a matrix has two columns then.
MOST_LABELS = 8192
# The time of one exponential of a GPU that is busy, in steps of a walk.
CROSSED = 5e-7
# The largest logarithms with which a and b are added up.
LIMITS = {torch.float32: FAR_SINGLE.value, torch.float64: FAR_DOUBLE.value}


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    labels = tensors[0].shape[-1]
    return f"{labels} labels are more than {MOST_LABELS}" if labels > MOST_LABELS else None


def _few(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    instances, _, labels = tensors[0].shape
    return few_searches(instances, labels * labels)


def _few_smoothed(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    # the engine takes a launch or a round of one for each position
    instances, _, labels = tensors[0].shape
    return few_instances(instances) if labels * labels <= FEW_PAIRS else None


YIELDS = {
    "sparsemap": _few,
    **dict.fromkeys(("smoothed", "smoothed_and_marginals", "smoothed_marginals_jvp"), _few_smoothed),
}


class _Sizes(NamedTuple):
    """What the scores say about a launch."""

    B: int
    N: int
    C: int
    shared: bool
    # the dtype in which is computed
    wide: torch.dtype
    # a power of two that holds the labels, and the width of a strip of a walk
    span: int
    strip: int
    # the positions of a segment, where they are walked side by side
    segment: int | None
    # bytes of shared memory
    room: int

    @property
    def double(self) -> bool:
        return self.wide == torch.float64

    def walk(self, matrices: int = 1) -> tuple[tuple[int, int, int, int], int]:
        """C, SPAN, TILE and STAGES of a walk, and warps: few, since they wait for each other at every step."""
        size = self.span * self.strip * matrices * self.wide.itemsize
        # all but one of them are loaded ahead
        stages = min(4, AHEAD // size, 1 + (self.room - SPARE) // size)
        return (self.C, self.span, self.strip, max(1, stages)), max(1, min(8, size // 8192))

    def rows(self) -> tuple[int, int]:
        """How many rows of labels a program has, and warps."""
        return max(1, 1024 // self.span), max(4, min(16, self.span // 512))

    def tiles(self) -> tuple[int, int, int, int]:
        """The side of a tile, how many a matrix has, matrices of a program, and warps."""
        side = min(self.span, SIDE)
        return side, (-(-self.C // side)) ** 2, max(1, 1024 // side**2), 4


def _sizes(unary: Tensor, pairwise: Tensor, walked: int = WALKED) -> _Sizes:
    B, N, C = unary.shape
    span = 1 << (C - 1).bit_length()
    wide = torch.promote_types(unary.dtype, torch.float32)
    strip = max(1, min(span, walked // span))
    segment = _segment(B, N, C, span) if strip == span else None
    room = shared_memory(unary.get_device())
    return _Sizes(B, N, C, pairwise.dim() == 3, wide, span, strip, segment, room)


def _segment(B: int, N: int, C: int, span: int) -> int | None:
    """The positions of a segment, or None where walking the chain at once takes no more than twice the time."""
    # two walks of a segment, and one over the segments, are shortest like this
    segment = 1 << (math.isqrt(N) - 1).bit_length()
    steps = 2 * segment + -(-N // segment) + B * N * C * span**2 * CROSSED
    return segment if 2 * steps < N else None


class _Chart(NamedTuple):
    value: Tensor
    alpha: Tensor
    reach: Tensor | None
    share: Tensor | None
    beta: Tensor | None


def _like(unary: Tensor, sizes: _Sizes) -> Tensor:
    return torch.empty_like(unary, dtype=sizes.wide)


def _walk(
    unary: Tensor,
    pairwise: Tensor,
    lengths: Tensor,
    sizes: _Sizes,
    best: bool = False,
    shares: bool = True,
    both: bool = False,
) -> _Chart:
    """The chart of a walk forwards, of sums or of the best, with `shares` if wanted; of one backwards, if `both`."""
    value = torch.empty(sizes.B, dtype=sizes.wide, device=unary.device)
    alpha = _like(unary, sizes)
    reach, share = (_like(unary, sizes), _like(unary, sizes)) if shares else (None, None)
    chart = _Chart(value, alpha, reach, share, _like(unary, sizes) if both else None)
    directions = 1 + both
    flipped = pairwise.mT.contiguous() if both and sizes.shared and sizes.strip == sizes.span else None
    if sizes.segment is not None:
        ends = _ends(unary, pairwise, lengths, sizes, best, both)
        starts, segments = (ends.alpha, ends.beta), ends.alpha.shape[1] - 1
        arguments = unary, pairwise, flipped, lengths, *starts, *chart[1:], sizes.N, sizes.segment, segments
        constants, warps = sizes.walk()
        flags = sizes.shared, best, sizes.double
        launch(fill_segments, (sizes.B * segments, directions), arguments, (*flags, *constants), warps)
        return chart._replace(value=ends.value.to(sizes.wide))
    constants, warps = sizes.walk()
    arguments = unary, pairwise, flipped, lengths, *chart, sizes.N
    flags = sizes.shared, best, both, sizes.double
    launch(walk, (sizes.B, directions), arguments, (*flags, *constants), warps)
    return chart


def _ends(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, sizes: _Sizes, best: bool = False, both: bool = False
) -> _Chart:
    """The chart in float64 of the first positions of segments, and of the last position."""
    assert sizes.segment is not None
    B, N, C, shared, *_ = sizes
    segments = -(-(N - 1) // sizes.segment)
    wide = {"dtype": torch.float64, "device": unary.device}
    first, matrices = torch.empty(B, segments + 1, C, **wide), torch.empty(B, segments, C, C, **wide)
    count = torch.empty_like(lengths)
    constants, warps = sizes.walk()
    arguments = unary, pairwise, lengths, first, matrices, count, N, sizes.segment, segments
    launch(cross, (B * segments * C,), arguments, (shared, best, sizes.double, *constants), warps)
    return _walk(first, matrices, count, _sizes(first, matrices), best, False, both)


def log_partition(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> Tensor:
    """log Z: (B,)."""
    return _log_partition(unary, pairwise, lengths, _sizes(unary, pairwise))


def _log_partition(unary: Tensor, pairwise: Tensor, lengths: Tensor, sizes: _Sizes) -> Tensor:
    if sizes.strip < sizes.span:
        # positions go through memory anyway
        return _walk(unary, pairwise, lengths, sizes, shares=False).value
    if sizes.segment is not None:
        return _ends(unary, pairwise, lengths, sizes).value.to(sizes.wide)
    value = torch.empty(sizes.B, dtype=sizes.wide, device=unary.device)
    constants, warps = sizes.walk()
    arguments = unary, pairwise, None, lengths, value, None, None, None, None, sizes.N
    launch(walk, (sizes.B,), arguments, (sizes.shared, False, False, sizes.double, *constants), warps)
    return value


def log_partition_and_marginals(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z: (B,), and its gradient."""
    return _marginals(unary, pairwise, lengths, _sizes(unary, pairwise), LIMITS)


def log_partition_and_state(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, ...]:
    """log Z: (B,), and what its gradient is made of: O(B N C), where a gradient has a matrix for each position."""
    state = _state(unary, pairwise, lengths, _sizes(unary, pairwise), LIMITS)
    return state[0], *state


def log_partition_pullback(
    unary: Tensor,
    pairwise: Tensor,
    value: Tensor,
    alpha: Tensor,
    reach: Tensor,
    scale: Tensor,
    marginals: Tensor,
    d_value: Tensor,
    *,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradient of log Z times d_value (B,)."""
    scale = scale * d_value[:, None, None]
    d_pairwise = _pairs(pairwise, None, lengths, value, alpha, None, reach, scale, None, _sizes(unary, pairwise))
    return marginals * d_value[:, None, None], d_pairwise


def _state(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, sizes: _Sizes, limits: dict[torch.dtype, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log Z; a, reach and scale, which give the marginals of transitions; and the marginals of labels."""
    B, N, C, shared, *_ = sizes
    value, alpha, reach, share, beta = _walk(unary, pairwise, lengths, sizes, both=True)
    assert reach is not None
    scale, d_unary = _like(unary, sizes), torch.empty_like(unary)
    spread = torch.empty(B, N, dtype=sizes.wide, device=unary.device)
    rows, warps = sizes.rows()
    arguments = unary, lengths, value, alpha, reach, share, beta, scale, spread, d_unary, N, B * N
    launch(meet, (-(-B * N // rows),), arguments, (sizes.double, C, sizes.span, rows), warps)
    constants, warps = sizes.walk()
    chart = pairwise, None, lengths, value, alpha, reach, share, None, None, scale, None, spread, d_unary
    arguments = *chart, N, limits[sizes.wide]
    launch(flow, (B,), arguments, (shared, False, sizes.double, *constants), warps)
    return value, alpha, reach, scale, d_unary


def _marginals(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, sizes: _Sizes, limits: dict[torch.dtype, float]
) -> tuple[Tensor, Tensor, Tensor]:
    value, alpha, reach, scale, d_unary = _state(unary, pairwise, lengths, sizes, limits)
    return value, d_unary, _pairs(pairwise, None, lengths, value, alpha, None, reach, scale, None, sizes)


def _pairs(
    pairwise: Tensor,
    tangent: Tensor | None,
    lengths: Tensor,
    value: Tensor,
    alpha: Tensor,
    alpha_t: Tensor | None,
    reach: Tensor | None,
    scale: Tensor,
    slope: Tensor | None,
    sizes: _Sizes,
) -> Tensor:
    """The marginals of transitions, or their derivatives."""
    B, N, C, shared, *_ = sizes
    side, tiles, rows, warps = sizes.tiles()
    given = pairwise, tangent, lengths, value, alpha, alpha_t, reach, scale, slope
    flags = tangent is not None, sizes.double, C, side
    if not shared:
        out, count = torch.empty_like(pairwise), B * (N - 1)
        launch(pairs, (-(-count // rows), tiles), (*given, out, N, count), (*flags, rows), warps)
        return out
    # So many parts of the positions that a GPU is busy, and that their sums take no more than two charts.
    chunks = max(1, min(-(-BUSY // max(1, B * tiles)), 2 * (N - 1) // max(C, 32)))
    out = torch.empty(B, chunks, C, C, dtype=pairwise.dtype if chunks == 1 else sizes.wide, device=pairwise.device)
    launch(sum_pairs, (B * chunks, tiles), (*given, out, N, chunks), (*flags, 4), warps if side > 32 else 1)
    return out[:, 0] if chunks == 1 else out.sum(1).to(pairwise.dtype)


def marginals_jvp(
    unary: Tensor, pairwise: Tensor, t_unary: Tensor, t_pairwise: Tensor, *, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The Hessian of log Z times the tangent."""
    return _tangents(unary, pairwise, t_unary, t_pairwise, lengths, _sizes(unary, pairwise))


def _tangents(
    unary: Tensor, pairwise: Tensor, t_unary: Tensor, t_pairwise: Tensor, lengths: Tensor, sizes: _Sizes
) -> tuple[Tensor, Tensor]:
    B, N, shared = sizes.B, sizes.N, sizes.shared
    value, alpha, reach, share, _ = _walk(unary, pairwise, lengths, sizes)
    alpha_t, reach_t, scale, slope = (_like(unary, sizes) for _ in range(4))
    d_unary = torch.empty_like(unary)
    constants, warps = sizes.walk(matrices=2)
    arguments = t_unary, pairwise, t_pairwise, lengths, alpha, reach, share, alpha_t, reach_t, N
    launch(push, (B,), arguments, (shared, sizes.double, *constants), warps)
    chart = lengths, value, alpha, reach, share, alpha_t, reach_t, scale, slope, None, d_unary
    launch(flow, (B,), (pairwise, t_pairwise, *chart, N, 0.0), (shared, True, sizes.double, *constants), warps)
    return d_unary, _pairs(pairwise, t_pairwise, lengths, value, alpha, alpha_t, reach, scale, slope, sizes)


def argmax(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One best structure."""
    return _best(unary, pairwise, lengths, _sizes(unary, pairwise))


def _best(unary: Tensor, pairwise: Tensor, lengths: Tensor, sizes: _Sizes) -> tuple[Tensor, Tensor]:
    if sizes.span > FEW or sizes.segment is not None:
        y_unary, y_pairwise = _paths(unary, pairwise, None, lengths, sizes)
        return y_unary[:, 0], y_pairwise[:, 0]
    y_unary, y_pairwise = torch.empty_like(unary), torch.empty_like(pairwise)
    pointer = torch.empty_like(unary, dtype=torch.int32)
    arguments = unary, pairwise, lengths, pointer, y_unary, y_pairwise, sizes.N
    launch(best_sequences, (sizes.B,), arguments, (sizes.shared, sizes.double, sizes.C, sizes.span, 4), 1)
    return y_unary, y_pairwise


def sample(unary: Tensor, pairwise: Tensor, *, noise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (B, S, …): noise[b, s, t] chooses label number t from the end."""
    return _paths(unary, pairwise, noise, lengths, _sizes(unary, pairwise))


def _paths(
    unary: Tensor, pairwise: Tensor, noise: Tensor | None, lengths: Tensor, sizes: _Sizes
) -> tuple[Tensor, Tensor]:
    """The best structure, or draws by noise: (B, S, …)."""
    B, N, C, shared, _, span, strip, *_ = sizes
    S, K = (1, 0) if noise is None else noise.shape[1:]
    value, alpha, reach, share, _ = _walk(unary, pairwise, lengths, sizes, best=noise is None, shares=noise is not None)
    pointer = torch.empty(B, S, N, C, dtype=torch.int32, device=unary.device)
    label = torch.empty(B, S, N, dtype=torch.int32, device=unary.device)
    together = max(1, min(1 << (S - 1).bit_length(), 4096 // (span * strip))) if S else 1
    constants = shared, noise is not None, sizes.double, C, span, strip, together
    warps = 1 if span * strip <= 4096 else min(8, span * strip // 2048)
    arguments = pairwise, lengths, noise, alpha, reach, share, pointer, N, S, K
    launch(point, (B * N, -(-C // strip)), arguments, constants, warps)
    together = max(1, min(1 << (S - 1).bit_length(), 4096 // span)) if S else 1
    blocks = -(-S // together)
    launch(trace, (B * blocks,), (pointer, lengths, label, N, S, C, blocks), (span, together, 8), 1)
    return _mark(label, lengths, value, unary, pairwise, sizes)


def _mark(
    label: Tensor, lengths: Tensor, value: Tensor, unary: Tensor, pairwise: Tensor, sizes: _Sizes
) -> tuple[Tensor, Tensor]:
    """Parts of the labels (B, S, N)."""
    B, S, N = label.shape
    y_unary, y_pairwise = (torch.empty(B, S, *t.shape[1:], dtype=t.dtype, device=t.device) for t in (unary, pairwise))
    rows, warps = sizes.rows()
    count = B * S * N
    launch(mark_labels, (-(-count // rows),), (label, value, y_unary, S, N, count), (sizes.C, sizes.span, rows), warps)
    if sizes.shared:
        count, C = B * S * (N - 1), sizes.C
        counts = torch.zeros(B, S, C, C, dtype=torch.int32, device=label.device)
        launch(count_pairs, (-(-count // 256),), (label, counts, N, count), (C, 256))
        return y_unary, fill(y_pairwise, lengths, value, 1, C * C, first=1, counts=counts)
    side, tiles, rows, warps = sizes.tiles()
    count = B * S * (N - 1)
    arguments = label, value, y_pairwise, S, N, count
    launch(mark_pairs, (-(-count // rows), tiles), arguments, (sizes.C, side, rows), warps)
    return y_unary, y_pairwise


def sparsemap(
    unary: Tensor, pairwise: Tensor, *, regularised: Tensor, start: Tensor, max_iter: int, tol: float, lengths: Tensor
) -> tuple[Tensor, ...]:
    """The nearest mixture of few structures."""
    sizes = _sizes(unary, pairwise)
    turns = None
    if sizes.span <= FEW_SPARSE and sizes.segment is None:
        y, pointer = (torch.zeros_like(unary), torch.zeros_like(pairwise)), torch.empty_like(unary, dtype=torch.int32)
        label = torch.empty(unary.shape[:2], dtype=torch.int32, device=unary.device)
        more, constants = (lengths, pointer, label, sizes.N), (sizes.shared, sizes.C, sizes.span, 4)

        def turns(supports: active_set.Supports) -> None:
            supports.run(search_sequences, y, more, max_iter, TURNS, tol, constants, warps=1)

    settings: Any = {"regularised": regularised, "start": start, "max_iter": max_iter, "tol": tol, "turns": turns}
    return active_set.sparsemap(argmax, _is_feasible, unary, pairwise, lengths=lengths, **settings)


def _is_feasible(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> Tensor:
    return log_partition(unary, pairwise, lengths=lengths) > -math.inf
