"""Mappings of scores to the simplex and its relatives, in extended precision, for rows (B, n)."""

import numpy as np

Array = np.ndarray
STEPS = 120


def _bisected(low: Array, high: Array, above: object) -> Array:
    """The threshold (B, 1) where `above`(τ) turns from True to False."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        up = above(middle)
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return (low + high) / 2


def _led(x: Array) -> Array:
    """Scores below the best of each row; −inf for a row that has none."""
    best = x.max(-1, keepdims=True)
    return x - np.where(np.isneginf(best), 0, best)


def entmax(x: Array, alpha: float) -> Array:
    """argmax over the simplex of ⟨p, x⟩ − Ω_α(p); zeros for a row of −inf."""
    z, e = _led(x.astype(np.longdouble)), np.longdouble(alpha) - 1

    def p(tau: Array) -> Array:
        if e == 0:
            return np.exp(z - tau)
        inside = np.maximum(1 + e * (z - tau), 0)
        return np.where(np.isneginf(z), 0, np.where(inside > 0, inside, 1) ** (1 / e) * (inside > 0))

    n = x.shape[-1]
    high = np.log(np.longdouble(n)) if e == 0 else (1 - np.longdouble(n) ** -e) / e
    low = np.zeros((len(x), 1), dtype=np.longdouble)
    found = p(_bisected(low, low + high, lambda tau: p(tau).sum(-1, keepdims=True) >= 1))
    return _normalised(found)


def normmax(x: Array, alpha: float) -> Array:
    """argmax over the simplex of ⟨p, x⟩ − ‖p‖_α."""
    z, q = _led(x.astype(np.longdouble)), np.longdouble(alpha / (alpha - 1))
    low = np.full((len(x), 1), -1, dtype=np.longdouble)
    tau = _bisected(low, low + 1, lambda t: (np.maximum(z - t, 0) ** q).sum(-1, keepdims=True) >= 1)
    return _normalised(np.maximum(z - tau, 0) ** (q - 1) * (z > tau))


def _normalised(p: Array) -> Array:
    total = p.sum(-1, keepdims=True)
    return p / np.where(total > 0, total, 1)


def omega(p: Array, alpha: float) -> Array:
    """Ω_α(p), 0 at every vertex: (B,)."""
    on = p > 0
    safe = np.where(on, p, 1)
    terms = safe * np.log(safe) if alpha == 1 else (safe**alpha - safe) / (alpha * (alpha - 1))
    return np.where(on, terms, 0).sum(-1)


def capped(x: Array, lower: Array, upper: Array, total: Array, soft: bool) -> Array:
    """The point clip(g(x − τ), lower, upper) of sum `total`, g the exponential or the identity, by its breakpoints.

    Between two neighbours of all x − g⁻¹(bound) the same entries are free, so that τ has a closed form there.
    """
    x, lower, upper = (np.broadcast_to(a, x.shape).astype(np.longdouble) for a in (_led(x), lower, upper))
    with np.errstate(all="ignore"):
        ends = np.concatenate([x - (np.log(b) if soft else b) for b in (lower, upper)], -1)
        ends = np.sort(np.where(np.isnan(ends), np.inf, ends), -1)
        shifted = x[:, None] - ends[..., None]
        at = np.clip(np.exp(shifted) if soft else shifted, lower[:, None], upper[:, None])
        at = np.where(np.isnan(at), lower[:, None], at).sum(-1)
        # the last end at which the sum is still large enough: τ lies between it and the next
        last = np.maximum((at >= total[:, None] - 1e-15).sum(-1) - 1, 0)
        row = np.arange(len(x))
        left, right = ends[row, last], ends[row, np.minimum(last + 1, ends.shape[1] - 1)]
        high_at_left = (x - (np.log(upper) if soft else upper)) >= right[:, None]
        low_at_right = (x - (np.log(lower) if soft else lower)) <= left[:, None]
        free = ~high_at_left & ~low_at_right
        rest = total - np.where(high_at_left, upper, np.where(low_at_right, lower, 0)).sum(-1)
        if soft:
            top = np.where(free, x, -np.inf).max(-1, keepdims=True)
            weight = np.where(free, np.exp(x - np.where(np.isneginf(top), 0, top)), 0)
            point = (
                weight / np.where(weight.sum(-1, keepdims=True) > 0, weight.sum(-1, keepdims=True), 1) * rest[:, None]
            )
        else:
            mean = np.where(free, x, 0).sum(-1) / np.maximum(free.sum(-1), 1)
            point = np.where(free, x - mean[:, None], 0) + (rest / np.maximum(free.sum(-1), 1))[:, None]
        return np.where(high_at_left, upper, np.where(low_at_right, lower, point))
