"""Subsets in Triton: the best, sums over all of them, and draws. Derivations: ../README.md.

`forward` (walk.py) carries a row of counts over the items, one program for an instance, with logarithms in float64. For
marginals it leaves the odds of every item at every count, (B, n, size + 1) in the dtype of the scores; `backward` turns
them into probabilities, and `collect` (items.py) sums them. For draws it leaves the rows, and `draw` walks back along
the items. `take_best` (best.py) is one launch that finds which items are in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.subset.kernel_triton.best import take_best
from structmax.structures.subset.kernel_triton.items import collect, draw
from structmax.structures.subset.kernel_triton.walk import backward, forward

# Most counts that are walked at once: one thread for each.
LANES = 1024
# Most items that are looked at together for the best, and how many of them a warp has.
ITEMS, PER_WARP = 4096, 256


class _Size(NamedTuple):
    """What the launches share."""

    B: int
    n: int
    # how many items may be in: more than there are is as impossible as one more
    most: int
    lanes: int
    warps: int
    # whether the counts need several strips
    strips: bool


def _size(x: Tensor, size: int) -> _Size:
    B, n = x.shape
    most = min(size, n + 1)
    lanes = min(LANES, max(32, 1 << most.bit_length()))
    return _Size(B, n, most, lanes, max(1, lanes // 32), most >= lanes)


def _valued(x: Tensor, lengths: Tensor, size: int, exact: bool, keep: bool) -> tuple[Tensor, Tensor | None]:
    """The value (B,), and the rows (B, n + 1, size + 1) if they are to be kept."""
    B, n, most, lanes, warps, strips = _size(x, size)
    wide = {"dtype": torch.float64, "device": x.device}
    value, total = x.new_empty(B), torch.empty(B, **wide)
    rows = torch.empty(B, n + 1, most + 1, **wide) if keep else None
    memory = torch.empty(B, 4, lanes, **wide), torch.empty(B, 4, n, **wide) if strips else None
    arguments = x, None, lengths, value, total, None, rows, None, None, None, None, *memory, n, most
    launch(forward, (B,), arguments, (exact, False, keep, False, strips, lanes), warps)
    return value, rows


def _expected(x: Tensor, tangent: Tensor | None, lengths: Tensor, size: int, exact: bool) -> tuple[Tensor, Tensor]:
    """The value (B,), and the probabilities of the items or their tangents (B, n)."""
    B, n, most, lanes, warps, strips = _size(x, size)
    wide = {"dtype": torch.float64, "device": x.device}
    value, totals, last = x.new_empty(B), torch.empty(2, B, **wide), torch.empty(2, B, most + 1, **wide)
    odds = x.new_empty(B, n, most + 1)
    slopes = None if tangent is None else torch.empty_like(odds)
    memory = torch.empty(B, 4, lanes, **wide), torch.empty(B, 4, n, **wide) if strips else None
    arguments = x, tangent, lengths, value, totals[0], totals[1], None, odds, slopes, last[0], last[1], *memory, n, most
    launch(forward, (B,), arguments, (exact, tangent is not None, False, True, strips, lanes), warps)
    narrow = tuple(t if t is None else t.view(x.dtype) for t in memory)
    arguments = lengths, totals[0], odds, slopes, last[0], last[1], *narrow, n, most
    launch(backward, (B,), arguments, (exact, tangent is not None, strips, lanes), warps)
    out = torch.empty_like(x)
    counts = min(64, max(8, 1 << most.bit_length()))
    items = 2048 // counts
    arguments = odds if slopes is None else slopes, lengths, value, out, n, most
    launch(collect, (B * -(-n // items),), arguments, (exact, items, counts))
    return value, out


def _best(x: Tensor, lengths: Tensor, size: int, exact: bool, through: bool) -> Tensor:
    (B, n), out = x.shape, torch.empty_like(x)
    items = min(ITEMS, max(32, 1 << (n - 1).bit_length()))
    constants = bool(exact), through, items
    launch(take_best, (B,), (x, lengths, out, n, min(size, n + 1)), constants, max(1, min(16, items // PER_WARP)))
    return out


def argmax(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    """The first of equals."""
    return _best(x, lengths, size, exact, False)


def max_marginals(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    """The best subset, if the item is in it; else the item takes the place of the worst, or joins."""
    return _best(x, lengths, size, exact, True)


def log_partition(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    return _valued(x, lengths, size, bool(exact), False)[0]


def log_partition_and_marginals(x: Tensor, lengths: Tensor, size: int, exact: bool) -> tuple[Tensor, Tensor]:
    return _expected(x, None, lengths, size, bool(exact))


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    return _expected(x, tangent, lengths, size, bool(exact))[1]


def sample(x: Tensor, noise: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    (B, n), (S, K) = x.shape, noise.shape[1:]
    value, rows = _valued(x, lengths, size, bool(exact), True)
    out = x.new_empty(B, S, n)
    # one warp each, until there are more than multiprocessors
    lanes = 32 if B * S <= 4096 else 256
    arguments = x, lengths, value, rows, noise, out, n, min(size, n + 1), B * S, S, K
    launch(draw, (-(-B * S // lanes),), arguments, (bool(exact), lanes), lanes // 32)
    return out
