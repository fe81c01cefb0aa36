"""The choice at one node: from the scores of its edges to their probabilities, and how these change.

p = argmax over the simplex of ⟨p, s⟩ − γ Ω_α(p) with Ω_α(p) = Σ (p^α − p) / (α(α−1)), whose limit at α = 1 is
Σ p log p. With e = α − 1, b = 1/e and z = (s − max s)/γ it is p = [1 + e (z − τ)]₊^b, and γ = 0 is the plain maximum.
All is float64, and an edge of score −inf never has probability.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp

# Far more than Newton's method takes.
STEPS = 100
# The step that follows an error this small leaves none, even where a score is about to enter the support.
TOLERANCE = 1e-13


@compiled()
def choose(s, alpha, gamma, spare):
    """Turns the scores of a node's edges into their probabilities, in place, and returns the node's value.

    NaN if a score is NaN or +inf; without a feasible edge the value is −inf and all probabilities are 0.
    """
    peak, top, sound = -np.inf, 0, True
    for i in range(s.size):
        sound &= s[i] < np.inf
        if s[i] > peak:
            peak, top = s[i], i
    if not sound or peak == -np.inf:
        for i in range(s.size):
            s[i] = 0.0 if sound else np.nan
        return peak if sound else np.nan
    if s.size == 1:
        s[0] = 1.0
        return peak
    if gamma == 0:
        # The first of equals.
        for i in range(s.size):
            s[i] = 1.0 if i == top else 0.0
        return peak
    if alpha == 1:
        return peak + gamma * _softmax(s, peak, 1 / gamma)
    if alpha > 2:
        return _steep(s, peak, alpha - 1, gamma)
    return peak + gamma * _entmax(s, peak, alpha - 1, gamma, spare)


@compiled("contract", "reassoc")
def _softmax(s, peak, scale):
    total = 0.0
    for i in range(s.size):
        s[i] = exp((s[i] - peak) * scale)
        total += s[i]
    scale = 1 / total
    for i in range(s.size):
        s[i] *= scale
    return math.log(total)


@compiled()
def _power(w, b):
    """(1 + w)^b, 0 where 1 + w is not positive."""
    if not w > -1:
        return 0.0
    if b == 1:
        return 1 + w
    if b == 2:
        return (1 + w) * (1 + w)
    return exp(b * math.log1p(w))


@compiled()
def _deformed_log(r, e):
    """(1 − r^−e) / e"""
    if e == 1:
        return 1 - 1 / r
    if e == 0.5:
        return 2 - 2 / math.sqrt(r)
    return -math.expm1(-e * math.log(r)) / e


@compiled("contract", "reassoc")
def _sums(z, count, k, b):
    """Σ u^b and Σ u^(b−1) for u = [1 + k z]₊."""
    total, slope = 0.0, 0.0
    if b == 1:
        for i in range(count):
            u = 1 + k * z[i]
            total += u if u > 0 else 0.0
            slope += 1.0 if u > 0 else 0.0
    elif b == 2:
        for i in range(count):
            u = 1 + k * z[i]
            u = u if u > 0 else 0.0
            total += u * u
            slope += u
    else:
        for i in range(count):
            power = _power(k * z[i], b)
            total += power
            slope += power / (1 + k * z[i]) if power > 0 else 0.0
    return total, slope


@compiled()
def _entmax(s, peak, e, gamma, spare):
    """For α ≤ 2: p in place of s, and the value above the peak, in units of γ.

    With R = Σ (p / p_max) the equation Σ p = 1 reads τ = (1 − R^−e) / e, which Newton's method solves from τ = 0.
    """
    b, scale, count = 1 / e, 1 / gamma, 0
    for i in range(s.size):
        s[i] = (s[i] - peak) * scale
        # Only scores within 1/e of the peak can have probability.
        spare[count] = s[i]
        count += e * s[i] > -1
    tau = 0.0
    for _ in range(STEPS):
        top = 1 - e * tau
        total, slope = _sums(spare, count, e / top, b)
        gap = _deformed_log(total, e) - tau
        tau += gap * total / slope
        if gap <= TOLERANCE * top:
            break
    k = e / (1 - e * tau)
    total, mean = 0.0, 0.0
    for i in range(s.size):
        power = _power(k * s[i], b)
        total += power
        mean += power * s[i] if power > 0 else 0.0
        s[i] = power
    scale = 1 / total
    for i in range(s.size):
        s[i] *= scale
    # Σ p^α = Σ p (1 + e (z − τ)): the value is (τ + e ⟨p, z⟩) / α.
    return (tau + e * mean * scale) / (1 + e)


@compiled()
def _steep(s, peak, e, gamma):
    """For α > 2: p in place of s; returns the value.

    p has infinite slope where it vanishes, so no threshold is fine enough. Measured from the smallest supported score
    a, with probability p_a, p = [p_a^e + e (s − a)/γ]₊^b loses nothing. Σ p is convex in p_a, and Newton's method from
    above never oversteps.
    """
    b, anchor, mass = 1 / e, peak, 0.0
    # Lower the anchor while the next score, put at probability 0, leaves mass for itself.
    while True:
        below = -np.inf
        for i in range(s.size):
            if below < s[i] < anchor:
                below = s[i]
        if below <= peak - b * gamma:
            break
        above = 0.0
        for i in range(s.size):
            if s[i] > below:
                above += (e * (s[i] - below) / gamma) ** b
        if above >= 1:
            break
        anchor, mass = below, above
    ties = 0
    for i in range(s.size):
        ties += s[i] == anchor
    p_anchor = (1 - mass) / ties
    for _ in range(STEPS):
        root = p_anchor**e
        excess, slope = ties * p_anchor - 1, float(ties)
        for i in range(s.size):
            if s[i] > anchor:
                u = root + e * (s[i] - anchor) / gamma
                p = u**b
                excess += p
                slope += p / p_anchor * (root / u)
        step = excess / slope
        p_anchor -= step
        if not step > TOLERANCE * p_anchor:
            break
    root = p_anchor**e
    mean = 0.0
    for i in range(s.size):
        z = (s[i] - anchor) / gamma
        if z > 0:
            s[i] = (root + e * z) ** b
            mean += s[i] * z
        else:
            s[i] = p_anchor if z == 0 else 0.0
    return anchor + gamma * ((1 - root) / e + e * mean) / (1 + e)


@compiled()
def sensitivity(p, lowest, alpha):
    """How strongly p follows its score, in units of the strongest: (p / lowest)^(2−α) for α > 2, else p^(2−α)."""
    if p == 0:
        return 0.0
    if alpha == 1:
        return p
    if alpha == 2:
        return 1.0
    return p ** (2 - alpha) if alpha < 2 else (p / lowest) ** (2 - alpha)


@compiled()
def least(p, alpha):
    """The smallest probability above 0, in whose units `sensitivity` is measured for α > 2."""
    lowest = 1.0
    if alpha > 2:
        for i in range(p.size):
            if 0 < p[i] < lowest:
                lowest = p[i]
    return lowest


@compiled()
def differentiate(p, d, alpha, gamma):
    """Turns d = ds into dp = w (ds − Σ w ds / Σ w) / γ with w = p^(2−α) on the support, in place.

    ds is not read off the support. The strongest w may leave nothing of ds − mean, so its dp is what makes them sum
    to 0.
    """
    lowest = least(p, alpha)
    total, mean, strongest, top = 0.0, 0.0, 0.0, 0
    for i in range(p.size):
        w = sensitivity(p[i], lowest, alpha)
        if w > 0:
            total += w
            mean += w * d[i]
        if w > strongest:
            strongest, top = w, i
    if strongest == 0:
        for i in range(p.size):
            d[i] = 0.0
        return
    mean /= total
    unit = min(lowest ** (2 - alpha), np.finfo(np.float64).max) / gamma if alpha > 2 else 1 / gamma
    rest = 0.0
    for i in range(p.size):
        w = sensitivity(p[i], lowest, alpha)
        if i != top:
            d[i] = unit * w * (d[i] - mean) if w > 0 else 0.0
            rest += d[i]
    d[top] = -rest
