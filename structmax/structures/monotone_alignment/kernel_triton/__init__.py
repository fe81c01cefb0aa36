"""Monotone alignments in Triton: time warping, with gaps, local. Derivations: ../README.md.

1. `rotate` (tiles.py) brings each score tensor to anti-diagonals, −inf where no part is: one launch for each.
2. `forward` goes over the N + M anti-diagonals with logarithms in float64: one launch, a warp for every LANES rows.
3. For marginals it leaves the shares of the moves; `backward` turns them into probabilities, one launch, and `unrotate`
   (tiles.py) brings these to the tensors: one launch for each. The shares of a place add up to 1, so these are always
   the mean of some paths, also where scores are so large that the digits of their sums are lost.
4. For draws, `draw` (paths.py) goes back by the shares; for the best path, `follow` by moves that `forward` has left.

Tiles are read and written once. Shares take 12 bytes for each place in float32, and twice that for the Hessian;
moves 4.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.monotone_alignment.kernel_triton.backwards import backward
from structmax.structures.monotone_alignment.kernel_triton.forwards import forward
from structmax.structures.monotone_alignment.kernel_triton.paths import best_end, draw, draw_end, follow
from structmax.structures.monotone_alignment.kernel_triton.tiles import clear, rotate, unrotate

# Down and right; a cell counts as a diagonal move.
MOVES = ((1, 1), (1, 0), (0, 1))
# Anti-diagonals and rows of a tile.
TILE = (32, 32)
# Rows of a strip: the threads of a warp.
LANES = 32
# Steps that are read at a time, forward and backward: powers of two, at most LANES.
AHEAD = (4, 8)
# Places of an instance are counted by integers of 32 bits.
MOST_PLACES = 2**31 - 1


def refuses(name: str, tensors: Sequence[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    N, M = tensors[0].shape[1:]
    return None if (N + 1) * (M + 1) <= MOST_PLACES else f"an instance may have at most {MOST_PLACES} places"


class _Fields(NamedTuple):
    rows: Tensor
    columns: Tensor
    local: bool
    band: int


class _Walked(NamedTuple):
    """What the recursion forward leaves."""

    # (B,) in the dtype of the scores; in float64, with the tangent: (2, B)
    value: Tensor
    totals: Tensor
    # (K, B, W, H): the shares of moves, or the last moves of best paths; and the slopes of the shares
    kept: Tensor | None
    slopes: Tensor | None
    # of local paths: (2, B, W, H) those that end by a match, and (2, B, H) in a row; with tangents
    matches: Tensor | None
    ends: Tensor | None


def _size(first: Tensor, tensors: int) -> tuple[int, int, int]:
    """B, and how many rows and columns of places there are, at least one."""
    B, N, M = first.shape
    return (B, max(1, N), max(1, M)) if tensors == 1 else (B, N + 1, M + 1)


def _tiles(B: int, H: int, W: int) -> int:
    return B * -(-(H + W - 1) // TILE[0]) * -(-H // TILE[1])


def _rotated(tensors: tuple[Tensor, ...], fields: _Fields, tangent: bool) -> tuple[Tensor, ...]:
    B, H, W = _size(tensors[0], len(tensors))
    outs = []
    for x, move in zip(tensors, MOVES, strict=False):
        out = x.new_empty(B, W, H)
        arguments = x, out, fields.rows, fields.columns, *x.shape[1:], H, W, fields.band
        launch(rotate, (_tiles(B, H, W),), arguments, (*move, fields.local, tangent, *TILE))
        outs.append(out)
    return tuple(outs)


def _pair(tensors: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A tensor and its tangent, as far as there are any."""
    return (None, None) if tensors is None else (tensors[0], tensors[1] if len(tensors) > 1 else None)


def _walk(kernel: Any, B: int, H: int, W: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    """Every strip of every instance over all anti-diagonals."""
    programs = B * -(-H // LANES)
    turns = torch.zeros(1 + programs, dtype=torch.int32, device=arguments[0].device)
    launch(kernel, (programs,), (*arguments, turns, B, H, W), constants, 1)


def _padded(tensors: tuple[Tensor, ...] | None) -> tuple[Tensor | None, ...]:
    return (*(tensors or ()), None, None, None)[:3]


def _walked(
    scores: tuple[Tensor, ...], tangent: tuple[Tensor, ...] | None, fields: _Fields, best: bool, keep: bool
) -> _Walked:
    """The recursion forward; `keep` the shares, or the moves of best paths."""
    B, H, W = _size(scores[0], len(scores))
    cells, local, tangents = len(scores) == 1, fields.local, tangent is not None
    wide = {"dtype": torch.float64, "device": scores[0].device}
    rotated = _rotated(scores, fields, False)
    directions = None if tangent is None else _rotated(tangent, fields, True)
    value, totals = scores[0].new_empty(B), torch.empty(2, B, **wide)
    kept = slopes = matches = ends = None
    if keep and best:
        kept = torch.empty(1, B, W, H, dtype=torch.int32, device=value.device)
    elif keep:
        kept = scores[0].new_empty(4 if local else 3, B, W, H)
        slopes = torch.empty_like(kept) if tangents else None
    if local:
        ends = torch.empty(2, B, H, **wide)
        matches = torch.empty(2 if tangents else 1, B, W, H, **wide) if keep else None
    arguments = (
        *_padded(rotated), *_padded(directions), fields.rows, fields.columns, value, *totals, kept, slopes,
        *_pair(matches), ends, totals.new_empty(B, 2, W),
    )  # fmt: skip
    _walk(forward, B, H, W, arguments, (cells, local, best, tangents, keep, LANES, AHEAD[0]))
    return _Walked(value, totals, kept, slopes, matches, ends)


def _expected(
    scores: tuple[Tensor, ...], tangent: tuple[Tensor, ...] | None, fields: _Fields
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The value (B,), and probabilities of the parts or their tangents."""
    B, H, W = _size(scores[0], len(scores))
    cells, local, tangents = len(scores) == 1, fields.local, tangent is not None
    value, totals, shares, slopes, matches, _ = _walked(scores, tangent, fields, False, True)
    arguments = shares, slopes, *_pair(matches), *totals, fields.rows, fields.columns, value.new_empty(B, 2, W)
    _walk(backward, B, H, W, arguments, (cells, local, tangents, LANES, AHEAD[1]))
    planes: Any = shares if slopes is None else slopes
    outs = tuple(torch.empty_like(x) for x in scores)
    for out, plane, move in zip(outs, planes, MOVES, strict=False):
        arguments = plane, fields.rows, fields.columns, value, out, *out.shape[1:], H, W, fields.band
        launch(unrotate, (_tiles(B, H, W),), arguments, (cells, local, *move, *TILE))
    return value, outs


def _traced(scores: tuple[Tensor, ...], fields: _Fields, walked: _Walked, noise: Tensor | None) -> tuple[Tensor, ...]:
    """The best path of each instance, (B, …), or those that the noise (B, S, K) draws: (B, S, …)."""
    B, H, W = _size(scores[0], len(scores))
    S, K = (1, 0) if noise is None else noise.shape[1:]
    block = 1024
    outs = tuple(x.new_empty(B * S, *x.shape[1:]) for x in scores)
    for out, move in zip(outs, MOVES, strict=False):
        N, M = out.shape[1:]
        arguments = walked.value, fields.rows, fields.columns, out, S, N, M, fields.band
        launch(clear, (B * S * -(-N * M // block),), arguments, (*move, fields.local, block))
    starts = None
    if fields.local:
        starts = torch.empty(B * S, 3, dtype=torch.int64, device=scores[0].device)
        known = *_pair(walked.matches)[:1], walked.ends, fields.rows, fields.columns, walked.totals
        if noise is None:
            launch(best_end, (B,), (*known, starts, H, W), (block,))
        else:
            launch(draw_end, (B * S,), (*known, noise, starts, S, K, H, W, fields.band), (block,))
    # one warp each, until there are more than multiprocessors
    lanes = 32 if B * S <= 4096 else 256
    known = walked.kept, fields.rows, fields.columns, walked.value, starts
    sizes = *scores[0].shape[1:], H, W
    constants = len(scores) == 1, fields.local, lanes
    if noise is None:
        kernel, arguments = follow, (*known, *_padded(outs), B, *sizes)
    else:
        kernel, arguments = draw, (*known, noise, *_padded(outs), B * S, S, K, B * H * W, *sizes, fields.band)
    launch(kernel, (-(-B * S // lanes),), arguments, constants, lanes // 32)
    return outs if noise is None else tuple(out.unflatten(0, (B, S)) for out in outs)


def log_partition(*scores: Tensor, **fields: Any) -> Tensor:
    """log Σ exp⟨θ, y⟩: (B,)."""
    return _walked(scores, None, _Fields(**fields), False, False).value


def log_partition_and_marginals(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """(B,), and the marginals like the scores."""
    value, parts = _expected(scores, None, _Fields(**fields))
    return value, *parts


def marginals_jvp(*scores_and_tangent: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """The Hessian of the log-partition times the tangent."""
    half = len(scores_and_tangent) // 2
    return _expected(scores_and_tangent[:half], scores_and_tangent[half:], _Fields(**fields))[1]


def argmax(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """The parts of one best path."""
    return _traced(scores, _Fields(**fields), _walked(scores, None, _Fields(**fields), True, True), None)


def sample(*scores: Tensor, noise: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """Draws by the rule of the recursion: (B, S, …), for noise (B, S, K)."""
    return _traced(scores, _Fields(**fields), _walked(scores, None, _Fields(**fields), False, True), noise)
