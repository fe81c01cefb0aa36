"""The nearest point of one factor's polytope, and the face it lies on. Derivations: ../README.md.

A factor sees the literals of its variables: arrays `eta` (the point to project), `low` and `high` (bounds: 0 and 1, or
equal where a variable is held). It writes `x`, the projection, and `free`: which entries move when eta does. How those
move together is the mode it returns:

    BOX       each by itself
    BALANCED  with Σ weight · dx = 0
    TIED      entries marked ROPED all alike, the others that are free by themselves
"""

import math

from structmax.numerics.kernel_numba import compiled

BOX, BALANCED, TIED = 0, 1, 2
HELD, FREE, ROPED = 0, 1, 2
# Bisections end at neighbouring floats long before.
STEPS = 200


@compiled()
def clipped(value, low, high):
    return min(max(value, low), high)


@compiled("contract", "reassoc")
def _piece(eta, low, high, weight, tau):
    """Of Σ weight · clip(eta − tau · weight): value, how fast it falls, and a count that grows at each kink."""
    total, fall, level = 0.0, 0.0, 0.0
    for i in range(len(eta)):
        c = weight[i]
        value = eta[i] - tau * c
        below, above = (1.0 if value <= low[i] else 0.0), (1.0 if value >= high[i] else 0.0)
        total += c * min(max(value, low[i]), high[i])
        fall += c * c * (1.0 if low[i] < value < high[i] else 0.0)
        level += (below - above) * (1.0 if c > 0 else -1.0)
    return total, fall, level


@compiled()
def _last_breakpoint(eta, low, high, weight, upwards):
    """The tau past which nothing moves, above all breakpoints or below."""
    reach = -math.inf if upwards else math.inf
    for i in range(len(eta)):
        c = weight[i]
        if c != 0 and low[i] < high[i]:
            end = (eta[i] - (low[i] if (c > 0) == upwards else high[i])) / c
            reach = max(reach, end) if upwards else min(reach, end)
    return reach


@compiled()
def project_slab(eta, low, high, weight, least, most, tau, x, free):
    """Onto least ≤ Σ weight · x ≤ most within the bounds; returns mode and multiplier. `tau` is a guess of it.

    x = clip(eta − tau · weight), where the sum falls with tau, piece by linear piece. Newton's method, held in a
    bracket, ends when two iterates lie on one piece: the multiplier is then that of its set of free entries.
    """
    left, right, target = -math.inf, math.inf, most
    if least < most:
        total, fall, level = _piece(eta, low, high, weight, 0.0)
        if least <= total <= most:
            _write(eta, low, high, weight, 0.0, x, free)
            return BOX, 0.0
        if total > most:
            left = 0.0
        else:
            right, target = 0.0, least
        if not left < tau < right:
            tau = (total - target) / fall if fall > 0 else math.inf
    before = math.nan
    for _ in range(STEPS):
        if not left < tau < right:
            if left == -math.inf or right == math.inf:
                upwards = right == math.inf
                tau = _last_breakpoint(eta, low, high, weight, upwards)
                if not left < tau < right:
                    tau = left if upwards else right
                    break
            else:
                tau = 0.5 * (left + right)
            before = math.nan
        total, fall, level = _piece(eta, low, high, weight, tau)
        if level == before or total == target or tau in (left, right):
            break
        if total > target:
            left = tau
        else:
            right = tau
        before = level
        tau = tau + (total - target) / fall if fall > 0 else math.inf
    _write(eta, low, high, weight, tau, x, free)
    return BALANCED, tau


@compiled()
def _write(eta, low, high, weight, tau, x, free):
    for i in range(len(eta)):
        value = eta[i] - tau * weight[i]
        x[i] = min(max(value, low[i]), high[i])
        free[i] = FREE if low[i] < value < high[i] else HELD


@compiled()
def project_or_out(eta, low, high, weight, tau, x, free):
    """The last entry z is 1 where any other is: x_k ≤ z ≤ Σ x. `weight` is 1 for each x and −1 for z.

    Onto x_k ≤ z first: all x_k above a level t, and z, come down to it. Where Σ x < z then, the answer has Σ x = z.
    """
    n = len(eta) - 1
    # Newton's method for t from below, along a concave function: who is above falls until nobody drops out
    level, members = -math.inf, n + 1
    while True:
        total, above = eta[n], 0
        for k in range(n):
            if high[k] > 0 and eta[k] > level:
                total += eta[k]
                above += 1
        if above >= members:
            break
        level, members = total / (1 + above), above
    floor = low[n]
    for k in range(n):
        floor = max(floor, low[k])
    t = clipped(level, floor, high[n])
    roped = floor < level < high[n]
    total, tied = 0.0, False
    for k in range(n):
        x[k] = min(clipped(eta[k], low[k], high[k]), t)
        total += x[k]
        # one that touches z without a force moves with it as well: whether it must, other factors decide
        if roped and eta[k] >= level and low[k] < high[k]:
            free[k] = ROPED
            tied = True
        else:
            free[k] = FREE if low[k] < eta[k] < min(t, high[k]) else HELD
    x[n] = t
    if total < t:
        return project_slab(eta, low, high, weight, 0.0, 0.0, tau, x, free)
    free[n] = HELD if not roped else ROPED if tied else FREE
    return (TIED if tied else BOX), 0.0


@compiled()
def project_pair(eta, low, high, score, x, free, slope):
    """Two literals and a score where both are on, at most once: the third part ν is x₀ or x₁, 0 or x₀ + x₁ − 1.

    Writes also how ν moves with x; returns the mode and ν.
    """
    a, b = eta[0], eta[1]
    slope[0], slope[1] = 0.0, 0.0
    held = low[0] == high[0], low[1] == high[1]
    if held[0] or held[1]:
        # what is held is 0 or 1, and the pair is the other literal, or nothing
        for i in range(2):
            other = low[1 - i] if held[1 - i] else 0.0
            value = eta[i] + score * other
            x[i] = clipped(value, low[i], high[i])
            free[i] = FREE if low[i] < value < high[i] else HELD
            slope[i] = 0.0 if held[i] else other
        return BOX, x[0] * x[1]
    mode = BOX
    if score >= 0:
        if a > b + score:
            b += score
            slope[1] = 1.0
        elif b > a + score:
            a += score
            slope[0] = 1.0
        else:
            a = b = 0.5 * (a + b + score)
            slope[0] = slope[1] = 0.5
            mode = TIED
    elif a + b > 1 - 2 * score:
        a, b = a + score, b + score
        slope[0] = slope[1] = 1.0
    elif a + b >= 1:
        a = 0.5 * (a + 1 - b)
        b = 1 - a
        mode = BALANCED
    x[0], x[1] = clipped(a, 0.0, 1.0), clipped(b, 0.0, 1.0)
    free[0] = FREE if 0 < a < 1 else HELD
    free[1] = FREE if 0 < b < 1 else HELD
    if mode == TIED and free[0] == FREE:
        free[0] = free[1] = ROPED
    if score >= 0:
        return mode, min(x[0], x[1])
    # exactly 0 where the pair is avoided: its score may stand for −inf
    return mode, max(0.0, x[0] + x[1] - 1) if slope[0] > 0 else 0.0
