"""Mean field on a factor graph: the best q that has no dependence between blocks, and its bound on log Z."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.factor_graph import FactorGraph
from structmax.factor_graph.beliefs.blocks import Blocks, require_blocks
from structmax.factor_graph.beliefs.fixed_point import Effort, Implicit
from structmax.factor_graph.beliefs.rules import AbstractWay, Beliefs, Found, beliefs, named, posed
from structmax.factor_graph.beliefs.sweep import Sweep
from structmax.parts import Tensors
from structmax.problem import Problem


@dataclass(frozen=True)
class MeanField(AbstractWay):
    """By updates of blocks; the state is their marginals (B, n)."""

    parallel: bool

    def search(self, problem: Problem, scores: Tensors) -> Found:
        effort, blocks = self.effort, Blocks(Sweep.of(problem, scores[0]), self.parallel)
        theta, phi, lost = blocks.scores(scores)
        eta, mu = blocks.start(theta, phi)
        running, iterations = ~lost, torch.zeros_like(lost, dtype=torch.int64)
        residual = theta.new_zeros(len(theta))
        for _ in range(effort.max_iter):
            if effort.tol > 0 and not bool(running.any()):
                break
            new_eta, new_mu = blocks.swept(theta, phi, eta, mu, effort.damping)
            change = (new_mu - mu).detach().abs().amax(-1)
            if effort.tol > 0:
                still = running.unsqueeze(-1)
                new_eta, new_mu = torch.where(still, new_eta, eta), torch.where(still, new_mu, mu)
                change = torch.where(running, change, residual)
            iterations, residual, eta, mu = iterations + running, change, new_eta, new_mu
            running = running & (residual > effort.tol) if effort.tol > 0 else running
        inside = blocks.inside(blocks.plan.whole, eta, phi)
        value = blocks.bound(theta, phi, eta, inside)
        parts = inside.marginals, blocks.own(inside, inside.marginals)
        return Found(value, *parts, iterations, residual, inside.marginals).of_instances(lost, inside.impossible)

    def marginals(self, problem: Problem, state: Tensor, scores: Tensors) -> Tensors:
        blocks = Blocks(Sweep.of(problem, state), self.parallel)
        theta, phi, _ = blocks.scores(scores)

        def step(mu: Tensor, theta: Tensor, phi: Tensor) -> Tensor:
            return blocks.swept(theta, phi, theta, mu, 0.0)[1]

        mu = Implicit.apply(self.effort, step, state, theta, phi)
        inside = blocks.inside(blocks.plan.whole, blocks.felt(blocks.plan.whole, theta, phi, mu), phi)
        possible = ~inside.impossible.unsqueeze(-1)
        own = blocks.own(inside, inside.marginals)
        return blocks.sweep.layout.split(torch.where(possible, inside.marginals, 0.0), torch.where(possible, own, 0.0))


def _unrolled(way: MeanField, problem: Problem) -> Tensors:
    """Outputs whose derivatives are those of the sweeps themselves."""
    return way.search(problem, problem.scores).outputs(problem, way.effort, problem.scores[0].dtype)


# The decorator loads the compiler when what it decorates is called.
@torch._disable_dynamo
def _uncompiled(way: MeanField, problem: Problem) -> Tensors:
    """torch.compile breaks the graph here, as it does where the number of sweeps is not given."""
    return _unrolled(way, problem)


def mean_field(
    scores: Mapping[str, Tensor],
    graph: FactorGraph,
    *,
    max_iter: int = 1000,
    tol: float = 1e-9,
    damping: float = 0.0,
    parallel: bool = False,
) -> Beliefs:
    """Marginals and a lower bound on the log-partition of a factor graph, by the mean-field approximation.

    The distribution p(y) ∝ exp⟨θ, y⟩ over the members of the graph is approximated by the best q that makes blocks
    independent. A block is a variable, or all variables of a factor other than `Pair`: exactly one head of a word, a
    tree, a chain. `Pair`s couple blocks. The bound is

        log Z ≥ max over q of E_q⟨θ, y⟩ + H(q)          q = Π q_block

    and each update of a block makes its q the exact distribution of that block, at scores that are its own plus the
    mean couplings to the others. The first q has no couplings. Without any it is exact. Where blocks attract each other
    strongly there are several local optima, of which one is found. Computed in float64, on the device of the scores.
    Inside torch.compile it breaks the graph and runs eagerly.

    A `Pair` of two variables of one block is exact if at most one literal of the block can be on, as in `Xor`. In other
    blocks, such as a tree, it is scored by the product of the two marginals: the result is then an approximation of log
    Z, and not always a bound.

    Args:
        scores: θ by name, each (…, *shape); leading batch dimensions broadcast. −inf forbids.
        graph: a `FactorGraph` in which each variable is in one factor at most, besides `Pair`s. The structures among
            them should have `marginals`.
        max_iter: how many sweeps, with an update of each block, an instance may use. Beyond that, it warns, and
            `converged` is False.
        tol: it stops where a sweep changes no marginal by more. 0: exactly `max_iter` sweeps, without a warning.
        damping: how much of a block's last scores is kept in an update, 0 ≤ damping < 1.
        parallel: updates all blocks at once, which is faster and need not converge. Otherwise blocks that are coupled
            are updated one after the other, and the bound never decreases.

    Returns:
        `Beliefs` with `marginals` by name, in the shapes of the scores, and the bound, `log_partition`. Their gradients
        are those of the fixed point, where the bound's are the marginals; with `tol=0` those of the sweeps that were
        taken. Then, for each instance, `iterations`, whether it `converged`, and the `residual`, the last change of a
        marginal. Where a block has no structure at all, marginals are zeros and the bound is −inf.

    Examples:
        >>> import torch, structmax
        >>> word, bond = structmax.factors.Variables("word", (2,)), structmax.factors.Variables("bond", (), free=True)
        >>> graph = structmax.FactorGraph(structmax.factors.Pair(word[0], word[1], score=bond))
        >>> found = structmax.mean_field({"word": torch.zeros(2), "bond": torch.tensor(1.0)}, graph)
        >>> found.marginals["word"], found.log_partition, torch.tensor(3 + torch.e).log()
        (tensor([0.6590, 0.6590]), tensor(1.7177), tensor(1.7437))

    Reference: Wainwright & Jordan 2008, Graphical models, exponential families, and variational inference; Saul &
    Jordan 1995, Exploiting tractable substructures in intractable networks; Wang & Tu 2020, Second-order neural
    dependency parsing with message passing and end-to-end training.
    """
    check.positive("tol", tol, or_zero=True, hint=" Try tol=0 for exactly `max_iter` sweeps.")
    way = MeanField(Effort.of("mean_field", max_iter, tol, damping), parallel)
    problem = posed(scores, graph)
    require_blocks(graph.layout)
    if tol > 0:
        return beliefs(way, problem)
    return named(problem, (_uncompiled if torch.compiler.is_compiling() else _unrolled)(way, problem))
