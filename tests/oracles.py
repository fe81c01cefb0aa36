"""Independent answers, in numpy and mpmath: sorting, bisection in high precision, brute force over fusion patterns."""

import itertools
from collections.abc import Callable, Iterator

import mpmath
import numpy as np

Array = np.ndarray
# Clusters of entries that share a value, and the linear cost of each cluster's value.
Cell = tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]

BISECTIONS = 200


def sparsemax(x: Array) -> Array:
    """(B, n) → (B, n). Exact support where the scores are multiples of a power of two."""
    z = x - x.max(-1, keepdims=True)
    order = -np.sort(-z, axis=-1)
    rank = np.arange(1, x.shape[-1] + 1)
    total = order.cumsum(-1) - 1
    size = (rank * order > total).sum(-1, keepdims=True)
    tau = np.take_along_axis(total, size - 1, -1) / size
    return np.maximum(z - tau, 0.0)


def entmax15(x: Array) -> Array:
    """(B, n) → (B, n): p = [x/2 − τ]₊², each support size tried, the one that sums to 1 from inside kept."""
    half = (x - x.max(-1, keepdims=True)) / 2
    order = -np.sort(-half, axis=-1)
    tau = np.full((len(x), 1), -np.inf)
    for size in range(1, x.shape[-1] + 1):
        top = order[:, :size]
        # Σ (top − τ)² = 1 about the mean, so that no large numbers cancel
        mean = top.mean(-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            root = mean - np.sqrt((1 - ((top - mean) ** 2).sum(-1, keepdims=True)) / size)
        tau = np.where(root < top[:, -1:], root, tau)
    return np.maximum(half - tau, 0.0) ** 2


def entmax(x: Array, alpha: float) -> Array:
    """(B, n) → (B, n) for 0 < α ≤ 2, by bisection on the threshold above the row's maximum."""
    e = alpha - 1
    z = x - x.max(-1, keepdims=True)

    def probabilities(tau: Array) -> Array:
        t = z - tau
        if e == 0:
            return np.exp(t)
        inside = 1 + e * t > 0
        return np.where(inside, np.exp(np.log1p(np.where(inside, e * t, 0.0)) / e), 0.0)

    n = x.shape[-1]
    low = np.zeros((len(x), 1))
    high = low + (np.log(n) if e == 0 else -np.expm1(-e * np.log(n)) / e)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = probabilities(middle).sum(-1, keepdims=True) >= 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return probabilities((low + high) / 2)


def entmax_precise(x: Array, alpha: float, digits: int = 60) -> Array:
    """`entmax` for α > 1 with `digits` decimal digits: float64 thresholds are too coarse where p has infinite slope."""
    with mpmath.workdps(digits):
        e = mpmath.mpf(alpha) - 1
        return np.array([_row_precise([mpmath.mpf(float(v)) for v in row], e) for row in x])


def _row_precise(row: list, e: mpmath.mpf) -> list[float]:
    peak = max(row)
    low, high = peak, peak + 1 / e

    def probabilities(tau: mpmath.mpf) -> list:
        return [max(1 + e * (v - tau), 0) ** (1 / e) for v in row]

    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(probabilities(middle)) >= 1 else (low, middle)
    return [float(p) for p in probabilities((low + high) / 2)]


def normmax(x: Array, alpha: float) -> Array:
    """(B, n) → (B, n): p ∝ [x − τ]₊^(q−1) with Σ [x − τ]₊^q = 1, by bisection."""
    q = alpha / (alpha - 1)
    z = x - x.max(-1, keepdims=True)
    low, high = np.full((len(x), 1), -1.0), np.zeros((len(x), 1))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = (np.maximum(z - middle, 0) ** q).sum(-1, keepdims=True) >= 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    weight = np.maximum(z - (low + high) / 2, 0) ** (q - 1)
    return weight / weight.sum(-1, keepdims=True)


def capped(x: Array, lower: Array, upper: Array, total: Array, soft: bool) -> Array:
    """The point clip(g(x − τ), lower, upper) of sum `total`, by bisection on τ; g is exp or the identity."""

    def clipped(tau: Array) -> Array:
        return np.clip(np.exp(x - tau) if soft else x - tau, lower, upper)

    low, high = np.full((len(x), 1), x.min() - 50.0), np.full((len(x), 1), x.max() + 50.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = clipped(middle).sum(-1, keepdims=True) >= np.reshape(total, (-1, 1))
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return clipped((low + high) / 2)


# ---------------------------------------------------------------- brute force over fusion patterns


def total_variation_cells(n: int, lam: float) -> Iterator[Cell]:
    """Every way to cut 0 … n−1 into runs, with every order of neighbouring runs."""
    for cuts in itertools.product((False, True), repeat=n - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
        runs = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))
        for rises in itertools.product((-1, 1), repeat=len(runs) - 1):
            # lam Σ σ_k (v_{k+1} − v_k): each run gains from the left and loses to the right
            yield runs, tuple(lam * (a - b) for a, b in itertools.pairwise((0, *rises, 0)))


def ordered_cells(weights: Array) -> Iterator[Cell]:
    """Every ordered partition of 0 … n−1 into clusters of falling value; a cluster costs the weights of its ranks."""
    n = len(weights)
    for order in itertools.permutations(range(n)):
        for cuts in itertools.product((False, True), repeat=n - 1):
            edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
            spans = list(itertools.pairwise(edges))
            # one order of the entries within a cluster is enough
            if all(list(order[a:b]) == sorted(order[a:b]) for a, b in spans):
                yield tuple(order[a:b] for a, b in spans), tuple(float(weights[a:b].sum()) for a, b in spans)


def minimise(x: Array, penalty: Callable[[Array], Array], cells: Iterator[Cell], domain: str) -> Array:
    """argmin ½‖y − x‖² + penalty(y) for rows x (B, n), over `domain`: "all", "orthant" (y ≥ 0) or "simplex".

    Within a cell the penalty is linear and the minimiser has a closed form, for each set of clusters held at zero. The
    optimum is one of these candidates; each is a point of the domain, so the best by the true objective is the optimum.
    """
    best, least = np.zeros_like(x), np.full(len(x), np.inf)
    for clusters, costs in cells:
        sizes = np.array([len(c) for c in clusters])
        level = np.stack([(x[:, c].sum(-1) - cost) / len(c) for c, cost in zip(clusters, costs, strict=True)], -1)
        patterns = [(True,) * len(clusters)]
        if domain != "all":
            patterns = [
                p for p in itertools.product((False, True), repeat=len(clusters)) if domain != "simplex" or any(p)
            ]
        for free in map(np.array, patterns):
            value = np.where(free, level, 0.0)
            if domain == "simplex":
                value = value - free * (((value * sizes).sum(-1, keepdims=True) - 1) / (sizes * free).sum())
            y = np.zeros_like(x)
            for i, cluster in enumerate(clusters):
                y[:, cluster] = value[:, i : i + 1]
            objective = 0.5 * ((y - x) ** 2).sum(-1) + penalty(y)
            if domain != "all":
                objective[(y < 0).any(-1)] = np.inf
            better = objective < least
            best[better], least[better] = y[better], objective[better]
    return best
