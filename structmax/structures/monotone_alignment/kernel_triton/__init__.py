"""Monotone alignments in Triton: time warping, with gaps, local. Derivations: ../README.md.

1. `rotate` (tiles.py) brings each score tensor to anti-diagonals, −inf where no part is: one launch for each.
2. `walk` (walk.py) goes over the N + M anti-diagonals, forward and backward at once, two programs for an instance.
3. `expect` (tiles.py) makes probabilities of the weights of all paths to and from a place: one launch for each tensor.
   Instead, `trace` (trace.py) goes back along paths, the best or drawn ones.

The first and the last read and write memory once. What is kept between them is float64: 16 bytes for each place, and
twice that for the Hessian.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.monotone_alignment.kernel_triton.tiles import clear, expect, rotate
from structmax.structures.monotone_alignment.kernel_triton.trace import best_end, draw_end, trace
from structmax.structures.monotone_alignment.kernel_triton.walk import walk

# Down and right; a cell counts as a diagonal move.
MOVES = ((1, 1), (1, 0), (0, 1))
# Anti-diagonals and rows of a tile.
TILE = (32, 32)
# Most rows that are walked at once: one thread for each.
LANES = 1024


class _Fields(NamedTuple):
    rows: Tensor
    columns: Tensor
    local: bool
    band: int


class _Walked(NamedTuple):
    """What the recursion leaves."""

    # (B, W, H) each: one for cells, three for moves
    scores: tuple[Tensor, ...]
    directions: tuple[Tensor, ...] | None
    # (B,) in the dtype of the scores, in float64, and its tangent
    value: Tensor
    total: Tensor
    d_total: Tensor | None
    # (directions, B, W, H) in float64, and their tangents
    places: Tensor | None
    d_places: Tensor | None
    # (B, H): the paths that end in a row, local ones
    ends: Tensor | None


def _size(first: Tensor, tensors: int) -> tuple[int, int, int]:
    """B, and how many rows and columns of places there are, at least one."""
    B, N, M = first.shape
    return (B, max(1, N), max(1, M)) if tensors == 1 else (B, N + 1, M + 1)


def _rotated(tensors: tuple[Tensor, ...], fields: _Fields, tangent: bool) -> tuple[Tensor, ...]:
    B, H, W = _size(tensors[0], len(tensors))
    programs = B * -(-(H + W - 1) // TILE[0]) * -(-H // TILE[1])
    outs = []
    for x, move in zip(tensors, MOVES, strict=False):
        out = x.new_empty(B, W, H)
        arguments = x, out, fields.rows, fields.columns, *x.shape[1:], H, W, fields.band
        launch(rotate, (programs,), arguments, (*move, fields.local, tangent, *TILE))
        outs.append(out)
    return tuple(outs)


def _walked(
    scores: tuple[Tensor, ...],
    fields: _Fields,
    directions: int,
    tangent: tuple[Tensor, ...] | None = None,
    best: bool = False,
    keep: bool = True,
    lanes: int = LANES,
) -> _Walked:
    """The recursion forward, or forward and backward."""
    B, H, W = _size(scores[0], len(scores))
    lanes = min(lanes, max(32, 1 << (H - 1).bit_length()))
    wide = {"dtype": torch.float64, "device": scores[0].device}
    rotated = _rotated(scores, fields, False)
    d_rotated = None if tangent is None else _rotated(tangent, fields, True)
    value, total = scores[0].new_empty(B), torch.empty(B, **wide)
    places = torch.empty(directions, B, W, H, **wide) if keep else None
    d_total = d_places = None
    if tangent is not None:
        d_total, d_places = torch.empty_like(total), torch.empty(directions, B, W, H, **wide)
    ends = torch.empty(B, H, **wide) if fields.local else None
    exchange, edge = torch.empty(directions * B, 4, lanes, **wide), torch.empty(directions * B, 2, W, **wide)
    none = (None, None, None)
    arguments = (
        *(rotated + none)[:3], *((d_rotated or ()) + none)[:3], fields.rows, fields.columns, value, total, d_total,
        places, d_places, ends, exchange, edge, B, H, W,
    )  # fmt: skip
    constants = len(scores) == 1, fields.local, best, tangent is not None, keep, H > lanes, lanes
    launch(walk, (directions * B,), arguments, constants, max(1, lanes // 32))
    return _Walked(rotated, d_rotated, value, total, d_total, places, d_places, ends)


def _expected(scores: tuple[Tensor, ...], fields: _Fields, walked: _Walked) -> tuple[Tensor, ...]:
    """Probabilities of the parts, or their tangents."""
    B, H, W = _size(scores[0], len(scores))
    programs = B * -(-(H + W - 1) // TILE[0]) * -(-H // TILE[1])
    outs = tuple(torch.empty_like(x) for x in scores)
    directions = walked.directions or (None,) * len(scores)
    for out, rotated, direction, move in zip(outs, walked.scores, directions, MOVES, strict=False):
        arguments = (
            rotated, direction, walked.places, walked.d_places, fields.rows, fields.columns,
            walked.value, walked.total, walked.d_total, out, B, *out.shape[1:], H, W, fields.band,
        )  # fmt: skip
        constants = len(scores) == 1, fields.local, *move, walked.directions is not None, *TILE
        launch(expect, (programs,), arguments, constants)
    return outs


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
        known = walked.scores[0], walked.places, walked.ends, fields.rows, fields.columns, walked.total
        if noise is None:
            launch(best_end, (B,), (*known, starts, H, W), (block,))
        else:
            launch(draw_end, (B * S,), (*known, noise, starts, S, K, H, W, fields.band), (block,))
    # one warp each, until there are more than multiprocessors
    none, lanes = (None, None, None), 32 if B * S <= 4096 else 256
    arguments = (
        *(walked.scores + none)[:3], walked.places, fields.rows, fields.columns, walked.value, starts, noise,
        *(outs + none)[:3], B * S, S, K, *scores[0].shape[1:], H, W, fields.band,
    )  # fmt: skip
    constants = len(scores) == 1, fields.local, noise is None, lanes
    launch(trace, (-(-B * S // lanes),), arguments, constants, lanes // 32)
    return outs if noise is None else tuple(out.unflatten(0, (B, S)) for out in outs)


def log_partition(*scores: Tensor, **fields: Any) -> Tensor:
    """log Σ exp⟨θ, y⟩: (B,)."""
    return _walked(scores, _Fields(**fields), 1, keep=False).value


def log_partition_and_marginals(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """(B,), and the marginals like the scores."""
    walked = _walked(scores, _Fields(**fields), 2)
    return walked.value, *_expected(scores, _Fields(**fields), walked)


def marginals_jvp(*scores_and_tangent: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """The Hessian of the log-partition times the tangent."""
    half = len(scores_and_tangent) // 2
    scores, tangent = scores_and_tangent[:half], scores_and_tangent[half:]
    return _expected(scores, _Fields(**fields), _walked(scores, _Fields(**fields), 2, tangent))


def argmax(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """The parts of one best path."""
    return _traced(scores, _Fields(**fields), _walked(scores, _Fields(**fields), 1, best=True), None)


def sample(*scores: Tensor, noise: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """Draws by the rule of the recursion: (B, S, …), for noise (B, S, K)."""
    return _traced(scores, _Fields(**fields), _walked(scores, _Fields(**fields), 1), noise)
