"""The linear chain on the CPU. Derivations: README.md in this folder.

Each instance is first tried in the scaled domain; what might not fit there is done again in the log domain.
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, over_rows
from structmax.numerics.kernel_numba_vector import BLOCK
from structmax.structures.linear_chain.kernel_numba_log import log_inside, log_outside, log_scratch
from structmax.structures.linear_chain.kernel_numba_row import whole
from structmax.structures.linear_chain.kernel_numba_scaled import (
    BROKEN,
    FINE,
    NARROW,
    flat_of,
    inside,
    outside_each,
    outside_shared,
    rows_of,
)
from structmax.structures.linear_chain.kernel_numba_tangent import inside_tangent, log_tangent, outside_tangent
from structmax.structures.linear_chain.kernel_numba_walk import best_inside, mark_best, mark_draw, mark_log_draw

# --- slices of the batch -------------------------------------------------------------------------------------------
#
# unary (B, N, C) and pairwise (B, 1 or N − 1, C²), lengths (B,)


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
def _clear(length, unary, pairwise, what):
    """Writes `what` where parts count, and zeros behind the length."""
    for t in range(len(unary)):
        for c in range(unary.shape[1]):
            unary[t, c] = what if t < length else 0
    for t in range(len(pairwise)):
        for k in range(pairwise.shape[1]):
            pairwise[t, k] = what if t < length - 1 else 0


@compiled()
def _log_partition(start, stop, unary, pairwise, lengths, value):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    for b in range(start, stop):
        u, w, length = unary[b], pairwise[b], lengths[b]
        state, value[b] = FINE, 0
        if length > 0:
            state, value[b], _ = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, w[:0])
        if state == NARROW:
            a, log_reach = log_scratch(u)
            _, value[b] = log_inside(u, w, length, a, log_reach)


@compiled()
def _marginals(start, stop, unary, pairwise, lengths, value, d_unary, d_pairwise):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    for b in range(start, stop):
        u, w, length, d_u, d_w = unary[b], pairwise[b], lengths[b], d_unary[b], d_pairwise[b]
        state, value[b], total = FINE, 0, 0.0
        if length > 0:
            kept = d_w[: len(w) if len(w) > 1 else 0]
            state, value[b], total = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, kept)
        if state == FINE and length > 0:
            if len(w) == 1:
                outside_shared(length, total, alpha, factor, matrix, d_u, d_w[0])
            else:
                outside_each(length, total, alpha, factor, matrix, d_u, d_w)
            d_u[length:], d_w[length - 1 :] = 0, 0
            continue
        _clear(length, d_u, d_w, np.nan if state == BROKEN else 0.0)
        if state == NARROW:
            a, log_reach = log_scratch(u)
            state, value[b] = log_inside(u, w, length, a, log_reach)
            if state == FINE:
                log_outside(w, length, a, log_reach, d_u, d_w)
            elif state == BROKEN:
                _clear(length, d_u, d_w, np.nan)


@compiled()
def _tangent(start, stop, unary, pairwise, t_unary, t_pairwise, lengths, d_unary, d_pairwise):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    alpha_t, slopes = rows_of(alpha.shape[0], alpha.shape[1], peaks), flat_of(pairwise.shape[2], peaks)
    for b in range(start, stop):
        u, w, length, d_u, d_w = unary[b], pairwise[b], lengths[b], d_unary[b], d_pairwise[b]
        t_u, t_w = t_unary[b], t_pairwise[b]
        _clear(length, d_u, d_w, 0.0)
        if length == 0:
            continue
        state, _, _ = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, w[:0])
        if state == FINE:
            inside_tangent(w, length, alpha, factor, matrix, peaks, t_u, t_w, slopes, alpha_t)
            outside_tangent(w, length, alpha, factor, matrix, peaks, t_u, t_w, slopes, alpha_t, d_u, d_w)
        elif state == NARROW:
            a, log_reach = log_scratch(u)
            state, _ = log_inside(u, w, length, a, log_reach)
            if state == FINE:
                log_tangent(w, length, a, log_reach, t_u, t_w, d_u, d_w)
        if state == BROKEN:
            _clear(length, d_u, d_w, np.nan)


@compiled()
def _argmax(start, stop, unary, pairwise, lengths, y_unary, y_pairwise):
    best, _, reach, matrix, _, _ = _scratch(unary)
    for b in range(start, stop):
        u, w, length, y_u, y_w = unary[b], pairwise[b], lengths[b], y_unary[b], y_pairwise[b]
        state = best_inside(u, w, length, best, reach, matrix)
        if state == FINE:
            mark_best(w, length, best, y_u, y_w)
        elif state == BROKEN:
            _clear(length, y_u, y_w, np.nan)


@compiled()
def _sample(start, stop, unary, pairwise, lengths, noise, y_unary, y_pairwise):
    alpha, factor, reach, matrix, peaks, lowest = _scratch(unary)
    weights = np.empty(unary.shape[2], unary.dtype)
    for b in range(start, stop):
        u, w, length, y_u, y_w = unary[b], pairwise[b], lengths[b], y_unary[b], y_pairwise[b]
        if length == 0:
            continue
        state, _, _ = inside(u, w, length, alpha, factor, reach, matrix, peaks, lowest, w[:0])
        if state == FINE:
            for s in range(noise.shape[1]):
                mark_draw(w, length, noise[b, s], alpha, matrix, peaks, weights, y_u[s], y_w[s])
        elif state == NARROW:
            a, log_reach = log_scratch(u)
            state, _ = log_inside(u, w, length, a, log_reach)
            if state == FINE:
                for s in range(noise.shape[1]):
                    mark_log_draw(w, length, noise[b, s], a, log_reach, weights, y_u[s], y_w[s])
        if state == BROKEN:
            for s in range(noise.shape[1]):
                _clear(length, y_u[s], y_w[s], np.nan)


# --- the questions -------------------------------------------------------------------------------------------------


def _flat(pairwise: Tensor, samples: int = 0) -> np.ndarray:
    """(B, …, C, C) or (B, …, N − 1, C, C) as (B, …, 1 or N − 1, C²), where `…` are dimensions of draws."""
    matrices = pairwise if pairwise.dim() == 4 + samples else pairwise.unsqueeze(-3)
    return matrices.flatten(-2).numpy()


def _zeros(like: Tensor, *draws: int) -> Tensor:
    """Zeros (B, *draws, …), fresh from the system where they are many: pages that nobody marks cost nothing."""
    return torch.from_numpy(np.zeros((len(like), *draws, *like.shape[1:]), like.numpy().dtype))


def log_partition(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> Tensor:
    """log Z: (B,)."""
    value = unary.new_empty(len(unary))
    arrays = unary.numpy(), _flat(pairwise), lengths.numpy(), value.numpy()
    over_rows(_log_partition, len(unary), unary.numel() * unary.shape[2], *arrays)
    return value


def log_partition_and_marginals(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log Z: (B,), and its gradient."""
    value, d_unary, d_pairwise = unary.new_empty(len(unary)), torch.empty_like(unary), torch.empty_like(pairwise)
    arrays = unary.numpy(), _flat(pairwise), lengths.numpy(), value.numpy(), d_unary.numpy(), _flat(d_pairwise)
    over_rows(_marginals, len(unary), unary.numel() * unary.shape[2], *arrays)
    return value, d_unary, d_pairwise


def marginals_jvp(
    unary: Tensor, pairwise: Tensor, t_unary: Tensor, t_pairwise: Tensor, *, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The Hessian of log Z times the tangent."""
    d_unary, d_pairwise = torch.empty_like(unary), torch.empty_like(pairwise)
    scores = unary.numpy(), _flat(pairwise), t_unary.numpy(), _flat(t_pairwise)
    arrays = *scores, lengths.numpy(), d_unary.numpy(), _flat(d_pairwise)
    over_rows(_tangent, len(unary), unary.numel() * unary.shape[2], *arrays)
    return d_unary, d_pairwise


def argmax(unary: Tensor, pairwise: Tensor, *, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One best structure."""
    y_unary, y_pairwise = _zeros(unary), _zeros(pairwise)
    arrays = unary.numpy(), _flat(pairwise), lengths.numpy(), y_unary.numpy(), _flat(y_pairwise)
    over_rows(_argmax, len(unary), unary.numel() * unary.shape[2], *arrays)
    return y_unary, y_pairwise


def sample(unary: Tensor, pairwise: Tensor, *, noise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (B, S, …): noise[b, s, t] chooses label number t from the end."""
    draws = noise.shape[1]
    y_unary, y_pairwise = _zeros(unary, draws), _zeros(pairwise, draws)
    scores = unary.numpy(), _flat(pairwise), lengths.numpy(), noise.numpy()
    arrays = *scores, y_unary.numpy(), _flat(y_pairwise, 1)
    over_rows(_sample, len(unary), unary.numel() * (unary.shape[2] + draws), *arrays)
    return y_unary, y_pairwise
