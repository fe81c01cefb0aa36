"""The linear chain on the CPU. Derivations: ../README.md.

Each instance is first tried in the scaled domain; what might not fit there is done again in the log domain.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.llvm import BLOCK, whole
from structmax.structures.linear_chain.kernel_numba.log import log_inside, log_outside
from structmax.structures.linear_chain.kernel_numba.scaled import (
    BROKEN,
    FINE,
    NARROW,
    flat_of,
    inside,
    outside_each,
    outside_shared,
    rows_of,
)
from structmax.structures.linear_chain.kernel_numba.sparse import sparsemap as sparsemap
from structmax.structures.linear_chain.kernel_numba.tangent import inside_tangent, log_tangent, outside_tangent
from structmax.structures.linear_chain.kernel_numba.walks import best_inside, mark_best, mark_draw, mark_log_draw

# --- slices of the batch -------------------------------------------------------------------------------------------
#
# unary (B, N, C) and pairwise (B, 1 or N − 1, C²), lengths (B,). The scaled domain says in `narrow` (B,) which
# instances it leaves to the log domain, which gets their indices as `left`.


@compiled()
def _scratch(unary):
    """What `inside` fills: α, factors, what reaches a position, e^pairwise, shifts, the smallest α."""
    n, size = unary.shape[1:]
    width = whole(size)
    peaks = np.empty(n, unary.dtype)
    alpha, factor = rows_of(n, width, peaks), rows_of(n, width, peaks)
    reach, lowest = rows_of(1, width, peaks)[0], rows_of(1, BLOCK, peaks)[0]
    return alpha, factor, reach, flat_of(size * size, peaks), peaks, lowest


@compiled()
def _clear(state, length, unary, pairwise):
    """NaN where parts count if a score is, else zeros; zeros behind the length."""
    what = np.nan if state == BROKEN else 0.0
    for t in range(len(unary)):
        for c in range(unary.shape[1]):
            unary[t, c] = what if t < length else 0
    for t in range(len(pairwise)):
        for k in range(pairwise.shape[1]):
            pairwise[t, k] = what if t < length - 1 else 0


@kernel()
def _value_scaled(start, stop, unary, pairwise, lengths, value, narrow):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    for b in range(start, stop):
        u, w, length = unary[b], pairwise[b], lengths[b]
        state, value[b], _ = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, w[:0])
        narrow[b] = state == NARROW


@kernel()
def _value_log(start, stop, unary, pairwise, lengths, value, left):
    for b in left[start:stop]:
        _, value[b], _, _, _ = log_inside(unary[b], pairwise[b], lengths[b])


@kernel()
def _marginals_scaled(start, stop, unary, pairwise, lengths, value, d_unary, d_pairwise, narrow):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    for b in range(start, stop):
        u, w, length, d_u, d_w = unary[b], pairwise[b], lengths[b], d_unary[b], d_pairwise[b]
        kept = d_w[: len(w) if len(w) > 1 else 0]
        state, value[b], total = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, kept)
        narrow[b] = state == NARROW
        if state != FINE or length == 0:
            _clear(state, length, d_u, d_w)
        elif len(w) == 1:
            outside_shared(length, total, alpha, factor, matrix, d_u, d_w[0])
            d_u[length:] = 0
        else:
            outside_each(length, total, alpha, factor, matrix, d_u, d_w)
            d_u[length:], d_w[length - 1 :] = 0, 0


@kernel()
def _marginals_log(start, stop, unary, pairwise, lengths, value, d_unary, d_pairwise, left):
    for b in left[start:stop]:
        u, w, length, d_u, d_w = unary[b], pairwise[b], lengths[b], d_unary[b], d_pairwise[b]
        state, value[b], a, reach, share = log_inside(u, w, length)
        _clear(state, length, d_u, d_w)
        if state == FINE:
            log_outside(w, length, a, reach, share, d_u, d_w)


@kernel()
def _tangent_scaled(start, stop, unary, pairwise, t_unary, t_pairwise, lengths, d_unary, d_pairwise, narrow):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    alpha_t, slopes = rows_of(alpha.shape[0], alpha.shape[1], peaks), flat_of(pairwise.shape[2], peaks)
    for b in range(start, stop):
        u, w, length, d_u, d_w = unary[b], pairwise[b], lengths[b], d_unary[b], d_pairwise[b]
        state, _, _ = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, w[:0])
        narrow[b] = state == NARROW
        _clear(state, length, d_u, d_w)
        if state == FINE and length > 0:
            t_u, t_w = t_unary[b], t_pairwise[b]
            inside_tangent(w, length, alpha, factor, matrix, peaks, t_u, t_w, slopes, alpha_t)
            outside_tangent(w, length, alpha, factor, matrix, peaks, t_u, t_w, slopes, alpha_t, d_u, d_w)


@kernel()
def _tangent_log(start, stop, unary, pairwise, t_unary, t_pairwise, lengths, d_unary, d_pairwise, left):
    for b in left[start:stop]:
        w, length, d_u, d_w = pairwise[b], lengths[b], d_unary[b], d_pairwise[b]
        state, _, a, reach, share = log_inside(unary[b], w, length)
        _clear(state, length, d_u, d_w)
        if state == FINE:
            log_tangent(w, length, a, reach, share, t_unary[b], t_pairwise[b], d_u, d_w)


@kernel()
def _argmax(start, stop, unary, pairwise, lengths, y_unary, y_pairwise):
    best, _, reach, matrix, _, _ = _scratch(unary)
    for b in range(start, stop):
        u, w, length, y_u, y_w = unary[b], pairwise[b], lengths[b], y_unary[b], y_pairwise[b]
        state = best_inside(u, w, length, best, reach, matrix)
        if state == FINE:
            mark_best(w, length, best, y_u, y_w)
        elif state == BROKEN:
            _clear(state, length, y_u, y_w)


@kernel()
def _sample_scaled(start, stop, unary, pairwise, lengths, noise, y_unary, y_pairwise, narrow):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    weights = np.empty(unary.shape[2], unary.dtype)
    for b in range(start, stop):
        u, w, length = unary[b], pairwise[b], lengths[b]
        state, _, _ = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, w[:0])
        narrow[b] = state == NARROW
        for s in range(noise.shape[1]):
            if state == FINE:
                mark_draw(w, length, noise[b, s], alpha, matrix, peaks, weights, y_unary[b, s], y_pairwise[b, s])
            elif state == BROKEN:
                _clear(state, length, y_unary[b, s], y_pairwise[b, s])


@kernel()
def _sample_log(start, stop, unary, pairwise, lengths, noise, y_unary, y_pairwise, left):
    weights = np.empty(unary.shape[2], unary.dtype)
    for b in left[start:stop]:
        w, length = pairwise[b], lengths[b]
        state, _, a, reach, _ = log_inside(unary[b], w, length)
        for s in range(noise.shape[1]):
            if state == FINE:
                mark_log_draw(w, length, noise[b, s], a, reach, weights, y_unary[b, s], y_pairwise[b, s])
            elif state == BROKEN:
                _clear(state, length, y_unary[b, s], y_pairwise[b, s])


# --- the questions -------------------------------------------------------------------------------------------------


def _in_both_domains(scaled: Any, log: Any, rows: int, work: int, *arrays: np.ndarray) -> None:
    """All instances in the scaled domain, then those it leaves in the log domain, compiled when first needed."""
    narrow = np.empty(rows, np.bool_)
    over_rows(scaled, rows, work, *arrays, narrow)
    # bytes are searched in a fraction of the time that `any` takes over few
    if 1 in narrow.tobytes():
        left = np.flatnonzero(narrow)
        over_rows(log, left.size, 4 * work * left.size // rows, *arrays, left)


def _flat(matrices: np.ndarray, samples: int = 0) -> np.ndarray:
    """(B, …, C, C) or (B, …, N − 1, C, C) as (B, …, 1 or N − 1, C²), where `…` are dimensions of draws."""
    *batch, rows, columns = matrices.shape
    return matrices.reshape(*batch, *(() if matrices.ndim == 4 + samples else (1,)), rows * columns)


def _zeros(like: Tensor, *draws: int) -> Tensor:
    """Zeros (B, *draws, …), fresh from the system where they are many: pages that nobody marks cost nothing."""
    return torch.from_numpy(np.zeros((len(like), *draws, *like.shape[1:]), like.numpy().dtype))


def log_partition(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> Tensor:
    """log Z: (B,)."""
    u = unary.numpy()
    value = np.empty(len(u), u.dtype)
    arrays = u, _flat(pairwise.numpy()), lengths.numpy(), value
    _in_both_domains(_value_scaled, _value_log, len(u), u.size * u.shape[2], *arrays)
    return torch.from_numpy(value)


def log_partition_and_marginals(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z: (B,), and its gradient."""
    u, w = unary.numpy(), pairwise.numpy()
    value, d_u, d_w = np.empty(len(u), u.dtype), np.empty(u.shape, u.dtype), np.empty(w.shape, w.dtype)
    arrays = u, _flat(w), lengths.numpy(), value, d_u, _flat(d_w)
    _in_both_domains(_marginals_scaled, _marginals_log, len(u), u.size * u.shape[2], *arrays)
    return torch.from_numpy(value), torch.from_numpy(d_u), torch.from_numpy(d_w)


def marginals_jvp(
    unary: Tensor, pairwise: Tensor, t_unary: Tensor, t_pairwise: Tensor, *, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The Hessian of log Z times the tangent."""
    u, w = unary.numpy(), pairwise.numpy()
    d_u, d_w = np.empty(u.shape, u.dtype), np.empty(w.shape, w.dtype)
    arrays = u, _flat(w), t_unary.numpy(), _flat(t_pairwise.numpy()), lengths.numpy(), d_u, _flat(d_w)
    _in_both_domains(_tangent_scaled, _tangent_log, len(u), u.size * u.shape[2], *arrays)
    return torch.from_numpy(d_u), torch.from_numpy(d_w)


def argmax(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One best structure."""
    y_unary, y_pairwise = _zeros(unary), _zeros(pairwise)
    arrays = unary.numpy(), _flat(pairwise.numpy()), lengths.numpy(), y_unary.numpy(), _flat(y_pairwise.numpy())
    over_rows(_argmax, len(unary), unary.numel() * unary.shape[2], *arrays)
    return y_unary, y_pairwise


def sample(unary: Tensor, pairwise: Tensor, *, noise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (B, S, …): noise[b, s, t] chooses label number t from the end."""
    draws = noise.shape[1]
    y_unary, y_pairwise = _zeros(unary, draws), _zeros(pairwise, draws)
    scores = unary.numpy(), _flat(pairwise.numpy()), lengths.numpy(), noise.numpy()
    arrays = *scores, y_unary.numpy(), _flat(y_pairwise.numpy(), 1)
    _in_both_domains(_sample_scaled, _sample_log, len(unary), unary.numel() * (unary.shape[2] + draws), *arrays)
    return y_unary, y_pairwise
