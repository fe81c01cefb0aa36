"""Against lp-sparsemap, where it is installed: values of its factors and of loopy graphs."""

import pytest
import torch

import structmax
from structmax import FactorGraph
from structmax.factors import AtMostOne, Budget, Variables, Xor

lpsmap = pytest.importorskip("lpsmap", reason="lp-sparsemap is not installed")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_rows_and_columns():
    """The norm of both counts a variable once, in however many factors it is."""
    u = Variables("u", (3, 3))
    graph = FactorGraph(*(Xor(line) for i in range(3) for line in (u[i], u[:, i])))
    theta = random(10, 3, 3)
    ours = structmax.sparsemap({"u": theta}, graph).marginals["u"]
    for scores, mu in zip(theta, ours, strict=True):
        theirs = lpsmap.TorchFactorGraph()
        variable = theirs.variable_from(scores)
        for i in range(3):
            theirs.add(lpsmap.Xor(variable[i, :]))
            theirs.add(lpsmap.Xor(variable[:, i]))
        theirs.solve(max_iter=10000, tol=1e-9)
        torch.testing.assert_close(variable.value, mu, atol=1e-4, rtol=0)


def test_degrees_that_differ():
    u = Variables("u", (4,))
    graph = FactorGraph(AtMostOne(u[:3]), Budget(u, at_most=2), Xor(u[2:]))
    theta = random(10, 4)
    ours = structmax.sparsemap({"u": theta}, graph).marginals["u"]
    for scores, mu in zip(theta, ours, strict=True):
        theirs = lpsmap.TorchFactorGraph()
        variable = theirs.variable_from(scores)
        theirs.add(lpsmap.AtMostOne(variable[:3]))
        theirs.add(lpsmap.Budget(variable, 2))
        theirs.add(lpsmap.Xor(variable[2:]))
        theirs.solve(max_iter=10000, tol=1e-9)
        torch.testing.assert_close(variable.value, mu, atol=1e-4, rtol=0)
