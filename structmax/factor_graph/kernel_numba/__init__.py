"""What a factor graph answers, on the CPU: by the solver beside this folder, whose kernels are in it."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from structmax.factor_graph.faces import Faces
from structmax.factor_graph.layout import Layout
from structmax.factor_graph.program import stated, worth
from structmax.factor_graph.search import search
from structmax.factor_graph.solver import INFEASIBLE, RUNNING, Solver
from structmax.parts import score

# How many steps a quadratic program may take, and how many relaxations a search may solve for one instance.
MOST_STEPS, MOST_NODES = 1000, 1000


def argmax(*scores: Tensor, layout: int, **fields: Any) -> tuple[Tensor, ...]:
    """The best structures, for certain; NaN where a score is none."""
    graph = Layout.of_number(layout)
    program, _, _, lost = stated(graph, scores, fields)
    found = search(graph, program, True, MOST_STEPS, MOST_NODES)
    unsure = int((~torch.from_numpy(found.exact) & ~lost).sum())
    if unsure:
        warnings.warn(
            f"argmax of a FactorGraph: {unsure} of {len(lost)} instances were not solved in {MOST_NODES} relaxations, "
            "so a better structure than the one returned may exist. Try `graph.search` with a larger `max_nodes`.",
            stacklevel=2,
        )
    parts = tuple(t.to(scores[0].dtype) for t in _with_losses(graph, found.u, found.nu, lost))
    # a sum that overflows in the dtype of the scores is forbidden
    nothing = score(scores, parts).isneginf()
    return tuple(t.masked_fill(nothing.reshape(-1, *(1,) * (t.dim() - 1)), 0.0) for t in parts)


def relax(*scores: Tensor, layout: int, max_iter: int, tol: float, **fields: Any) -> tuple[Tensor, ...]:
    """See the contract. The state is that of the faces the solution lies on."""
    graph = Layout.of_number(layout)
    program, theta, phi, lost = stated(graph, scores, fields)
    solver = Solver(graph, program, tol, graph.norm)
    solver.run(int(max_iter))
    u, nu = solver.answer()
    fixed = [
        # exactly 0 where one is off whose score is so low that rounding would be worth something
        parts.masked_fill((parts < 1e-9) & (given < torch.from_numpy(raised)), 0.0)
        for parts, given, raised in (
            (torch.from_numpy(u), theta, program.theta),
            (torch.from_numpy(nu), phi, program.phi),
        )
    ]
    value = worth(theta, fixed[0]) + worth(phi, fixed[1]) - 0.5 * (torch.from_numpy(graph.norm) * fixed[0] ** 2).sum(-1)
    impossible = torch.from_numpy(solver.status == INFEASIBLE)
    gap = (torch.from_numpy(solver.bound()) - value).clamp_min(0.0).masked_fill(impossible, 0.0)
    value = value.masked_fill(impossible, -math.inf).masked_fill(lost, math.nan)
    faces = solver.faces()
    faces.still[lost.numpy()] = True
    _warn(int((solver.status == RUNNING).sum()), len(lost), int(max_iter))
    converged = torch.from_numpy(solver.status != RUNNING) & ~lost
    numbers = torch.from_numpy(solver.iterations), converged, gap, torch.from_numpy(solver.residuals)
    return value, *_with_losses(graph, u, nu, lost), *numbers, *faces.packed()


def relax_jvp(*tangent_and_state: Tensor, layout: int, **fields: Any) -> tuple[Tensor, ...]:
    """The Jacobian of the parts that `relax` returned, symmetric, times a tangent."""
    graph = Layout.of_number(layout)
    *tangent, whole, real = tangent_and_state
    if not len(whole):
        return tuple(map(torch.zeros_like, tangent))
    bound, free = (t.double().numpy() for t in graph.joined(tangent))
    moved, along = Faces.unpacked(graph, whole, real).product(bound, free)
    return tuple(t.to(tangent[0].dtype) for t in graph.split(torch.from_numpy(moved), torch.from_numpy(along)))


def _with_losses(graph: Layout, u: Any, nu: Any, lost: Tensor) -> tuple[Tensor, ...]:
    nothing = lost.unsqueeze(-1)
    return graph.split(*(torch.from_numpy(a).masked_fill(nothing, math.nan) for a in (u, nu)))


def _warn(open_ones: int, count: int, max_iter: int) -> None:
    if open_ones:
        warnings.warn(
            f"sparsemap of a FactorGraph: {open_ones} of {count} instances did not converge in {max_iter} "
            "steps: see `converged` and the residuals. Try a larger `max_iter`, or check whether the constraints can "
            "all hold at once.",
            stacklevel=4,
        )
