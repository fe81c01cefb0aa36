"""The simplex in plain torch: slow but correct, on any device. Derivations: README.md in this folder.

Every function takes scores flattened to (B, n), with −inf at forbidden entries, and `alpha` as a number or as a (B,)
tensor. A row without a feasible entry has value −inf and all-zero probabilities.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.contract import returns
from structmax.recursion.edges import Hyperedges, Recursion

BISECTIONS = 200
# Stands in for −inf where a sorted row is summed; far below any support, which ends 1/(α−1) under the maximum.
FLOOR = -1e6
# The target of a value without a target term: no class, and no index that people ignore.
NOTHING = -(2**62)

# A few operators of torch: on a GPU they are faster than copies to the host and back.
ON_DEVICE = (
    "entmax",
    "entmax_pullback",
    "entmax_value",
    "entmax_gradient",
    "entmax_total",
    "entmax_total_gradient",
    "entmax_part_gradient",
    "entmax_sums",
    "entmax_support",
    "layer_loss",
    "layer_loss_pullback",
    "attention",
    "attention_pullback",
    "normmax",
    "argmax",
    "topk",
    "max_marginals",
    "sample",
)


def _q_exp(t: Tensor, alpha: float | Tensor) -> Tensor:
    """[1 + (α−1) t]₊^(1/(α−1)), the Tsallis exponential; its limit at α = 1 is exp(t). −inf maps to 0."""
    e = _number(alpha, t) - 1
    limit = e == 0
    safe = torch.where(limit, 1.0, e)
    base = 1 + e * t
    inside = base > 0
    power = torch.exp(torch.log1p(torch.where(inside & ~limit, e * t, 0.0)) / safe)
    return torch.where(limit, torch.exp(t), torch.where(inside, power, 0.0))


def _number(alpha: float | Tensor, like: Tensor) -> Tensor:
    """In the dtype and on the device of another tensor; a number is written there, not copied from the host."""
    if isinstance(alpha, Tensor):
        return alpha.to(like)
    return torch.full((), alpha, dtype=like.dtype, device=like.device)


def _column(alpha: float | Tensor) -> float | Tensor:
    return alpha.unsqueeze(-1) if isinstance(alpha, Tensor) else alpha


def _threshold_sparsemax(z: Tensor) -> Tensor:
    order = z.sort(-1, descending=True).values.clamp_min(FLOOR)
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    total = order.cumsum(-1) - 1
    size = (rank * order > total).sum(-1, keepdim=True)
    return total.gather(-1, size - 1) / size + 1


def _threshold_entmax15(z: Tensor) -> Tensor:
    order = (z / 2).sort(-1, descending=True).values.clamp_min(FLOOR)
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = order.cumsum(-1) / rank
    spread = (order**2).cumsum(-1) - rank * mean**2
    root = mean - ((1 - spread) / rank).clamp_min(0).sqrt()
    size = (root <= order).sum(-1, keepdim=True)
    return 2 * root.gather(-1, size - 1) + 2


def _threshold_bisect(z: Tensor, alpha: float | Tensor) -> Tensor:
    e = _number(alpha, z) - 1
    low = z.new_zeros(*z.shape[:-1], 1)
    # The peak has probability at least 1/n: τ ≤ −log_α(1/n).
    log_n = math.log(z.shape[-1])
    high = low + torch.where(e == 0, log_n, -torch.expm1(-e * log_n) / torch.where(e == 0, 1.0, e))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = _q_exp(z - middle, alpha).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def _steep(x: Tensor, anchor: Tensor, p_anchor: Tensor, e: Tensor) -> Tensor:
    """p = [p_a^(α−1) + (α−1)(x − a)]₊^(1/(α−1)), for the smallest supported score a and its probability p_a."""
    p = (p_anchor**e + e * (x - anchor)).clamp_min(0) ** (1 / e)
    return torch.where(x == anchor, p_anchor, torch.where(x > anchor, p, 0.0))


def _anchored(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """For α > 2: the smallest supported score a and its probability: both (B, 1).

    The exponent 1/(α−1) is below 1, so p has infinite slope where it vanishes and no threshold in x is fine enough:
    at α = 10 the neighbours of a float64 threshold differ by 0.02 in p. Measured from a, nothing is lost.
    """
    e = _number(alpha, x) - 1
    order = x.sort(-1, descending=True).values
    zero = x.new_zeros(*x.shape[:-1], 1)
    # Bisect for the last rank whose score, put at probability 0, leaves mass for itself.
    inside, outside = zero.long(), zero.long() + x.shape[-1]
    for _ in range(x.shape[-1].bit_length()):
        middle = (inside + outside) // 2
        fits = _steep(x, order.gather(-1, middle), zero, e).sum(-1, keepdim=True) < 1
        inside, outside = torch.where(fits, middle, inside), torch.where(fits, outside, middle)
    anchor = order.gather(-1, inside)
    low, high = zero, zero + 1
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = _steep(x, anchor, middle, e).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return anchor, (low + high) / 2


def _solve(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities (B, n) and the state (B, 2) from which `_recover` finds them again; both float64.

    Solved in float64 whatever the dtype: a sum over a long flat row costs float32 its last digits.
    """
    x, alpha = x.double(), alpha.double() if isinstance(alpha, Tensor) else alpha
    peak = x.amax(-1, keepdim=True)
    feasible = peak != -math.inf
    # A row with NaN or +inf is NaN throughout; until then it counts as tied.
    broken = ~(peak < math.inf)
    peak = torch.where(feasible, peak, 0.0)
    z = torch.where(feasible & ~broken, x - peak, 0.0)
    flat = isinstance(alpha, float) and alpha <= 2
    if flat and alpha == 1:
        tau = z.logsumexp(-1, keepdim=True)
    elif flat and alpha == 1.5:
        tau = _threshold_entmax15(z)
    elif flat and alpha == 2:
        tau = _threshold_sparsemax(z)
    else:
        tau = _threshold_bisect(z, _column(alpha))
    state = torch.cat([peak, tau], -1)
    if not flat:
        anchor, p_anchor = _anchored(x, _column(alpha))
        steep = _number(_column(alpha), x) > 2
        state = torch.where(steep, torch.cat([anchor, p_anchor], -1), state)
    p = torch.where(feasible, _recover(x, state, alpha), 0.0)
    return p.masked_fill(broken, math.nan), state.masked_fill(broken, math.nan)


def _recover(x: Tensor, state: Tensor, alpha: float | Tensor) -> Tensor:
    """p from (row maximum, τ) where α ≤ 2, from (smallest supported score, its probability) where α > 2."""
    alpha = _number(_column(alpha), x)
    origin, t = state[:, :1], state[:, 1:]
    steep = _steep(x, origin, t, torch.where(alpha > 2, alpha - 1, 1.0))
    return torch.where(alpha > 2, steep, _q_exp(x - origin - t, alpha))


@returns("parts")
def entmax(x: Tensor, alpha: float | Tensor) -> Tensor:
    """p = argmax over the simplex of ⟨p, x⟩ − Ω_α(p): (B, n)."""
    return _solve(x, alpha)[0].to(x.dtype)


@returns("parts")
def entmax_pullback(p: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support: (B, n).

    For α > 2 the smallest probability has by far the largest s: the mean is taken with s / max s, and that entry's
    product, where v − mean would cancel, is what makes the products sum to 0.
    """
    inside = p > 0
    exponent = 2 - _number(_column(alpha), p)
    log_s = exponent * torch.where(inside, p, 1.0).log()
    top = torch.where(inside, log_s, -math.inf).max(-1, keepdim=True)
    share = torch.where(inside, (log_s - torch.where(inside.any(-1, keepdim=True), top.values, 0.0)).exp(), 0.0)
    total = share.sum(-1, keepdim=True)
    mean = (share * v).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    s = log_s.exp().clamp_max(torch.finfo(p.dtype).max)
    product = torch.where(inside, s * (v - mean), 0.0)
    steep = exponent < 0
    rest = product.scatter(-1, top.indices, 0.0).sum(-1, keepdim=True)
    return torch.where(steep, product.scatter(-1, top.indices, -rest), product)


@returns("state", "state:2")
def entmax_value(x: Tensor, target: Tensor, alpha: float | Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Ω*_α(x) − x[target] per row: (B,), and the state of `_solve`: (B, 2).

    Without the second term where the target is NOTHING, 0 where it is `ignored`. A forbidden target costs +inf.
    Ω* = ⟨p, x⟩ − Ω_α(p) is summed as ⟨p, x − origin⟩, so that no large score cancels.
    """
    dtype = x.dtype
    p, state = _solve(x, alpha)
    x = x.double()
    feasible = (x != -math.inf).any(-1)
    a = _number(_column(alpha), x)
    # Ω_α(p) = Σ p (p^(α−1) − 1) / (α(α−1)), with limit Σ p log p at α = 1
    log_p = torch.where(p > 0, p, 1.0).log()
    y = (a - 1) * log_p
    omega = (p * log_p * torch.where(y == 0, 1.0, torch.expm1(y) / torch.where(y == 0, 1.0, y)) / a).sum(-1)
    origin = state[:, 0]
    z = torch.where(p == 0, 0.0, x - origin[:, None])
    value = (p * z).sum(-1) - omega
    safe = torch.where(target == ignored, 0, target).clamp_min(0)
    chosen = x.gather(-1, safe[:, None]).squeeze(-1) - origin
    with_target = torch.where(feasible, value - chosen, math.inf)
    without = torch.where(feasible, value + origin, -math.inf)
    value = torch.where(target == NOTHING, without, with_target)
    return torch.where(target == ignored, 0.0, value).to(dtype), state.to(dtype)


@returns("parts")
def entmax_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor, ignored: int
) -> Tensor:
    """d_value · (p − onehot(target)), with p recovered from `state`; the pullback of `entmax_value`: (B, n)."""
    feasible = (x != -math.inf).any(-1, keepdim=True)
    return torch.where(feasible, entmax_part_gradient(x, state, target, d_value, alpha, ignored), 0.0)


@returns("parts")
def entmax_part_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor, ignored: int
) -> Tensor:
    """`entmax_gradient` of a part of each row: its probabilities do not sum to 1, and all may be forbidden: (B, n)."""
    hit = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    gradient = d_value[:, None] * (_recover(x, state, alpha) - hit.to(x.dtype))
    return torch.where(((d_value != 0) & (target != ignored))[:, None], gradient, 0.0)


@returns("total", "state:2", "total")
def entmax_total(x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The values of all rows added up and divided by a number: scalars (), and between them the states: (B, 2).

    With `mean` the number is that of the rows whose target is not `ignored`, and 1 without.
    """
    value, state = entmax_value(x, target, alpha, ignored)
    count = (target != ignored).sum().to(value.dtype) if mean else value.new_ones(())
    return value.sum() / count, state, count


@returns("parts")
def entmax_total_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_total: Tensor, count: Tensor, alpha: float, ignored: int
) -> Tensor:
    """d_total / count · (p − onehot(target)); the pullback of `entmax_total`, which has found `count`: (B, n)."""
    return entmax_gradient(x, state, target, (d_total / count).expand(len(x)), alpha, ignored)


@returns("total", "parts")
def entmax_total_and_gradient(
    x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool
) -> tuple[Tensor, Tensor]:
    """`entmax_total` and its gradient: a scalar () and (B, n)."""
    total, state, count = entmax_total(x, target, alpha, ignored, mean)
    return total, entmax_total_gradient(x, state, target, torch.ones_like(total), count, alpha, ignored)


# Columns of a long row that are summed at a time: what is kept beside the scores is a few of these, not a few rows.
COLUMNS = 8192


@returns("state:3")
def entmax_sums(x: Tensor, state: Tensor, alpha: float) -> Tensor:
    """Σ p, Σ p^(2−α) and Σ p (x − origin) of the scores at a threshold that need not be their own: (B, 3), float64.

    For α ≤ 2, with the state (origin, τ): p = [1 + (α−1)(x − origin − τ)]₊^(1/(α−1)). A row may be spread over several
    tensors; the sums of its parts are its own.
    """
    origin, tau = state.double().unsqueeze(-1).unbind(1)
    total = torch.zeros(len(x), 3, dtype=torch.float64, device=x.device)
    for part in x.split(COLUMNS, -1):
        z = part.double() - origin
        p = _q_exp(z - tau, alpha)
        inside = p > 0
        slopes = torch.where(inside, torch.where(inside, p, 1.0) ** (2 - alpha), p)
        # 0 · −inf counts as 0
        scores = p * torch.where(inside, z, 0.0)
        total += torch.stack([p.sum(-1), slopes.sum(-1), scores.sum(-1)], -1)
    return total


@returns("value:int32", "state[most]:int32", "state[most]")
def entmax_support(x: Tensor, state: Tensor, alpha: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """How many entries of each row have a probability, which ones, and how large it is: (B,), (B, most), (B, most).

    For 1 < α ≤ 2 and, as `entmax_sums`, for a part of each row. The first `most` entries are listed; where there are
    more, the count only says so.
    """
    # a row that is NaN has all
    p = torch.where(state[:, 1:].isnan(), math.nan, _recover(x, state, alpha))
    inside = ~(p <= 0)
    place = inside.cumsum(-1)
    index = torch.zeros(len(x), most, dtype=torch.int32, device=x.device)
    listed = p.new_zeros(len(x), most)
    row, column = (inside & (place <= most)).nonzero(as_tuple=True)
    at = row, place[row, column] - 1
    index[at], listed[at] = column.int(), p[row, column]
    return inside.sum(-1, dtype=torch.int32), index, listed


@returns("state[rows]", "state[rows]", "state[rows]")
def layer_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, ignored: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`entmax_value` at α = 1 of the scores hidden weightᵀ + bias, and the two numbers of its state: (B, rows) each.

    Hidden states (B, rows, d), weights (B, n, d), biases (B, n) and targets (B, rows).
    """
    x = hidden @ weight.mT + bias.unsqueeze(1)
    value, state = entmax_value(x.flatten(0, 1), target.flatten(), 1.0, ignored)
    loss, peak, log_mass = (t.reshape(len(hidden), rows) for t in (value, *state.unbind(-1)))
    return loss, peak, log_mass


@returns("parts")
def layer_loss_pullback(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, peak: Tensor, log_mass: Tensor, d_loss: Tensor,
    ignored: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The cotangents of hidden states, weights and biases."""
    x = hidden @ weight.mT + bias.unsqueeze(1)
    state = torch.stack([peak.flatten(), log_mass.flatten()], -1)
    given = x.flatten(0, 1), state, target.flatten(), d_loss.flatten()
    d_x = entmax_gradient(*given, 1.0, ignored).reshape(x.shape)
    # a row that does not count may hold anything
    counted = hidden.masked_fill((target == ignored).unsqueeze(-1), 0.0)
    return d_x @ weight, d_x.mT @ counted, d_x.sum(1)


# ---------------------------------------------------------------- attention


@returns("parts", "parts", "state[rows]:float64", "state[rows]:float64", "state[tiles]:uint8")
def attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, scale: float, causal: bool, queries: int, keys: int,
    rows: int, tiles: int, mask: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Σ p v and Σ s v / Σ s with s = p^(2−α), (B, H, Q, D), maxima and thresholds (B, H Q), and a map of blocks.

    Queries (B, H, Q, D) read keys and values (B, H / group, K, D); `alpha` may be (H,). The map (B, tiles) says which
    tiles of `queries` have weights in which blocks of `keys`: a kernel's own matter, all ones here.
    """
    p, s, state = _attention_weights(q, k, alpha, scale, causal, mask)
    total = s.sum(-1, keepdim=True)
    shares = s / torch.where(total > 0, total, 1.0)
    out, mean = ((weights @ _for_heads(v, q).double()).to(q.dtype) for weights in (p, shares))
    peak, tau = (column.reshape(len(q), rows) for column in state.unbind(-1))
    return out, mean, peak.contiguous(), tau.contiguous(), torch.ones(len(q), tiles, dtype=torch.uint8, device=q.device)


@returns("parts", "state[rows]")
def attention_pullback(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, mean: Tensor, peak: Tensor, tau: Tensor, live: Tensor,
    alpha: float | Tensor, scale: float, causal: bool, queries: int, keys: int, rows: int, mask: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The cotangents of q, k and v, and those of the α of each row of weights: (B, H Q)."""
    p, s, _ = _attention_weights(q, k, alpha, scale, causal, mask)
    wide_k, wide_v, d_out = (_for_heads(t, q).double() for t in (k, v, d_out))
    centred = d_out @ wide_v.mT - (d_out * mean.double()).sum(-1, keepdim=True)
    d_x = s * centred * scale
    d_q, d_k, d_v = d_x @ wide_k, d_x.mT @ q.double(), p.mT @ d_out
    e = _number(alpha, p) - 1
    log_p = torch.where(p > 0, p, 1.0).log()
    y = e.reshape(-1, 1, 1) * log_p
    small = y.abs() < 1e-3
    safe = torch.where(small, 1.0, y)
    psi = torch.where(small, -1 / 2 + y / 6 - y**2 / 24, (-safe - torch.expm1(-safe)) / safe**2)
    d_alpha = (p * log_p**2 * psi * centred).sum(-1).reshape(len(q), rows)
    d_k, d_v = (d.unflatten(1, (k.shape[1], -1)).sum(2) for d in (d_k, d_v))
    return *(d.to(q.dtype) for d in (d_q, d_k, d_v)), d_alpha.to(torch.promote_types(q.dtype, torch.float32))


def _attention_weights(
    q: Tensor, k: Tensor, alpha: float | Tensor, scale: float, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """p and s = p^(2−α), (B, H, Q, K), and the state of `_solve`, (B, H, Q, 2)."""
    x = scale * (q.double() @ _for_heads(k, q).double().mT)
    if causal:
        x = x.masked_fill(~torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(), -math.inf)
    if mask is not None:
        x = x.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else x + mask
    per_row = alpha
    if isinstance(alpha, Tensor):
        per_row = alpha.reshape(-1, 1).expand(x.shape[:-1]).reshape(-1)
    p, state = (t.reshape(*x.shape[:-1], -1) for t in _solve(x.flatten(0, 2), per_row))
    exponent = 2 - (alpha.double().reshape(-1, 1, 1) if isinstance(alpha, Tensor) else alpha)
    return p, torch.where(p > 0, torch.where(p > 0, p, 1.0) ** exponent, 0.0), state


def _for_heads(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values for each head, where several heads share them."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    rows, state = x.sum(-1), x.new_zeros(len(x), 2)
    target = torch.zeros_like(rows, dtype=torch.int64)
    for alpha in (1.0, 1.25, 1.5, 2.0, torch.full_like(rows, 1.5)):
        yield "entmax", (x,), {"alpha": alpha}
        yield "entmax_pullback", (x, x), {"alpha": alpha}
        yield "entmax_value", (x, target), {"alpha": alpha, "ignored": -100}
        yield "entmax_gradient", (x, state, target, rows), {"alpha": alpha, "ignored": -100}
        yield "entmax_part_gradient", (x, state, target, rows), {"alpha": alpha, "ignored": -100}
        if not isinstance(alpha, Tensor):
            one = x.new_ones(())
            yield "entmax_total", (x, target), {"alpha": alpha, "ignored": -100, "mean": True}
            yield "entmax_total_gradient", (x, state, target, one, one), {"alpha": alpha, "ignored": -100}
            yield "entmax_total_and_gradient", (x, target), {"alpha": alpha, "ignored": -100, "mean": True}
    for alpha in (1.0, 1.25, 1.5, 2.0):
        yield "entmax_sums", (x, state), {"alpha": alpha}
    for alpha in (1.25, 1.5, 2.0):
        yield "entmax_support", (x, state), {"alpha": alpha, "most": 2}
    layer, numbers = (x.unsqueeze(1), x.unsqueeze(1), rows.unsqueeze(1)), (rows.unsqueeze(1),) * 3
    yield "layer_loss", (*layer, target.unsqueeze(1)), {"ignored": -100, "rows": 1}
    yield "layer_loss_pullback", (*layer, target.unsqueeze(1), *numbers), {"ignored": -100}
    yield "log_partition", (x,), {}
    yield "marginals", (x,), {}
    yield "marginals_jvp", (x, x), {}


# ---------------------------------------------------------------- the questions


@functools.lru_cache(maxsize=8)
def _choice(n: int) -> Hyperedges:
    """One node with n edges, each a leaf with its own part."""
    index = torch.arange(n).unsqueeze(1)
    return Hyperedges.of(torch.zeros(n, dtype=torch.int64), torch.full_like(index, -1), index, nodes=1)


def recursion(x: Tensor) -> Recursion:
    return Recursion(_choice(x.shape[1]), torch.zeros(len(x), dtype=torch.int64, device=x.device))


def log_partition(x: Tensor) -> Tensor:
    peak = x.detach().amax(-1, keepdim=True)
    peak = torch.where(peak == -math.inf, 0.0, peak)
    total = (x - peak).exp().sum(-1)
    # log of 1 where nothing is feasible, so that no gradient is 0/0
    return torch.where(total > 0, torch.where(total > 0, total, 1.0).log() + peak.squeeze(-1), -math.inf)


def marginals(x: Tensor) -> Tensor:
    return entmax(x, 1.0)


def marginals_jvp(x: Tensor, tangent: Tensor) -> Tensor:
    return entmax_pullback(entmax(x, 1.0), tangent, 1.0)


def project(x: Tensor) -> Tensor:
    return entmax(x, 2.0)


def project_jvp(point: Tensor, tangent: Tensor) -> Tensor:
    return entmax_pullback(point, tangent, 2.0)


def max_marginals(x: Tensor) -> Tensor:
    return x.clone()


def argmax(x: Tensor) -> Tensor:
    return topk(x, 1)[1].squeeze(1)


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    kept = min(k, x.shape[-1])
    values, index = x.topk(kept, -1)
    missing = k - kept
    values = torch.nn.functional.pad(values, (0, missing), value=-math.inf)
    index = torch.nn.functional.pad(index, (0, missing))
    parts = x.new_zeros(x.shape[0], k, x.shape[-1])
    # 1 where there is an entry; a NaN stays one
    chosen = torch.where(values.isnan(), values, (values > -math.inf).to(x.dtype))
    return values, parts.scatter_(-1, index.unsqueeze(-1), chosen.unsqueeze(-1))


def sample(x: Tensor, noise: Tensor) -> Tensor:
    """Inverts the cumulative distribution at noise (B, S, 1): the first entry whose cumulative mass exceeds it."""
    mass = marginals(x).cumsum(-1)
    total = mass[:, -1:].contiguous()
    index = torch.searchsorted(mass, noise.squeeze(-1) * total, right=True)
    # noise · total may round up to total: the last entry that has mass; NaN finds a place past the end
    index = torch.minimum(index, torch.searchsorted(mass, total)).clamp_max(x.shape[-1] - 1)
    parts = x.new_zeros(*index.shape, x.shape[-1])
    return parts.scatter_(-1, index.unsqueeze(-1), (total > 0).to(x.dtype).unsqueeze(-1).expand(*index.shape, 1))


# ---------------------------------------------------------------- the norm as regulariser


@returns("parts", "value")
def normmax(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """p = argmax over the simplex of ⟨p, x⟩ − ‖p‖_α, and its value τ: Σ [x − τ]₊^q = 1 with q = α/(α−1).

    Newton's method on ‖[x − τ]₊‖_q = 1, which is convex in τ: from max − 1 it rises to the root and never passes it.
    """
    alpha = _column(alpha)
    q = alpha / (alpha - 1)
    peak = x.amax(-1, keepdim=True)
    feasible = peak != -math.inf
    z = torch.where(feasible, x - torch.where(feasible, peak, 0.0), 0.0)
    tau = torch.full_like(peak, -1.0)
    for _ in range(BISECTIONS):
        u = (z - tau).clamp_min(0)
        norm = (u**q).sum(-1, keepdim=True) ** (1 / q)
        step = (norm - 1) * norm ** (q - 1) / (u ** (q - 1)).sum(-1, keepdim=True)
        moved = tau + step.clamp_min(0)
        if not bool((moved > tau).any()):
            break
        tau = moved
    w = (z - tau).clamp_min(0) ** (q - 1)
    p = torch.where(feasible, w / w.sum(-1, keepdim=True), 0.0)
    return p, torch.where(feasible, peak + tau, -math.inf).squeeze(-1)
