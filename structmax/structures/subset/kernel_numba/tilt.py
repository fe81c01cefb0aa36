"""The tilt λ that makes independent items with odds exp(x + λ) about as many as are wanted. ../README.md: why."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.select import kth_largest

# A product of that many factors between 1 and 2 does not overflow.
FACTORS = 512
# Bisections that exhaust any bracket; Newton's method needs about three steps.
STEPS = 100


@compiled("contract", "reassoc", "nsz")
def _independent(x, anchor, offset, p, q):
    """p = σ(s) and q = σ(−s) for s = x − anchor + offset; Σ p, Σ p q and Σ log(1 + exp −|s|)."""
    mean, variance, logs = 0.0, 0.0, 0.0
    for start in range(0, x.size, FACTORS):
        product = 1.0
        for i in range(start, min(start + FACTORS, x.size)):
            s = (x[i] - anchor) + offset
            e = exp(-abs(s))
            high = 1 / (1 + e)
            low = e * high
            p[i] = high if s > 0 else low
            q[i] = low if s > 0 else high
            product *= 1 + e
            mean += high if s > 0 else low
            variance += high * low
        logs += np.log(product)
    return mean, variance, logs


@compiled()
def _log_normaliser(x, k, anchor, offset, logs):
    """−λ k + Σ log(1 + exp(x + λ)), λ = offset − anchor, where an item above the anchor cancels one −λ by itself."""
    linear, above = 0.0, 0
    for i in range(x.size):
        s = (x[i] - anchor) + offset
        if x[i] > anchor:
            above += 1
            linear += x[i] + max(-s, 0.0)
        else:
            linear += max(s, 0.0)
    return linear + logs + (anchor - offset) * (k - above)


@compiled()
def tilt(x, k, exact, p, q, work):
    """Fills p and q = 1 − p, the independent items; returns log(Π(1 + exp(x + λ)) exp(−λ k)) and exp λ ≤ 1, or 0.

    Any λ is right. One for which k lies within about a standard deviation of the mean Σ p keeps all that matters far
    from underflow: so it is searched no further. λ is kept as offset − anchor, with the k-th best score for an anchor,
    so that close scores keep their differences whatever their size. There should be more than k items, if exact.
    """
    m = x.size
    if not exact:
        mean, variance, logs = _independent(x, 0.0, 0.0, p, q)
        if mean <= k:
            return _log_normaliser(x, k, 0.0, 0.0, logs), 1.0
    anchor = kth_largest(x, k, work)
    # At −(1 + log m) the mean is at most k − 0.63, and at 1 + log m at least k − 0.37.
    high = 1 + np.log(m)
    low, offset, logs = -high, 0.0, 0.0
    for _ in range(STEPS):
        mean, variance, logs = _independent(x, anchor, offset, p, q)
        gap = mean - k
        if gap * gap <= variance + 0.25:
            break
        if gap > 0:
            high = offset
        else:
            low = offset
        # Newton's method on the logit of mean / m, which is linear in λ for equal scores.
        moved = offset + np.log(k * (m - mean) / ((m - k) * mean)) * (mean * (m - mean) / (m * variance))
        offset = moved if low < moved < high else (low + high) / 2
    if not exact and offset > anchor:
        # Beyond 0 no budget is needed: the mean is as close to k there.
        mean, variance, logs = _independent(x, anchor, anchor, p, q)
        offset = anchor
    share = 0.0 if exact else np.exp(offset - anchor)
    return _log_normaliser(x, k, anchor, offset, logs), share
