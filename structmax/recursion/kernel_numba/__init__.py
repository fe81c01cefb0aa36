"""Every question, asked of any ordered hypergraph, on the CPU. The twin in plain torch is reference.py.

Every function takes scores `x` (B, P) and, in `graph`, `goal` (B,) int64, whose derivations are the members, and the
hyperedges `first` (V + 1,), `tails` (E, T) and `parts` (E, Q), int32, −1 for none: the edges of node v are first[v] …
first[v + 1] − 1, and tails come before their head. Parts are counted: a derivation that uses one twice has a 2 there.
An instance with NaN or +inf among its scores answers NaN throughout; one without a derivation answers −inf and zeros.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from structmax.numerics.kernel_numba import over_rows
from structmax.numerics.kernel_numba.active_set_batch import solve_rows
from structmax.recursion import checks
from structmax.recursion.kernel_numba.best import max_marginals_rows, topk_rows
from structmax.recursion.kernel_numba.checkpoints import checkpointed_rows
from structmax.recursion.kernel_numba.noisy import noisy_walk_rows, pullback_rows
from structmax.recursion.kernel_numba.passes import counts_jvp_rows, counts_rows
from structmax.recursion.kernel_numba.sparse import most_parts, sparsemap_rows
from structmax.recursion.kernel_numba.walks import (
    log_prob_rows,
    sample_rows,
    sample_without_replacement_rows,
)

# An edge takes about as long as this many elements of a plain array.
VISITS = 8


def _ask(kernel: Callable[..., None], graph: dict[str, Tensor], inputs: tuple[Any, ...], *outputs: Tensor) -> Any:
    """Fills the outputs, slice by slice of the batch, and returns them."""
    goal, tails = graph["goal"], graph["tails"]
    arguments = (*inputs, goal, graph["first"], tails, graph["parts"], *outputs)
    arrays = (a.contiguous().numpy() if isinstance(a, Tensor) else a for a in arguments)
    over_rows(kernel, len(goal), len(goal) * len(tails) * VISITS, *arrays)
    return outputs


def _nothing(x: Tensor) -> Tensor:
    """No rows: nothing is required, or no gradient is asked for."""
    return x[:0]


def _value(x: Tensor, required: Tensor, alpha: float, gamma: float, graph: dict[str, Tensor]) -> Tensor:
    value, _ = _ask(counts_rows, graph, (x, required, alpha, gamma), x.new_empty(len(x)), _nothing(x))
    return value


def _counts(x: Tensor, required: Tensor, alpha: float, gamma: float, graph: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return _ask(counts_rows, graph, (x, required, alpha, gamma), x.new_empty(len(x)), x.new_empty(x.shape))


def _counts_jvp(
    x: Tensor, required: Tensor, tangent: Tensor, alpha: float, gamma: float, graph: dict[str, Tensor]
) -> Tensor:
    (parts,) = _ask(counts_jvp_rows, graph, (x, required, tangent, alpha, gamma), x.new_empty(x.shape))
    return parts


def _sample(x: Tensor, noise: Tensor, alpha: float, gamma: float, graph: dict[str, Tensor]) -> Tensor:
    out = x.new_empty(*noise.shape[:2], x.shape[1])
    (parts,) = _ask(sample_rows, graph, (x, noise, alpha, gamma), out)
    return parts


def _topk(x: Tensor, k: int, alpha: float, gamma: float, graph: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return _ask(topk_rows, graph, (x, k, alpha, gamma), x.new_empty(len(x), k), x.new_empty(len(x), k, x.shape[1]))


# --- the distribution exp⟨x, y⟩ ------------------------------------------------------------------------------------


def log_partition(x: Tensor, **graph: Tensor) -> Tensor:
    """log Σ exp⟨x, y⟩ over the members: (B,)."""
    return _value(x, _nothing(x), 1.0, 1.0, graph)


def log_partition_and_marginals(x: Tensor, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and its gradient, the expected number of uses of each part: (B,), (B, P)."""
    return _counts(x, _nothing(x), 1.0, 1.0, graph)


def marginals_jvp(x: Tensor, tangent: Tensor, **graph: Tensor) -> Tensor:
    """The Hessian of the log-partition times the tangent: (B, P)."""
    return _counts_jvp(x, _nothing(x), tangent, 1.0, 1.0, graph)


def sample(x: Tensor, noise: Tensor, **graph: Tensor) -> Tensor:
    """Members drawn with noise (B, S, K): (B, S, P)."""
    return _sample(x, noise, 1.0, 1.0, graph)


def sample_without_replacement(x: Tensor, noise: Tensor, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """Members drawn one after the other among those not yet drawn, and their log-probabilities: (B, S, P), (B, S)."""
    parts, log_prob = x.new_empty(*noise.shape[:2], x.shape[1]), x.new_empty(noise.shape[:2])
    return _ask(sample_without_replacement_rows, graph, (x, noise), parts, log_prob)


# --- that distribution, given parts that must be used --------------------------------------------------------------


def given_log_partition(x: Tensor, required: Tensor, **graph: Tensor) -> Tensor:
    """log Σ exp⟨x, y⟩ over the members with all parts where `required` (B, P) is 1: (B,).

    Parts that a member can use twice cannot be required.
    """
    return _value(x, required, 1.0, 1.0, graph)


def given_log_partition_and_marginals(x: Tensor, required: Tensor, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and its gradient: (B,), (B, P)."""
    return _counts(x, required, 1.0, 1.0, graph)


def given_marginals_jvp(x: Tensor, required: Tensor, tangent: Tensor, **graph: Tensor) -> Tensor:
    """Its Hessian times the tangent: (B, P)."""
    return _counts_jvp(x, required, tangent, 1.0, 1.0, graph)


# --- the best members ----------------------------------------------------------------------------------------------


def argmax(x: Tensor, **graph: Tensor) -> Tensor:
    """A best member, at each node by the first of equal edges: (B, P)."""
    return _counts(x, _nothing(x), 1.0, 0.0, graph)[1]


def topk(x: Tensor, *, k: int, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """The k best members, best first, and −inf and zeros past the last: (B, k), (B, k, P)."""
    return _topk(x, k, 1.0, 0.0, graph)


def max_marginals(x: Tensor, **graph: Tensor) -> Tensor:
    """The score of the best member with the part, −inf if there is none: (B, P)."""
    (parts,) = _ask(max_marginals_rows, graph, (x,), x.new_empty(x.shape))
    return parts


def sparsemap(
    x: Tensor, *, regularised: Tensor, start: Tensor, max_iter: int, tol: float, **graph: Tensor
) -> tuple[Tensor, ...]:
    """The best mean of members under ⟨x, μ⟩ − ½‖μ_R‖², as a mixture of few."""
    first, tails, parts = (graph[name].numpy() for name in ("first", "tails", "parts"))
    arrays = x.numpy(), graph["goal"].numpy(), first, tails, parts
    longest = most_parts((first, tails, parts))
    work = len(x) * len(tails) * VISITS
    return solve_rows(sparsemap_rows, arrays, longest, work, regularised, start, max_iter, tol)


# --- each maximum of the recursion smoothed by γ Ω_α ----------------------------------------------------------------


def smoothed(x: Tensor, *, alpha: float, gamma: float, **graph: Tensor) -> Tensor:
    """The value of the goal, where max over p of ⟨p, s⟩ − γ Ω_α(p) stands for the maximum at each node: (B,)."""
    return _value(x, _nothing(x), alpha, gamma, graph)


def smoothed_and_marginals(x: Tensor, *, alpha: float, gamma: float, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """The value and its gradient, the expected parts of the walk that takes edges with these p: (B,), (B, P)."""
    return _counts(x, _nothing(x), alpha, gamma, graph)


def smoothed_checkpointed(x: Tensor, *, alpha: float, gamma: float, **graph: Tensor) -> Tensor:
    """The same value with the numbers of few nodes held at a time: (B,)."""
    value, _ = _ask(checkpointed_rows, graph, (x, alpha, gamma), x.new_empty(len(x)), _nothing(x))
    return value


def smoothed_checkpointed_and_marginals(
    x: Tensor, *, alpha: float, gamma: float, **graph: Tensor
) -> tuple[Tensor, Tensor]:
    """The same value and gradient, for which blocks of nodes are computed twice: (B,), (B, P)."""
    return _ask(checkpointed_rows, graph, (x, alpha, gamma), x.new_empty(len(x)), x.new_empty(x.shape))


def smoothed_marginals_jvp(x: Tensor, tangent: Tensor, *, alpha: float, gamma: float, **graph: Tensor) -> Tensor:
    """Its Hessian times the tangent: (B, P)."""
    return _counts_jvp(x, _nothing(x), tangent, alpha, gamma, graph)


def smoothed_sample(x: Tensor, noise: Tensor, *, alpha: float, gamma: float, **graph: Tensor) -> Tensor:
    """Members drawn by that walk with noise (B, S, K): (B, S, P)."""
    return _sample(x, noise, alpha, gamma, graph)


def smoothed_topk(x: Tensor, *, k: int, alpha: float, gamma: float, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probabilities of its k most probable walks, and their members: (B, k), (B, k, P)."""
    return _topk(x, k, alpha, gamma, graph)


def smoothed_log_prob(x: Tensor, y: Tensor, *, alpha: float, gamma: float, **graph: Tensor) -> Tensor:
    """The log-probability that the walk yields the member y (B, P), −inf if it cannot: (B,)."""
    inputs = (x, y, x.new_empty(0), alpha, gamma)
    log_prob, _ = _ask(log_prob_rows, graph, inputs, x.new_empty(len(x)), _nothing(x))
    return log_prob


def smoothed_log_prob_pullback(
    x: Tensor, y: Tensor, d_value: Tensor, *, alpha: float, gamma: float, **graph: Tensor
) -> Tensor:
    """Its gradient for x, times d_value (B,); 0 where the walk cannot yield y: (B, P)."""
    inputs = (x, y, d_value, alpha, gamma)
    _, d_x = _ask(log_prob_rows, graph, inputs, x.new_empty(len(x)), x.new_empty(x.shape))
    return d_x


# --- a walk by noisy edges -----------------------------------------------------------------------------------------


def noisy_walk(x: Tensor, *, gumbel: Tensor, gamma: float, **graph: Tensor) -> Tensor:
    """The parts of the walk that takes the best edges with noise (B, E), or expected ones if γ > 0: (B, P)."""
    checks.noise_of_edges(gumbel, x, graph["tails"])
    (parts,) = _ask(noisy_walk_rows, graph, (x, gumbel, gamma), x.new_empty(x.shape))
    return parts


def noisy_walk_pullback(x: Tensor, d_parts: Tensor, *, gumbel: Tensor, gamma: float, **graph: Tensor) -> Tensor:
    """The pullback of the expected ones, which are not read where they cannot be: (B, P)."""
    checks.noise_of_edges(gumbel, x, graph["tails"])
    (d_x,) = _ask(pullback_rows, graph, (x, d_parts, gumbel, gamma), x.new_empty(x.shape))
    return d_x
