"""Laws of the sparse map."""

import math

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax.contract import AbstractRelaxation
from structmax.questions.sparse_marginals import sparse_marginals
from structmax.questions.sparsemap import Relaxed, SparseMAP, sparsemap
from structmax.testing.case import Case, same, variants
from structmax.testing.derivatives import fast
from structmax.testing.projection import nearest


def _parts(case: Case) -> tuple[str, ...]:
    """The names of all part tensors."""
    return case.structure.names[: len(case.scores())]


def counted(case: Case, names: tuple[str, ...] | None) -> Tensor:
    """1 for the regularised parts of an instance, 0 for the others: (d,)."""
    scores = case.scores()
    chosen = names or case.structure.regularised or _parts(case)
    rank = scores[0].dim() - case.structure.event_dim
    fields = zip(_parts(case), scores, strict=True)
    return torch.cat([t.new_full((math.prod(t.shape[rank:]),), float(name in chosen)) for name, t in fields])


def law_sparsemap(case: Case, backend: str) -> None:
    """A distribution over members, the mean of which no member could improve, and the nearest point of all members."""
    for names in dict.fromkeys((None, _parts(case))):
        regular = counted(case, names)
        for name, scores in variants(case).items():
            parts = case.parts(scores)
            result = sparsemap(parts, case.structure, tol=1e-12, regularised=names, backend=backend)
            _check(case, scores, result, regular, name)
            again = sparsemap(parts, case.structure, tol=1e-12, regularised=names, start=result, backend=backend)
            same(f"warm start, {name}", case.flat(again.marginals), case.flat(result.marginals), 1e-9)
            assert bool((again.iterations <= 1).all()), f"warm start, {name}: asks {again.iterations.max()} times"


def _check(case: Case, scores: tuple[Tensor, ...], result: SparseMAP, regular: Tensor, name: str) -> None:
    every, members = case.scores_of_members(scores), case.members(scores)
    feasible, exists = every > -math.inf, (every > -math.inf).any(-1)
    theta, mean = case.vector(scores).nan_to_num(neginf=0.0), case.flat(result.marginals)
    assert bool(result.converged.all()), f"sparsemap, {name}: not converged, gap {result.gap.max():.1e}"
    # a distribution over distinct feasible members, the likeliest first
    p, y = result.probabilities, case.vector(case.structure.tensors(result.parts))
    used = torch.arange(len(p)).reshape(-1, *(1,) * result.counts.dim()) < result.counts
    assert torch.equal(p > 0, used), f"sparsemap, {name}: probabilities are not positive on the support alone"
    assert bool((p[1:] <= p[:-1]).all()), f"sparsemap, {name}: probabilities are not in order"
    same(f"sum of probabilities, {name}", p.sum(0), exists.to(p.dtype), 1e-12)
    which = (y.unsqueeze(-2) == members).all(-1) & feasible & used.unsqueeze(-1)
    assert torch.equal(which.any(-1), used), f"sparsemap, {name}: a structure is no feasible member"
    assert bool((which.sum(0) <= 1).all()), f"sparsemap, {name}: a structure is there twice"
    same(f"mean of the structures, {name}", (p.unsqueeze(-1) * y).sum(0), mean, 1e-12)
    _is_best(case, scores, result, regular, name)
    if bool(regular.all()):
        rows = zip(members.flatten(0, -3), theta.flatten(0, -2), feasible.flatten(0, -2), strict=True)
        want = [nearest(y[keep], x) if bool(keep.any()) else torch.zeros_like(x) for y, x, keep in rows]
        same(f"sparsemap, {name}", mean, torch.stack(want).reshape(mean.shape), 1e-9)


def _is_best(case: Case, scores: tuple[Tensor, ...], result: SparseMAP | Relaxed, regular: Tensor, name: str) -> None:
    """No member is better than the mean: the variational inequality, which is the optimum."""
    every, members = case.scores_of_members(scores), case.members(scores)
    feasible, exists = every > -math.inf, (every > -math.inf).any(-1)
    theta, mean = case.vector(scores).nan_to_num(neginf=0.0), case.flat(result.marginals)
    value = (theta * mean).sum(-1) - (mean**2 * regular).sum(-1) / 2
    same(f"value of sparsemap, {name}", result.value, value.masked_fill(~exists, -math.inf))
    g = theta - mean * regular
    best = (g.unsqueeze(-2) * members).sum(-1).masked_fill(~feasible, -math.inf).amax(-1)
    scale = theta.abs().amax(-1).clamp_min(1)
    gap = ((best - (g * mean).sum(-1)) / scale)[exists]
    assert bool((gap <= 1e-11).all()), f"sparsemap, {name}: a member improves the mean by {gap.max():.1e}"


def law_relax(case: Case, backend: str) -> None:
    """A point that no member could improve; zeros where there is none, and exactly 0 for what no member has."""
    structure, regular = case.structure, counted(case, None)
    assert isinstance(structure, AbstractRelaxation), "a room with `relax` should be an AbstractRelaxation's"
    for name, scores in variants(case).items():
        result = sparsemap(case.parts(scores), structure, backend=backend)
        assert bool(result.converged.all()), f"sparsemap, {name}: not converged, gap {result.gap.max():.1e}"
        _is_best(case, scores, result, regular, name)
        every, mean = case.scores_of_members(scores), case.flat(result.marginals)
        unused = (case.members(scores).masked_fill((every == -math.inf).unsqueeze(-1), 0.0) <= 0).all(-2)
        assert not bool(mean[unused].any()), f"sparsemap, {name}: not exactly 0 where no member has the part"
        alike = case.flat(sparse_marginals(case.parts(scores), structure, backend=backend))
        same(f"sparse_marginals, {name}", alike, mean, 0.0)


def law_relax_gradients(case: Case, backend: str) -> None:
    """gradcheck with forward mode, and gradgradcheck, of the point and its value at random scores; and vmap."""
    structure, scores = case.structure, case.scores()
    assert isinstance(structure, AbstractRelaxation)
    leaves = tuple(t.clone().requires_grad_() for t in scores)

    def ask(*tensors: Tensor) -> tuple[Tensor, ...]:
        result = sparsemap(case.parts(tensors), structure, temperature=0.7, backend=backend)
        return (result.value, *case.outputs(result.marginals))

    assert gradcheck(ask, leaves, check_forward_ad=True), "sparsemap"
    assert gradgradcheck(ask, leaves, fast_mode=True), "sparsemap"
    many = tuple(torch.stack([t, -t]) for t in scores)
    for got, want in zip(torch.func.vmap(ask)(*many), ask(*many), strict=True):
        same("sparsemap under vmap", got, want)


def law_sparsemap_gradients(case: Case, backend: str) -> None:
    """gradcheck with forward mode, and gradgradcheck, of marginals, value, and means of what is no sum of parts."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    # The order of probabilities that tie may change: functions of structures are compared instead.
    directions = torch.randn(3, case.vector(leaves).shape[-1], generator=torch.Generator().manual_seed(1)).double()

    def ask(*tensors: Tensor) -> tuple[Tensor, ...]:
        result = sparsemap(case.parts(tensors), case.structure, temperature=0.7, backend=backend)
        y = case.vector(case.structure.tensors(result.parts))
        means = torch.einsum("k...,k...d->...d", result.probabilities, (y @ directions.T).square())
        return (means, result.value, *case.outputs(result.marginals))

    assert gradcheck(ask, leaves, check_forward_ad=True, **fast(backend)), "sparsemap"
    assert gradgradcheck(ask, leaves, fast_mode=True), "sparsemap"
