"""Random factor graphs, and their relaxations solved without the library: facets of listed members, and least distance.

A factor is the list of its 0/1 members, found by trying all; Qhull turns the list into inequalities. Those of all
factors together are a quadratic program, which Lawson and Hanson's active-set method solves to rounding.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import null_space
from scipy.optimize import linprog, nnls
from scipy.spatial import ConvexHull

import structmax
from structmax import FactorGraph
from structmax.factors import (
    AndOut,
    AtMostOne,
    Budget,
    Dense,
    Factor,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Variables,
    Xor,
    XorOut,
)

COSTS, CAPACITY = (1.0, 2.0, 0.5, 3.0), 3.5
Holds = Callable[[tuple[float, ...]], bool]
# Factors of logic: how they are made of literals, and which literals satisfy them.
LOGIC: dict[str, tuple[Callable[..., structmax.factors.AbstractFactor], Holds]] = {
    "xor": (Xor, lambda y: sum(y) == 1),
    "at_most_one": (AtMostOne, lambda y: sum(y) <= 1),
    "or": (Or, lambda y: sum(y) >= 1),
    "imply": (Imply, lambda y: not all(y[:-1]) or bool(y[-1])),
    "xor_out": (XorOut, lambda y: sum(y[:-1]) == y[-1]),
    "or_out": (OrOut, lambda y: any(y[:-1]) == y[-1]),
    "and_out": (AndOut, lambda y: all(y[:-1]) == y[-1]),
    "budget": (lambda *x: Budget(*x, at_most=2), lambda y: sum(y) <= 2),
    "exactly": (lambda *x: Budget(*x, exactly=2), lambda y: sum(y) == 2),
    "knapsack": (
        lambda *x: Knapsack(*x, costs=COSTS[: len(x)], capacity=CAPACITY),
        lambda y: sum(c * v for c, v in zip(COSTS, y, strict=False)) <= CAPACITY,
    ),
}
# Structures, and the shapes of their part tensors; those after the first are free.
STRUCTURES: dict[str, tuple[structmax.AbstractStructure, tuple[tuple[int, ...], ...]]] = {
    "simplex": (structmax.Simplex(), ((3,),)),
    "subset": (structmax.Subset(2), ((4,),)),
    "matching": (structmax.Matching(), ((2, 2),)),
    "partial matching": (structmax.Matching(partial=True), ((2, 2),)),
    "chain": (structmax.LinearChain(), ((2, 2), (2, 2))),
    "tree": (structmax.SpanningTree(single_root=False), ((3, 3),)),
    "projective tree": (structmax.ProjectiveTree(single_root=True), ((3, 3),)),
    "brackets": (structmax.BinaryTree(), ((3, 3),)),
}
TABLES: dict[str, tuple[int, ...]] = {"table": (2, 3), "square table": (2, 2), "cube": (2, 2, 2)}
KINDS = (*LOGIC, "pair", *TABLES, *STRUCTURES)


def logic_members(kind: str, size: int) -> np.ndarray:
    """All corners of the polytope of a factor of logic, in terms of its literals: (M, size)."""
    found = [y for y in itertools.product((0.0, 1.0), repeat=size) if LOGIC[kind][1](y)]
    if kind == "knapsack":
        # the relaxation has corners where one item is cut
        for i, y in itertools.product(range(size), itertools.product((0.0, 1.0), repeat=size)):
            left = CAPACITY - sum(c * v for k, (c, v) in enumerate(zip(COSTS, y, strict=False)) if k != i)
            if 0 < left < COSTS[i]:
                found.append((*y[:i], left / COSTS[i], *y[i + 1 :]))
    return np.unique(np.array(found).reshape(-1, size), axis=0)


def members(kind: str, size: int) -> np.ndarray:
    """All corners of a factor's polytope: its literals, then its own parts."""
    if kind in LOGIC:
        return logic_members(kind, size)
    if kind == "pair":
        return np.array([(a, b, a * b) for a, b in itertools.product((0.0, 1.0), repeat=2)])
    if kind in TABLES:
        sizes = TABLES[kind]
        joint = np.eye(math.prod(sizes))
        rows = [np.concatenate([np.eye(c)[i] for c, i in zip(sizes, at, strict=True)]) for at in np.ndindex(*sizes)]
        return np.concatenate([np.stack(rows), joint], 1)
    structure, shapes = STRUCTURES[kind]
    listed = structure.tensors(
        structure.enumerate(structure.parts(tuple(torch.zeros(s, dtype=torch.float64) for s in shapes)))
    )
    return torch.cat([t.flatten(1) for t in listed], 1).numpy()


@functools.cache
def facets(kind: str, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, b, C, d: the polytope of a factor is A z ≤ b, C z = d."""
    corners = members(kind, size)
    centre = corners.mean(0)
    _, scale, directions = np.linalg.svd(corners - centre)
    rank = int((scale > 1e-9).sum())
    inside, across = directions[:rank], directions[rank:]
    low = (corners - centre) @ inside.T
    if rank == 0:
        equations = np.zeros((0, 1))
    elif rank == 1:
        equations = np.array([[1.0, -low.max()], [-1.0, low.min()]])
    else:
        equations = np.unique(ConvexHull(low).equations.round(12), axis=0)
    A = equations[:, :-1] @ inside
    return A, -equations[:, -1] + A @ centre, across, across @ centre


@dataclass(frozen=True)
class One:
    """A factor of a random graph: its variables, which of them are negated, and where its own scores begin."""

    kind: str
    variables: tuple[int, ...]
    negated: tuple[bool, ...]
    own: int


def sizes(kind: str) -> tuple[int, int]:
    """How many literals a factor has, of a kind for which that is given, and how many own parts."""
    if kind == "pair":
        return 2, 1
    if kind in TABLES:
        return sum(TABLES[kind]), math.prod(TABLES[kind])
    shapes = STRUCTURES[kind][1]
    return math.prod(shapes[0]), sum(math.prod(s) for s in shapes[1:])


class RandomGraph:
    """Factors of some kinds over the same few variables.

    Args:
        generator: of all that is random.
        kinds: of its factors, one each.
    """

    def __init__(self, generator: np.random.Generator, kinds: tuple[str, ...]) -> None:
        fixed = {kind: sizes(kind) for kind in kinds if kind not in LOGIC}
        self.n = max([int(generator.integers(3, 6)), *(wide for wide, _ in fixed.values())])
        self.m = 0
        self.factors: list[One] = []
        for kind in kinds:
            wide, own = fixed.get(kind) or (int(generator.integers(2, min(self.n, 4) + 1)), 0)
            index = tuple(int(i) for i in generator.permutation(self.n)[:wide])
            flips = generator.random(wide) < generator.choice([0.0, 0.5])
            if kind in STRUCTURES:
                # one slice, negated or not
                flips[:] = flips[0]
            self.factors.append(One(kind, index, tuple(flips.tolist()), self.m))
            self.m += own
        self.graph = FactorGraph(Variables("x", (self.n,)), *map(self._made, self.factors))

    def _made(self, one: One) -> structmax.factors.AbstractFactor:
        x, own = Variables("x", (self.n,)), Variables("own", (max(self.m, 1),), free=True)
        each = [~x[i : i + 1] if flip else x[i : i + 1] for i, flip in zip(one.variables, one.negated, strict=True)]
        if one.kind in LOGIC:
            return LOGIC[one.kind][0](*each)
        count = sizes(one.kind)[1]
        score = own[one.own : one.own + count]
        if one.kind == "pair":
            return Pair(*each, score=score)
        if one.kind in TABLES:
            # a group has one sign: that of its first literal
            groups, start = [], 0
            for size in TABLES[one.kind]:
                slice_ = x[torch.tensor(one.variables[start : start + size])]
                groups.append(~slice_ if one.negated[start] else slice_)
                start += size
            return Dense(*groups, score=score[torch.arange(count).reshape(TABLES[one.kind])])
        structure, shapes = STRUCTURES[one.kind]
        first = x[torch.tensor(one.variables).reshape(shapes[0])]
        parts, start = [~first if one.negated[0] else first], 0
        for shape in shapes[1:]:
            parts.append(score[start + torch.arange(math.prod(shape)).reshape(shape)])
            start += math.prod(shape)
        return Factor(structure, *parts)

    def signs(self, one: One) -> list[bool]:
        """Of each literal of a factor whether it is negated; a group of a table has one sign."""
        if one.kind not in TABLES:
            return list(one.negated)
        starts = itertools.accumulate((0, *TABLES[one.kind][:-1]))
        return [one.negated[s] for s, size in zip(starts, TABLES[one.kind], strict=True) for _ in range(size)]

    def system(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A, b, C, d: the relaxation is A z ≤ b, C z = d, for the variables and then the factors' own parts."""
        box = np.concatenate([np.eye(self.n, self.n + self.m), -np.eye(self.n, self.n + self.m)])
        rows, bounds = [box], [np.concatenate([np.ones(self.n), np.zeros(self.n)])]
        equal: list[np.ndarray] = [np.zeros((0, self.n + self.m))]
        sums: list[np.ndarray] = [np.zeros(0)]
        for one in self.factors:
            wide = len(one.variables)
            A, b, C, d = facets(one.kind, wide)
            signs = self.signs(one)
            for matrix, right, into, onto in ((A, b, rows, bounds), (C, d, equal, sums)):
                row = np.zeros((len(matrix), self.n + self.m))
                shift = np.zeros(len(matrix))
                for k, (i, flip) in enumerate(zip(one.variables, signs, strict=True)):
                    row[:, i] += -matrix[:, k] if flip else matrix[:, k]
                    shift += matrix[:, k] if flip else 0.0
                row[:, self.n + one.own : self.n + one.own + matrix.shape[1] - wide] = matrix[:, wide:]
                into.append(row)
                onto.append(right - shift)
        return np.concatenate(rows), np.concatenate(bounds), np.concatenate(equal), np.concatenate(sums)

    def scores(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": flat[..., : self.n]} | ({"own": flat[..., self.n :]} if self.m else {})

    def ask(self, flat: torch.Tensor) -> structmax.Relaxed:
        return structmax.sparsemap(self.scores(flat), self.graph, tol=1e-10, max_iter=5000)

    def marginals(self, flat: torch.Tensor) -> torch.Tensor:
        out = self.ask(flat).marginals
        return torch.cat([out["x"], *([out["own"]] if self.m else [])], -1)


# What a constraint leaves, at the least, at some point where it does not bind: more than this.
ROOM = 1e-3


def _always_bind(A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray) -> np.ndarray | None:
    """Which of A z ≤ b hold with equality wherever C z = d and all of them hold; None where nothing does."""
    count, size = A.shape
    found = linprog(
        np.concatenate([np.zeros(size), -np.ones(count)]),
        np.concatenate([A, np.eye(count)], 1),
        b,
        np.concatenate([C, np.zeros((len(C), count))], 1),
        d,
        bounds=[(None, None)] * size + [(0, ROOM)] * count,
    )
    return found.x[size:] < ROOM / 2 if found.status == 0 else None


# Own parts are not regularised: proximal points, of a term this small, lead to the answer in a few steps.
PROXIMAL = 1e-2


class QuadraticProgram:
    """max ⟨θ, u⟩ + ⟨φ, ν⟩ − ½‖u‖² over A z ≤ b, C z = d, for z = (u, ν) with n entries u.

    The point of a polytope that is nearest to a given one is found by non-negative least squares (Lawson & Hanson 1974,
    chapter 23), again for the constraints that bind, and then seen to satisfy the conditions of optimality.
    """

    def __init__(self, A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray, n: int) -> None:
        self.n = n
        self.unit = np.concatenate([np.ones(n), np.full(A.shape[1] - n, math.sqrt(PROXIMAL))])
        C, A = C / self.unit, A / self.unit
        always = _always_bind(A, b, C, d)
        self.possible = always is not None
        if always is None:
            return
        C, d, A, b = np.concatenate([C, A[always]]), np.concatenate([d, b[always]]), A[~always], b[~always]
        self.origin = np.linalg.lstsq(C, d, rcond=None)[0] if len(C) else np.zeros(A.shape[1])
        self.basis = null_space(C, rcond=1e-10) if len(C) else np.eye(A.shape[1])
        rows, bounds = A @ self.basis, b - A @ self.origin
        size = np.linalg.norm(rows, axis=1)
        says = size > 1e-9
        self.rows, self.bounds = rows[says] / size[says, None], bounds[says] / size[says]
        self.binding: list[int] = []

    def _from(self, binding: list[int], goal: np.ndarray) -> np.ndarray | None:
        """The nearest point to a goal, from a guess of the constraints that bind; None where the guess is bad."""
        for _ in range(50):
            rows, bounds = self.rows[binding], self.bounds[binding]
            force = np.linalg.lstsq(rows @ rows.T, rows @ goal - bounds, rcond=1e-10)[0]
            point = goal - rows.T @ force
            over = self.rows @ point - self.bounds
            if force.min(initial=0.0) < -1e-9:
                binding = binding[: force.argmin()] + binding[force.argmin() + 1 :]
            elif over.max(initial=0.0) > 1e-9:
                if int(over.argmax()) in binding:
                    return None
                binding = [*binding, int(over.argmax())]
            else:
                # what binds does, what pulls binds, nothing is exceeded: the conditions of optimality
                assert np.abs(over[binding]).max(initial=0.0) < 1e-9
                self.binding = binding
                return point
        return None

    def _nearest(self, goal: np.ndarray) -> np.ndarray:
        point = self._from(self.binding, goal)
        if point is not None:
            return point
        slack = self.bounds - self.rows @ goal
        # in units of the distance, about
        matrix = np.concatenate([-self.rows.T, -slack[None] / max(1.0, -slack.min(initial=0.0))])
        weights, _ = nnls(matrix, np.eye(len(matrix))[-1], maxiter=100 * len(slack))
        point = self._from(np.flatnonzero(weights > 1e-12 * weights.max(initial=0.0)).tolist(), goal)
        assert point is not None, "the nearest point was not found"
        return point

    def __call__(self, scores: np.ndarray) -> np.ndarray | None:
        """z, or None where nothing is feasible."""
        if not self.possible:
            return None
        theta, phi = scores[: self.n], scores[self.n :]
        own, last, stride = np.zeros_like(phi), np.full_like(phi, np.inf), 1.0
        for _ in range(100):
            goal = np.concatenate([theta, own + phi / PROXIMAL]) * self.unit
            point = self._nearest(self.basis.T @ (goal - self.origin))
            z = (self.origin + self.basis @ point) / self.unit
            move = z[self.n :] - own
            # rounding moves it by about this much for ever
            if np.abs(move).max(initial=0.0) < 1e-13 * max(10.0, np.abs(goal).max()):
                return z
            # own scores that hardly differ lead on by little: as long as the way is straight, by more and more
            stride = 2 * stride if np.abs(move - last).max() < 1e-9 * np.abs(move).max() else 1.0
            own, last = own + stride * move, move
        raise AssertionError("proximal points did not come to rest")

    def slopes(self, scores: np.ndarray, step: float = 1e-5) -> np.ndarray | None:
        """The Jacobian by differences, None near a kink: where those to both sides are not the same."""
        here, columns = self(scores), []
        for bump in step * np.eye(len(scores)):
            up, down = self(scores + bump), self(scores - bump)
            assert here is not None
            assert up is not None
            assert down is not None
            if np.abs(up + down - 2 * here).max() > 1e-6 * step:
                return None
            columns.append((up - down) / (2 * step))
        return np.stack(columns, 1)
