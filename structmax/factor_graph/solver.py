"""Drives the solver of a factor graph: steps, jumps to faces, structures among the factors. See README.md here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from structmax.contract import AbstractStructure
from structmax.factor_graph.faces import Faces, conjugate, summed
from structmax.factor_graph.layout import KINDS, Layout
from structmax.factor_graph.outside import Support, of_rows
from structmax.factor_graph.tables import TableSupports

RUNNING, CONVERGED, INFEASIBLE = 0, 1, 2
# Stands for −inf among the factors' own scores, where arithmetic is done with them.
FORBIDDEN = -1e15
# Steps before the first jump, and how much longer the next one waits.
FIRST, GROWTH = 10, 1.5
# A jump is kept where it leaves at most this part of the residual.
GAIN = 0.5
# Copies that are nearer than this will meet.
HOPEFUL = 1e-6
# A residual no jump improves, and how often one is tried where it is already small enough.
ROUNDED, POLISHES = 1e-13, 4


@dataclass(frozen=True)
class Program:
    """The problem, flat. An entry of low and high (B, n) holds a variable where both are equal."""

    # scores of the variables (B, n), and of the factors' own parts (B, m)
    theta: np.ndarray
    phi: np.ndarray
    low: np.ndarray
    high: np.ndarray
    # factors without an effect: (B, F)
    vacuous: np.ndarray
    # which instance each row is (B,), and the structures among the factors, with an entry for each instance
    instance: np.ndarray
    structures: tuple[AbstractStructure, ...]

    def own(self, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Some of the factors' own scores, −inf where a part is forbidden."""
        phi = self.phi[np.ix_(rows, scores)]
        return np.where(phi <= FORBIDDEN, -np.inf, phi)

    def weight(self) -> np.ndarray:
        """Sums of absolute scores, but for forbidden parts: (B,)."""
        return np.abs(self.theta).sum(1) + np.where(self.phi <= FORBIDDEN, 0.0, np.abs(self.phi)).sum(1)


class Solver:
    """max ⟨θ, μ⟩ − ½ Σ norm μ² over the relaxations of a batch, by alternating directions: their state.

    Args:
        layout: the graph.
        problem: scores and bounds.
        tolerance: of both residuals.
        norm: the weights of the variables (n,).
    """

    def __init__(self, layout: Layout, problem: Program, tolerance: float, norm: np.ndarray) -> None:
        from structmax.factor_graph.kernel_numba import steps

        self.kernel, self.layout, self.problem = steps, layout, problem
        arrays = layout.arrays
        self.norm, self.graph = norm, (*arrays, norm)
        variable, sign = arrays.variable, arrays.sign
        theta, low, high = problem.theta, problem.low, problem.high
        B, E, F = len(theta), len(variable), len(arrays.kind)
        self.negated = sign < 0
        self.lowest = np.where(self.negated, 1 - high[:, variable], low[:, variable])
        self.highest = np.where(self.negated, 1 - low[:, variable], high[:, variable])
        largest = np.abs(theta).max(1, initial=0.0)
        self.rho = np.maximum(largest, 1.0)
        # What a variable leaves of its score is shared by its factors: multipliers that are feasible.
        self.u = np.clip(theta / norm, low, high)
        self.w = -((theta - norm * self.u) / np.maximum(arrays.degree, 1))[:, variable] * sign / self.rho[:, None]
        self.x, self.eta, self.tau = np.zeros((B, E)), np.zeros((B, E)), np.zeros((B, F))
        self.nu = np.zeros_like(problem.phi)
        self.mode, self.free = np.zeros((B, F), np.int8), np.zeros((B, E), np.int8)
        self.slope, self.lift = np.zeros((B, E)), np.zeros((B, E))
        self.tables = TableSupports(layout, B)
        self.supports = [Support(outside, B) for outside in layout.outside]
        # scores have no more digits
        self.tolerance = np.stack([np.full(B, tolerance), np.maximum(tolerance, 1e-14 * (1 + largest))], 1)
        self.iterations, self.status = np.zeros(B, np.int64), np.zeros(B, np.int64)
        self.residuals = np.full((B, 2), np.inf)
        self.status[~_possible(layout, self.lowest, self.highest, problem.vacuous)] = INFEASIBLE
        self.directions = self.faces().directions()

    # ---------------------------------------------------------------- what the kernels get

    @property
    def _state(self) -> tuple[np.ndarray, ...]:
        return self.u, self.w, self.x, self.rho, self.eta, self.tau, self.nu

    @property
    def _faces(self) -> tuple[np.ndarray, ...]:
        return self.mode, self.free, *self.directions, self.slope, self.lift

    @property
    def _given(self) -> tuple[np.ndarray, ...]:
        given = self.problem
        return given.theta, given.phi, given.low, given.high, self.lowest, self.highest, given.vacuous

    def faces(self) -> Faces:
        """The faces that the copies lie on, as they were last found."""
        given, tables = self.problem, self.tables
        free = given.theta / self.norm
        alone = (self.layout.arrays.degree == 0) & ~((given.low < free) & (free < given.high))
        still = (given.low == given.high) | (self.status == INFEASIBLE)[:, None] | alone
        spans = tuple((support.directions, support.along) for support in self.supports)
        logic = self.mode, self.free, self.slope
        return Faces(self.layout, *logic, still, tables.rank, tables.directions, tables.moves, spans)

    # ---------------------------------------------------------------- structures

    def _copies(self, support: Support) -> slice:
        start, number = self.layout.arrays.start, support.outside.number
        return slice(int(start[number]), int(start[number + 1]))

    def _literals(self, rows: np.ndarray, copies: slice) -> np.ndarray:
        values = self.u[np.ix_(rows, self.layout.arrays.variable[copies])]
        return np.where(self.negated[copies], 1 - values, values)

    def _project_structures(self, rows: np.ndarray) -> None:
        """Copies and own parts of all structures, for these rows."""
        for support, whole in zip(self.supports, self.problem.structures, strict=True):
            copies, scores = self._copies(support), support.outside.scores
            asked = rows[~self.problem.vacuous[rows, support.outside.number]]
            if not len(asked):
                continue
            eta = self._literals(asked, copies) - self.w[asked, copies]
            eta[self.highest[asked, copies] == 0] = -np.inf
            phi = self.problem.own(scores, asked) / self.rho[asked, None]
            structure = of_rows(whole, self.problem.instance[asked])
            self.x[asked, copies], self.nu[np.ix_(asked, scores)] = support.project(asked, eta, phi, structure)
            self.free[asked, copies] = self.x[asked, copies] > 0
            self.status[asked[support.counts[asked] == 0]] = INFEASIBLE

    def _find_faces(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        if len(self.tables):
            self.tables.find_faces(rows)
        for support in self.supports:
            support.find_faces(rows)
        faces = self.faces()
        faces.pull(self.problem.phi, self.lift)
        self.directions = faces.directions()

    # ---------------------------------------------------------------- the way to the solution

    def _running(self, rows: np.ndarray) -> np.ndarray:
        return rows[self.status[rows] == RUNNING]

    def _step(self, rows: np.ndarray, count: int) -> None:
        """`count` steps, one at a time where structures have to be asked in between."""
        at_once = 1 if self.supports else count
        for _ in range(0, count, at_once):
            self._project_structures(rows)
            rows = rows[self.status[rows] != INFEASIBLE]
            if not len(rows):
                break
            self.kernel.descend(
                rows, self.graph, self.tables.layout, self.tables.members, self._given, self._state,
                self._faces, self.tolerance, at_once, self.iterations, self.residuals, self.status,
            )  # fmt: skip
            rows = self._running(rows)

    def _jump(self, rows: np.ndarray) -> np.ndarray:
        """Tries to jump; returns the rows that did. The others are as they were, but for a step."""
        saved, before = self._saved(rows), self.residuals[rows].max(1)
        self._find_faces(rows)
        self.kernel.jump(rows, self.graph, self._given, self._state, self._faces, conjugate(self.layout))
        self._step(rows, 1)
        worse = ~(self.residuals[rows].max(1) <= GAIN * before)
        self._restore(rows, saved, worse)
        self._step(rows[worse], 1)
        return rows[~worse]

    def _saved(self, rows: np.ndarray) -> list[np.ndarray]:
        return [array[rows] for array in (self.u, self.w, self.rho)]

    def _restore(self, rows: np.ndarray, saved: list[np.ndarray], which: np.ndarray) -> None:
        for array, old in zip((self.u, self.w, self.rho), saved, strict=True):
            array[rows[which]] = old[which]

    def run(self, max_iter: int, first: float = FIRST) -> None:
        """Steps and jumps until all instances are converged or refuted, or have taken so many steps."""
        rows = self._running(np.arange(len(self.u)))
        count = first
        while len(rows):
            left = max_iter - int(self.iterations[rows].min())
            self._step(rows, max(1, min(int(count), left)))
            jumping = self._running(rows)
            while len(jumping):
                jumping = self._running(self._jump(jumping))
            rows = self._running(rows)
            if count > FIRST:
                self._refute(rows)
            rows = self._running(rows)
            rows = rows[self.iterations[rows] < max_iter]
            count *= GROWTH
        self._polish()
        self._find_faces(np.flatnonzero(self.status != INFEASIBLE))

    def _refute(self, rows: np.ndarray) -> None:
        """Checks whether nothing satisfies all factors at once.

        Where nothing does, the copies stay apart, and multipliers grow along x − u for ever, while the bound falls. Far
        enough along it falls below the value of anything.
        """
        rows = rows[self.residuals[rows, 0] > HOPEFUL]
        saved, residuals = self._saved(rows), self.residuals[rows]
        apart = self.x[rows] - self._literals(rows, slice(None))
        reach = (1 + self.problem.weight() + self.norm.sum())[rows]
        far = 4 * reach / (self.rho[rows] * np.maximum((apart**2).sum(1), 1e-300))
        self.w[rows] += far[:, None] * apart
        self._step(rows, 1)
        refuted = self.bound()[rows] < -reach
        self._restore(rows, saved, np.ones(len(rows), bool))
        self.residuals[rows] = residuals
        self.status[rows[self.status[rows] == CONVERGED]] = RUNNING
        self.status[rows[refuted]] = INFEASIBLE

    def _polish(self) -> None:
        """Jumps where an instance has converged, but not as far as rounding allows."""
        rows = np.flatnonzero(self.status == CONVERGED)
        asked, self.tolerance = self.tolerance, np.minimum(self.tolerance, ROUNDED)
        for _ in range(POLISHES):
            rows = rows[self.residuals[rows].max(1) > ROUNDED]
            if not len(rows):
                break
            self._step(np.setdiff1d(rows, self._jump(rows)), FIRST)
        self.tolerance = asked
        self.status[rows] = np.where((self.residuals <= asked).all(1), CONVERGED, RUNNING)[rows]

    def restart(self, rows: np.ndarray, theta: np.ndarray, phi: np.ndarray, factor: float) -> None:
        """Other scores for some instances, about `factor` times what they were; `run` goes on from where they are."""
        self.problem.theta[rows], self.problem.phi[rows] = theta, phi
        self.w[rows] *= factor
        self.status[rows], self.iterations[rows] = RUNNING, 0

    # ---------------------------------------------------------------- what is known then

    def answer(self) -> tuple[np.ndarray, np.ndarray]:
        """Variables (B, n) and the factors' own parts (B, m); what a factor holds at 0 or 1 is exactly that."""
        u, nu = self.u.copy(), self.nu.copy()
        row, copy = np.nonzero(self.free == 0)
        held = self.x[row, copy]
        u[row, self.layout.arrays.variable[copy]] = np.where(self.negated[copy], 1 - held, held)
        u[self.status == INFEASIBLE], nu[self.status == INFEASIBLE] = 0.0, 0.0
        return np.clip(u, 0.0, 1.0), nu

    def bound(self, linear: np.ndarray | None = None) -> np.ndarray:
        """No point of the relaxation has a higher value than this: (B,).

        The copies x maximise the multipliers λ = rho · (eta − x) over their factors: the dual function at λ is known.
        Given other scores (B, n), it is that of the linear program.
        """
        multipliers = self.rho[:, None] * (self.eta - self.x)
        left = (self.problem.theta if linear is None else linear) - summed(self.layout, multipliers)
        # where the variables alone would be best
        own = np.clip(left / self.norm if linear is None else np.sign(left), self.problem.low, self.problem.high)
        value = (left * own).sum(1) - (0.5 * (self.norm * own**2).sum(1) if linear is None else 0.0)
        return value + (multipliers * (self.x - self.negated)).sum(1) + (self.problem.phi * self.nu).sum(1)


def _possible(layout: Layout, lowest: np.ndarray, highest: np.ndarray, vacuous: np.ndarray) -> np.ndarray:
    """Whether each factor of logic can be satisfied by itself, within the bounds: (B,)."""
    arrays = layout.arrays
    if not len(arrays.kind):
        return np.ones(len(lowest), bool)
    weight, begin, end = arrays.weight, arrays.start[:-1], arrays.start[1:] - 1
    smallest = np.add.reduceat(np.minimum(weight * lowest, weight * highest), begin, 1)
    largest = np.add.reduceat(np.maximum(weight * lowest, weight * highest), begin, 1)
    met = (smallest <= arrays.most + 1e-9) & (largest >= arrays.least - 1e-9)
    # the output of an "or" is no more than the sum of its inputs, and no less than any
    inputs = np.maximum.reduceat(np.where(weight > 0, lowest, 0.0), begin, 1)
    met &= (arrays.kind != KINDS["or_out"]) | ((largest >= 0) & (inputs <= highest[:, end]))
    return (met | vacuous).all(1)
