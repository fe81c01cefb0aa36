"""Subsets in Triton: sums over all of them, and draws. Derivations: ../README.md.

`walk` carries a row of counts over the items, forward and backward at once, two programs for an instance. Its rows are
logarithms in float64, 16 · (n + 1) · (size + 1) bytes for an instance, and twice that for the Hessian. `expect` reads
them once and writes the marginals; `draw` walks back along the items. Two launches each.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.subset.kernel_triton.items import draw, expect
from structmax.structures.subset.kernel_triton.walk import walk

# Most counts that are walked at once: one thread for each.
LANES = 1024


class _Walked(NamedTuple):
    """What the recursion leaves."""

    # how many items may be in, at most one more than there are
    most: int
    # (B,) in the dtype of the scores, in float64, and its tangent
    value: Tensor
    total: Tensor
    d_total: Tensor | None
    # (2, B, n + 1, most + 1): subsets of the items behind, and before; and their tangents
    rows: Tensor | None
    d_rows: Tensor | None


def _walked(x: Tensor, tangent: Tensor | None, lengths: Tensor, size: int, exact: bool, directions: int = 2) -> _Walked:
    """The recursion backward, or backward and forward; one direction keeps nothing but the value."""
    B, n = x.shape
    most = min(size, n + 1)
    lanes = min(LANES, max(32, 1 << most.bit_length()))
    wide = {"dtype": torch.float64, "device": x.device}
    value, total = x.new_empty(B), torch.empty(B, **wide)
    keep = directions == 2
    rows = torch.empty(2, B, n + 1, most + 1, **wide) if keep else None
    d_total, d_rows = (None, None) if tangent is None else (torch.empty_like(total), torch.empty_like(rows))
    exchange = torch.empty(directions * B, 4, lanes, **wide)
    edge = torch.empty(directions * B, 4, n + 1, **wide) if most >= lanes else None
    arguments = x, tangent, lengths, value, total, d_total, rows, d_rows, exchange, edge, B, n, most
    constants = exact, tangent is not None, keep, most >= lanes, lanes
    launch(walk, (directions * B,), arguments, constants, max(1, lanes // 32))
    return _Walked(most, value, total, d_total, rows, d_rows)


def _expected(x: Tensor, tangent: Tensor | None, lengths: Tensor, exact: bool, walked: _Walked) -> Tensor:
    """Probabilities of the items, or their tangents."""
    B, n = x.shape
    out = torch.empty_like(x)
    counts = min(64, max(8, 1 << (walked.most - 1).bit_length()))
    items = 2048 // counts
    arguments = x, tangent, lengths, *walked[1:], out, B, n, walked.most
    launch(expect, (B * -(-n // items),), arguments, (exact, tangent is not None, items, counts))
    return out


def log_partition(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    return _walked(x, None, lengths, size, bool(exact), 1).value


def log_partition_and_marginals(x: Tensor, lengths: Tensor, size: int, exact: bool) -> tuple[Tensor, Tensor]:
    walked = _walked(x, None, lengths, size, bool(exact))
    return walked.value, _expected(x, None, lengths, bool(exact), walked)


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    return _expected(x, tangent, lengths, bool(exact), _walked(x, tangent, lengths, size, bool(exact)))


def sample(x: Tensor, noise: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    (B, n), (S, K) = x.shape, noise.shape[1:]
    walked = _walked(x, None, lengths, size, bool(exact))
    out = x.new_empty(B, S, n)
    # one warp each, until there are more than multiprocessors
    lanes = 32 if B * S <= 4096 else 256
    arguments = x, lengths, walked.value, walked.rows, noise, out, B, n, walked.most, B * S, S, K
    launch(draw, (-(-B * S // lanes),), arguments, (bool(exact), lanes), lanes // 32)
    return out
