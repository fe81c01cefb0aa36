"""Connectionist temporal classification in Triton, in the log domain. Derivations: ../README.md.

A program walks over the frames of an instance with the values of all its states in registers; the scores of a frame are
loaded some frames ahead. Posteriors take a walk back of the masses, then one launch that adds them up by symbols for
all frames at once. Only scores of symbols that are said are read. Memory beyond input and output: O(B T L).
"""

from typing import Any

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.blanks import fill
from structmax.numerics.kernel_triton.paths import trace
from structmax.structures.ctc.kernel_triton.frames import push, walk
from structmax.structures.ctc.kernel_triton.outside import flow, scatter
from structmax.structures.ctc.kernel_triton.walks import mark, point

MOST_LABELS = 4095


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    labels = fields["labels"].shape[-1]
    return f"{labels} labels are more than {MOST_LABELS}" if labels > MOST_LABELS else None


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _wide(scores: Tensor) -> torch.dtype:
    return torch.promote_types(scores.dtype, torch.float32)


def _span(labels: Tensor) -> tuple[int, int, int]:
    """L, the power of two that holds the places of labels and blanks, and warps."""
    L = labels.shape[1]
    span = _power(L + 1)
    return L, span, max(1, min(8, span // 128))


def _charts(scores: Tensor, labels: Tensor) -> Tensor:
    return torch.empty(*scores.shape[:2], 2, labels.shape[1] + 1, dtype=torch.float64, device=scores.device)


def _walk(
    scores: Tensor,
    labels: Tensor,
    label_lengths: Tensor,
    lengths: Tensor,
    blank: int,
    best: bool = False,
    chart: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The value (B,), and the values of all states, if wanted."""
    B, T, V = scores.shape
    L, span, warps = _span(labels)
    value = torch.empty(B, dtype=_wide(scores), device=scores.device)
    alpha = _charts(scores, labels) if chart else None
    arguments = scores, labels, label_lengths, lengths, value, alpha, T, V, L, blank
    launch(walk, (B,), arguments, (best, chart, value.dtype == torch.float64, span, 4), warps)
    return value, alpha


def log_partition(scores: Tensor, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """log Σ exp over all strings: (B,)."""
    return _walk(scores, labels, label_lengths, lengths, blank, chart=False)[0]


def log_partition_and_marginals(
    scores: Tensor, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """The same, and the posteriors of the symbols of each frame."""
    return _posteriors(scores, None, labels, label_lengths, lengths, blank)


def marginals_jvp(
    scores: Tensor, tangent: Tensor, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int
) -> Tensor:
    """The Hessian of log Z times the tangent."""
    return _posteriors(scores, tangent, labels, label_lengths, lengths, blank)[1]


def _posteriors(
    scores: Tensor, tangent: Tensor | None, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """The value, and posteriors or their derivatives along a tangent."""
    B, T, V = scores.shape
    L, span, warps = _span(labels)
    value, alpha = _walk(scores, labels, label_lengths, lengths, blank)
    double = value.dtype == torch.float64
    given = labels, label_lengths, lengths
    alpha_t = arrived = None
    if tangent is not None:
        alpha_t, arrived = _charts(scores, labels), _charts(scores, labels)
        launch(push, (B,), (tangent, *given, alpha, alpha_t, arrived, T, V, L, blank), (double, span), warps)
    label_mass = torch.empty(B, T, L + 1, dtype=value.dtype, device=scores.device)
    blank_mass = torch.empty(B, T, dtype=value.dtype, device=scores.device)
    arguments = *given, value, alpha, alpha_t, arrived, label_mass, blank_mass, T, L
    launch(flow, (B,), arguments, (tangent is not None, double, span), warps)
    out = torch.empty_like(scores)
    fill(out.unsqueeze(1), lengths, value, T, V)
    arguments = *given, value, label_mass, blank_mass, out, T, V, L, blank
    chunk = max(1, min(span, 2048 // span))
    launch(scatter, (B * T,), arguments, (span, chunk), max(1, min(8, span * chunk // 256)))
    return value, out


def argmax(scores: Tensor, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """One best string."""
    return _strings(scores, None, labels, label_lengths, lengths, blank)[:, 0]


def sample(scores: Tensor, noise: Tensor, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """Draws (B, S, …): noise[b, s, t] chooses state number t from the end."""
    return _strings(scores, noise, labels, label_lengths, lengths, blank)


def _strings(
    scores: Tensor, noise: Tensor | None, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int
) -> Tensor:
    """The best string, or draws by noise: (B, S, T, V)."""
    B, T, V = scores.shape
    L, span, warps = _span(labels)
    S, K = (1, 0) if noise is None else noise.shape[1:]
    value, alpha = _walk(scores, labels, label_lengths, lengths, blank, best=noise is None)
    states = 2 * (L + 1)
    pointer = torch.empty(B, S, T, states, dtype=torch.int32, device=scores.device)
    state = torch.empty(B, S, T, dtype=torch.int32, device=scores.device)
    most = _power(max(1, S))
    together = max(1, min(most, 2048 // span))
    constants = noise is not None, value.dtype == torch.float64, span, together
    arguments = labels, label_lengths, lengths, noise, alpha, pointer, T, S, K, L
    launch(point, (B * T,), arguments, constants, max(warps, min(4, together * span // 256)))
    together = max(1, min(most, 4096 // _power(states)))
    blocks = -(-S // together)
    launch(trace, (B * blocks,), (pointer, lengths, state, T, S, states, blocks), (_power(states), together, 8), 1)
    out = torch.empty(B, S, T, V, dtype=scores.dtype, device=scores.device)
    block = min(1024, _power(V))
    rows, count = max(1, 1024 // block), B * S * T
    arguments = labels, value, state, out, S, T, V, L, count, blank
    launch(mark, (-(-count // rows), -(-V // block)), arguments, (rows, block))
    return out
