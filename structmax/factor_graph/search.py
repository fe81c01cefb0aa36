"""The best structure of a factor graph: linear relaxation, rounding, and branch and bound.

The linear program is solved by proximal points: max ⟨θ, μ⟩ − t/2 ‖μ − μ_k‖² again and again, with falling t, each
exactly, which ends at a solution after few. A 0/1 solution of any of them is a best structure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from structmax.factor_graph.layout import KINDS, Layout
from structmax.factor_graph.outside import Support, of_rows
from structmax.factor_graph.solver import CONVERGED, FIRST, FORBIDDEN, INFEASIBLE, RUNNING, Program, Solver
from structmax.outline import outline

# The largest score, in units of the proximal term: at first, and how much more at each of so many points at most.
SHARPNESS, SHARPER, POINTS = 32.0, 8.0, 8
# Variables this near to 0 or 1 are, and a bound this near to a value, relatively, is reached.
INTEGRAL, REACHED = 1e-7, 1e-9
# Of the relaxations.
TOLERANCE = 1e-9
# How many nodes of all trees together are solved at once.
AT_ONCE = 256


@dataclass(frozen=True)
class Best:
    """A best structure of a factor graph, as far as it is known.

    Args:
        parts: 0/1 by name, in the shapes of the scores; zeros where none was found.
        value: its score, −inf where none was found; one for each instance.
        exact: whether it is certainly a best structure, or certain that there is none.
        converged: whether the linear relaxation was solved.
        upper_bound: no structure has a higher score.
        relaxed: by name, the solution of the linear relaxation, 0/1 where that has a corner for answer.
    """

    parts: dict[str, Tensor]
    value: Tensor
    exact: Tensor
    converged: Tensor
    upper_bound: Tensor
    relaxed: dict[str, Tensor]

    def __repr__(self) -> str:
        return outline(self)


@dataclass(frozen=True)
class Linear:
    """Solutions of linear relaxations: u (B, n), nu (B, m), upper bounds (B,), status (B,)."""

    u: np.ndarray
    nu: np.ndarray
    bound: np.ndarray
    status: np.ndarray


def linear_program(layout: Layout, problem: Program, max_iter: int, tol: float) -> Linear:
    """max ⟨θ, μ⟩ over the relaxation."""
    own = np.where(problem.phi <= FORBIDDEN, 0.0, np.abs(problem.phi))
    largest = np.maximum(np.abs(problem.theta).max(1, initial=0.0), own.max(1, initial=0.0))
    sharp = SHARPNESS / np.where(largest > 0, largest, 1.0)[:, None]

    def sharpened(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.where(scores[rows] <= FORBIDDEN, FORBIDDEN, scores[rows] * sharp[rows])

    every = np.arange(len(sharp))
    bounds = problem.low, problem.high, problem.vacuous
    theta, phi = sharpened(problem.theta, every) + 0.5, sharpened(problem.phi, every)
    program, unit = Program(theta, phi, *bounds, problem.instance, problem.structures), np.ones_like(layout.norm)
    solver = Solver(layout, program, tol, unit)
    before, first = np.full_like(theta, np.inf), float(FIRST)
    for point in range(POINTS):
        solver.run(max_iter, first)
        u, nu = solver.answer()
        certain = (np.abs(u - u.round()) <= INTEGRAL).all(1) | (np.abs(u - before).max(1) <= tol)
        again = np.flatnonzero((solver.status == CONVERGED) & ~certain)
        if not len(again) or point == POINTS - 1:
            break
        # the faces are near: jump soon
        before[again], first = u[again], 1.0
        sharp[again] *= SHARPER
        solver.restart(again, sharpened(problem.theta, again) + u[again], sharpened(problem.phi, again), SHARPER)
    # points that have not come to rest
    solver.status[again] = RUNNING
    return Linear(u, nu, solver.bound(problem.theta * sharp) / sharp[:, 0], solver.status)


def complete(layout: Layout, problem: Program, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For 0/1 variables (B, n): whether all factors hold (B,), and the best own parts (B, m) of factors given them."""
    arrays = layout.arrays
    within = (u >= problem.low) & (u <= problem.high)
    nu = np.zeros_like(problem.phi)
    if not len(arrays.kind):
        return np.logical_and.reduce(within, 1), nu
    begin, end = arrays.start[:-1], arrays.start[1:] - 1
    literal = np.where(arrays.sign < 0, 1 - u[:, arrays.variable], u[:, arrays.variable])
    sums = np.add.reduceat(arrays.weight * literal, begin, 1)
    met = (sums <= arrays.most + INTEGRAL) & (sums >= arrays.least - INTEGRAL)
    inputs = np.maximum.reduceat(np.where(arrays.weight > 0, literal, 0.0), begin, 1)
    met &= (arrays.kind != KINDS["or_out"]) | (inputs == literal[:, end])
    pairs = arrays.kind == KINDS["pair"]
    both = literal[:, begin[pairs]] * literal[:, end[pairs]]
    nu[:, arrays.part[pairs]] = both
    met[:, pairs] = (both == 0) | (problem.phi[:, arrays.part[pairs]] > FORBIDDEN)
    tables = layout.tables
    if len(tables.number):
        # a choice is on where its states are; past its last group stands a state that is always on
        choice = np.repeat(begin[tables.number], np.diff(tables.begin))[:, None] + tables.states
        choice[tables.states < 0] = literal.shape[1]
        chosen = np.pad(literal, ((0, 0), (0, 1)), constant_values=1.0)[:, choice].prod(-1)
        chosen *= ~np.repeat(problem.vacuous[:, tables.number], np.diff(tables.begin), 1)
        nu[:, tables.own] = chosen
        allowed = (chosen == 0) | (problem.phi[:, tables.own] > FORBIDDEN)
        one = np.add.reduceat(chosen, tables.begin[:-1], 1) == 1
        met[:, tables.number] = one & np.logical_and.reduceat(allowed, tables.begin[:-1], 1)
    every = np.arange(len(u))
    for outside, whole in zip(layout.outside, problem.structures, strict=True):
        support = Support(outside, 0)
        structure = of_rows(whole, problem.instance)
        copies = literal[:, arrays.start[outside.number] : arrays.start[outside.number + 1]]
        own = problem.own(outside.scores, every)
        met[:, outside.number], nu[:, outside.scores] = support.complete(copies, own, structure)
    return np.logical_and.reduce(within, 1) & np.logical_and.reduce(met | problem.vacuous, 1), nu


@dataclass(frozen=True)
class Found:
    """What a search found, flat: parts u (B, n) and nu (B, m), the rest (B,); the root's relaxation."""

    u: np.ndarray
    nu: np.ndarray
    value: np.ndarray
    upper_bound: np.ndarray
    exact: np.ndarray
    converged: np.ndarray
    relaxed: tuple[np.ndarray, np.ndarray]


def search(layout: Layout, problem: Program, exact: bool, max_iter: int, max_nodes: int) -> Found:
    """Branch and bound over all instances at once, deepest nodes first."""
    B = len(problem.theta)
    u, nu, value = np.zeros_like(problem.theta), np.zeros_like(problem.phi), np.full(B, -np.inf)
    # the highest bound of what was not looked into
    left = np.full(B, -np.inf)
    solved, settled = np.zeros(B, np.int64), np.zeros(B, bool)
    nodes = Nodes(np.arange(B), problem.low, problem.high, np.full(B, np.inf))
    root: Linear | None = None
    while root is None or len(nodes.instance):
        now, nodes = nodes.split(B if root is None else AT_ONCE)
        here = now.of(problem)
        linear = linear_program(layout, here, max_iter, TOLERANCE)
        root = root or linear
        np.add.at(solved, now.instance, 1)
        rounded = (linear.u > 0.5 + INTEGRAL).astype(np.float64)
        fits, own = complete(layout, here, rounded)
        fits &= linear.status != INFEASIBLE
        worth = (here.theta * rounded).sum(1) + np.where(own > 0, here.phi * own, 0.0).sum(1)
        for k in np.flatnonzero(fits):
            i = now.instance[k]
            if worth[k] > value[i]:
                value[i], u[i], nu[i] = worth[k], rounded[k], own[k]
        # a structure that a relaxation leads to, and not only rounding
        settled[now.instance[fits & (np.abs(linear.u - rounded) <= INTEGRAL).all(1)]] = True
        bound = np.minimum(np.where(linear.status == INFEASIBLE, -np.inf, linear.bound), now.bound)
        nodes = nodes.joined(now.branches(linear.u, here.theta, bound))
        # what cannot be better is closed; what will not be looked into is left
        known = value[nodes.instance]
        better = _exceeds(nodes.bound, known)
        enough = (solved[nodes.instance] >= max_nodes) | (settled[nodes.instance] & (not exact))
        np.maximum.at(left, nodes.instance[better & enough], nodes.bound[better & enough])
        nodes = nodes.where(better & ~enough)
    upper, certain = np.maximum(value, left), ~_exceeds(left, value)
    return Found(u, nu, value, upper, certain, root.status != RUNNING, (root.u, root.nu))


def _exceeds(bound: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Whether a bound is higher than a value, by more than rounding."""
    return bound > value + REACHED * (1 + np.abs(np.where(np.isfinite(value), value, 0.0)))


@dataclass(frozen=True)
class Nodes:
    """Subproblems: the instance each belongs to (K,), bounds of its variables (K, n), and of its value (K,)."""

    instance: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bound: np.ndarray

    def of(self, problem: Program) -> Program:
        i = self.instance
        scores = problem.theta[i], problem.phi[i]
        return Program(*scores, self.low, self.high, problem.vacuous[i], problem.instance[i], problem.structures)

    def where(self, chosen: np.ndarray) -> Nodes:
        return Nodes(self.instance[chosen], self.low[chosen], self.high[chosen], self.bound[chosen])

    def split(self, count: int) -> tuple[Nodes, Nodes]:
        """The last ones, and the others."""
        late = np.arange(len(self.instance)) >= len(self.instance) - count
        return self.where(late), self.where(~late)

    def joined(self, other: Nodes) -> Nodes:
        a, b = self, other
        return Nodes(
            np.concatenate([a.instance, b.instance]),
            np.concatenate([a.low, b.low]),
            np.concatenate([a.high, b.high]),
            np.concatenate([a.bound, b.bound]),
        )

    def branches(self, u: np.ndarray, theta: np.ndarray, bound: np.ndarray) -> Nodes:
        """Both values of the most fractional variable, of the highest score among equals, the nearer value last.

        There are none where all variables are held.
        """
        movable = self.low < self.high
        far = np.where(movable, np.abs(u - 0.5), np.inf)
        equals = far <= far.min(1, keepdims=True) + INTEGRAL
        chosen = np.where(equals, theta, -np.inf).argmax(1)
        open_ones = movable.any(1) & (bound > -np.inf)
        rows = np.arange(len(u))
        nearer = (u[rows, chosen] >= 0.5 - INTEGRAL).astype(np.float64)
        children = []
        for side in (1 - nearer, nearer):
            low, high = self.low.copy(), self.high.copy()
            low[rows, chosen] = high[rows, chosen] = side
            children.append(Nodes(self.instance, low, high, bound).where(open_ones))
        return children[0].joined(children[1])
