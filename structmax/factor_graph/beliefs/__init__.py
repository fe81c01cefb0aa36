"""Belief propagation on a factor graph: marginals and the Bethe approximation of log Z, with their derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.factor_graph import FactorGraph
from structmax.factor_graph.beliefs.fixed_point import Effort, Implicit
from structmax.factor_graph.beliefs.odds import certain
from structmax.factor_graph.beliefs.rules import AbstractWay, Beliefs, Found, beliefs, posed
from structmax.factor_graph.beliefs.sweep import Sweep
from structmax.parts import Tensors
from structmax.problem import Problem

__all__ = ["Beliefs", "belief_propagation"]


@dataclass(frozen=True)
class Propagation(AbstractWay):
    """By messages (B, E) between factors and variables."""

    def search(self, problem: Problem, scores: Tensors) -> Found:
        effort, sweep = self.effort, Sweep.of(problem, scores[0])
        theta, phi, lost = sweep.scores(scores)
        rows = len(theta)
        messages = theta.new_zeros(rows, len(sweep.variable))
        running, impossible = ~lost, torch.zeros_like(lost)
        iterations, residual = torch.zeros_like(lost, dtype=torch.int64), theta.new_zeros(rows)
        for _ in range(effort.max_iter):
            if not bool(running.any()):
                break
            said = sweep.say(theta, phi, messages)
            iterations += running
            residual = torch.where(running, sweep.disagreement(said, messages), residual)
            impossible |= running & said.impossible
            sure = certain(said.messages) | certain(messages)
            new = torch.where(sure, said.messages, effort.mixed(said.messages, messages))
            messages = torch.where(running.unsqueeze(-1), new, messages)
            running &= ~impossible & (residual > effort.tol)
        said = sweep.say(theta, phi, messages)
        impossible |= said.impossible & ~lost
        value = sweep.bethe(theta, said, messages)
        parts = sweep.beliefs(theta, messages), said.own
        return Found(value, *parts, iterations, residual, messages).of_instances(lost, impossible)

    def marginals(self, problem: Problem, state: Tensor, scores: Tensors) -> Tensors:
        sweep = Sweep.of(problem, state)
        theta, phi, _ = sweep.scores(scores)

        def step(messages: Tensor, theta: Tensor, phi: Tensor) -> Tensor:
            return sweep.say(theta, phi, messages).messages

        messages = Implicit.apply(self.effort, step, state, theta, phi)
        said = sweep.say(theta, phi, messages)
        possible = ~said.impossible.unsqueeze(-1)
        return sweep.layout.split(
            torch.where(possible, sweep.beliefs(theta, messages), 0.0), torch.where(possible, said.own, 0.0)
        )


def belief_propagation(
    scores: Mapping[str, Tensor],
    graph: FactorGraph,
    *,
    max_iter: int = 1000,
    tol: float = 1e-9,
    damping: float = 0.0,
) -> Beliefs:
    """Marginals and log-partition of a factor graph by sum-product message passing. Exact on trees.

    The distribution is p(y) ∝ exp⟨θ, y⟩ over the members of the graph: 0/1 variables that satisfy all factors. Factors
    and variables send each other messages until the factors' marginals agree on the variables they share. If no two
    factors are joined by two paths, as in a tree, marginals and log Z are exact. On other graphs they are those
    of the Bethe approximation, which is good where couplings are weak, and messages need not converge. Computed in
    float64, on the device of the scores. Inside torch.compile it breaks the graph and runs eagerly.

    Args:
        scores: θ by name, each (…, *shape); leading batch dimensions broadcast. −inf forbids: the variable is 0.
        graph: a `FactorGraph`. The structures among its factors should have `marginals`.
        max_iter: how many sweeps an instance may use; a tree needs about as many as its longest path. Beyond
            that, it warns, and `converged` is False.
        tol: by how much a factor's marginal of a variable and the variable's own may differ.
        damping: how much of the last messages is kept, 0 ≤ damping < 1. More of it helps messages that oscillate.

    Returns:
        `Beliefs` with `marginals` by name, in the shapes of the scores, and `log_partition`, whose gradient they are:
        both differentiable, by solving linear equations at the fixed point. Then, for each instance, `iterations`,
        whether it `converged`, and the `residual`. Where messages show that nothing satisfies all factors, as on trees
        they always do, marginals are zeros and the log-partition is −inf.

    Examples:
        >>> import torch, structmax
        >>> word = structmax.factors.Variables("word", (3,))
        >>> graph = structmax.FactorGraph(
        ...     structmax.factors.Xor(word[0], word[1]), structmax.factors.Imply(word[1], word[2])
        ... )
        >>> found = structmax.belief_propagation({"word": torch.zeros(3)}, graph)
        >>> found.marginals["word"], found.log_partition.exp()
        (tensor([0.6667, 0.3333, 0.6667]), tensor(3.))

    Reference: Pearl 1988, Probabilistic reasoning in intelligent systems; Yedidia, Freeman & Weiss 2005, Constructing
    free energy approximations and generalized belief propagation algorithms; Smith & Eisner 2008, Dependency parsing by
    belief propagation.
    """
    check.positive("tol", tol)
    return beliefs(Propagation(Effort.of("belief_propagation", max_iter, tol, damping)), posed(scores, graph))
