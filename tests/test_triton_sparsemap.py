"""Sparse maps in Triton: by searches that the reference answers, against the reference; on a GPU, or interpreted."""

import math
import types

import pytest
import torch
from cases import CASES

pytest.importorskip("triton")

import triton
import triton.language as tl

import structmax
from structmax import rooms, testing
from structmax.numerics.kernel_triton import active_set, inverse, launch
from structmax.structures.sparse_support import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MATCHING = structmax.Matching()


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def searching(structure, monkeypatch, **more):
    """The structure in a class of its own, the Triton kernel of which borrows `argmax` of the reference."""
    kind = type(structure)
    twin = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    kernel = types.ModuleType(f"{kind.__module__}.kernel_triton")
    vars(kernel).update(argmax=rooms.function(kind.room, "argmax", "reference"), **more)
    holder = rooms.holder
    borrows = {(twin.room, "triton"): kernel}
    monkeypatch.setattr(rooms, "holder", lambda *which: borrows.get(which) or holder(*which))
    other = object.__new__(twin)
    vars(other).update(vars(structure))
    return other


def both(scores, structure, monkeypatch, **options):
    """The result on Triton, which is checked to be that of the reference."""
    got = structmax.sparsemap(
        structure.parts(tuple(t.to(DEVICE) for t in structure.tensors(scores))),
        searching(structure, monkeypatch),
        backend="triton",
        **options,
    )
    want = structmax.sparsemap(scores, structure, backend="reference", **options)
    for name in ("value", "converged"):
        found, expected = getattr(got, name).cpu().double(), getattr(want, name).double()
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9, equal_nan=True)
    for a, b in zip(structure.tensors(got.marginals), structure.tensors(want.marginals), strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=1e-9, rtol=0, equal_nan=True)
    return got


@pytest.mark.skipif(DEVICE == "cuda", reason="laws draw scores on the CPU")
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["subset", "lattice", "linear chain", "spanning tree"])
def test_law(name, monkeypatch):
    case = CASES[name]
    testing.law_sparsemap(testing.Case(searching(case.structure, monkeypatch), case.make_scores), "triton")


@pytest.mark.skipif(DEVICE == "cuda", reason="laws draw scores on the CPU")
@pytest.mark.thorough
def test_law_of_gradients(monkeypatch):
    case = CASES["subset"]
    testing.law_sparsemap_gradients(testing.Case(searching(case.structure, monkeypatch), case.make_scores), "triton")


# --- the search -----------------------------------------------------------------------------------------------------


def test_room_is_made_for_structures_and_parts(monkeypatch):
    """At first there is less room than for the first structure, and then than for the support."""
    monkeypatch.setattr(active_set, "STRUCTURES", 1)
    monkeypatch.setattr(active_set, "PARTS", 1)
    result = both(1e-3 * draw(1, 3, 3), MATCHING, monkeypatch)
    assert int(result.counts.min()) > 3


def test_what_is_forbidden_infeasible_or_none_stays_in_its_instance(monkeypatch):
    scores = draw(5, 3, 3)
    scores[0, 0, 1] = -math.inf
    scores[1, 0] = -math.inf
    scores[2, 1] = -1e30
    scores[3, 0, 0] = math.nan
    result = both(scores, MATCHING, monkeypatch)
    assert result.counts[[1, 3]].tolist() == [0, 0]
    assert result.iterations[[1, 3]].tolist() == [0, 0]


def test_the_best_structure_may_be_empty(monkeypatch):
    scores = draw(3, 2, 2)
    scores[0], scores[1] = -1.0, -math.inf
    result = both(scores, structmax.Matching(partial=True), monkeypatch)
    assert result.counts[:2].tolist() == [1, 1]


def test_parts_that_count_twice(monkeypatch):
    chain = structmax.LinearChain(torch.tensor([4, 2]))
    scores = draw(2, 4, 2), draw(2, 2, 2, seed=1) + torch.eye(2)
    result = both(scores, chain, monkeypatch, regularised=("pairwise",))
    assert int(result.parts.pairwise.max()) > 1


def test_free_parts_that_all_differ(monkeypatch):
    """Structures with the same regularised parts: one of them gives the other its weight."""
    choices = structmax.Lattice(torch.tensor([[0, 1], [0, 1], [1, 2], [1, 2]]), source=0, sink=2)
    both(torch.tensor([[0.0, 0.1, 0.3, 0.0]], dtype=torch.float64), choices, monkeypatch)
    chain = structmax.LinearChain()
    both((0.1 * draw(1, 3, 2), draw(1, 2, 2, 2, seed=1)), chain, monkeypatch, regularised=("unary",))


def test_an_end_before_the_optimum(monkeypatch):
    with pytest.warns(UserWarning, match="did not converge in 2 of 2 instances after max_iter=2"):
        result = both(1e-3 * draw(2, 3, 3), MATCHING, monkeypatch, max_iter=2)
    assert result.iterations.tolist() == [2, 2]
    with pytest.warns(UserWarning, match="did not converge"):
        want = structmax.sparsemap(1e-3 * draw(2, 3, 3), MATCHING, max_iter=2, backend="reference")
    torch.testing.assert_close(result.gap.cpu(), want.gap, atol=1e-12, rtol=0)


def test_starts(monkeypatch):
    """Good ones are all that it takes; those that are far off are left."""
    scores, partial = draw(2, 2, 2), structmax.Matching(partial=True)
    result = both(scores, partial, monkeypatch)
    absent = torch.arange(result.lists.shape[1], device=DEVICE) >= result.counts[:, None]
    lists = result.lists.masked_fill(absent[..., None], -1)
    again = _sparsemap(partial, scores.to(DEVICE), lists)
    assert again[5].tolist() == [1, 1]
    torch.testing.assert_close(again[0], result.value, atol=1e-9, rtol=0)
    far = _sparsemap(partial, 1e6 * scores.to(DEVICE), lists)
    want = structmax.sparsemap(1e6 * scores, partial, backend="reference")
    torch.testing.assert_close(far[0].cpu(), want.value, atol=0, rtol=1e-14)
    assert bool(far[7].all())


def _sparsemap(structure, scores, start):
    argmax = rooms.function(structure.room, "argmax", "reference")
    regularised = torch.ones(scores.flatten(1).shape, dtype=torch.bool, device=DEVICE)
    fields = structure.fields((scores,))
    return active_set.sparsemap(
        argmax, None, scores, regularised=regularised, start=start, max_iter=99, tol=1e-11, **fields
    )


def test_no_instances_and_no_parts(monkeypatch):
    assert both(draw(0, 2, 2), MATCHING, monkeypatch).counts.shape == (0,)
    assert both(draw(2, 2, 0), MATCHING, monkeypatch).probabilities.tolist() == [[1.0, 1.0]]


def test_gradients_are_those_of_the_reference(monkeypatch):
    chain = structmax.LinearChain(torch.tensor([3, 1, 2]))
    scores, along = (draw(3, 3, 2), draw(3, 2, 2, 2, seed=1)), draw(3, 3, 2, seed=2)

    def gradients(structure, backend, device):
        leaves = tuple(t.to(device).requires_grad_() for t in scores)
        result = structmax.sparsemap(leaves, structure, backend=backend, temperature=0.7)
        total = (result.marginals.unary * along.to(device)).sum() + result.value.sum()
        return torch.autograd.grad(total + result.probabilities.square().sum(), leaves)

    got = gradients(searching(chain, monkeypatch), "triton", DEVICE)
    for found, want in zip(got, gradients(chain, "reference", "cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), want, atol=1e-10, rtol=0)


def test_a_kernel_is_asked_whether_it_refuses_the_search(monkeypatch):
    def refuses(name, tensors, fields):
        return "rows are too long" if name == "argmax" else None

    structure = searching(MATCHING, monkeypatch, refuses=refuses)
    with pytest.raises(structmax.Refusal, match="does not support `sparsemap` with backend='triton': rows are too"):
        structmax.sparsemap(draw(1, 2, 2).to(DEVICE), structure, backend="triton")


# --- matrices, mixtures ---------------------------------------------------------------------------------------------


@triton.jit
def _come_and_go(p_gram, p_wanted, p_inverse, p_anew, p_work, K: tl.constexpr, ROWS: tl.constexpr):
    """All K rows come, the second one goes; then the inverse is made anew from the matrix."""
    o_k = tl.arange(0, K)
    for k in range(0, K):
        b_row = tl.where(o_k <= k, tl.load(p_wanted + k * K + o_k), 0.0)
        b_h = tl.where(o_k < k, b_row, 0.0)
        b_v = inverse.times(p_inverse, p_work, b_h, K, K, ROWS)
        rest = inverse.entry(b_row, k, K) - tl.sum(b_h * b_v, 0)
        inverse.write_row(p_gram, b_row, k, K)
        inverse.border(p_inverse, p_work, b_v, rest, k, K, K, ROWS)
    b_one = inverse.times(p_inverse, p_work, tl.full((K,), 1.0, tl.float64), K, K, ROWS)
    inverse.drop(p_gram, p_inverse, p_work, b_one, b_one, 1, K, K, ROWS)
    inverse.rebuild(p_gram, p_anew, p_work, K, K, ROWS)


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_of_an_inverse_come_and_go(rows):
    root = draw(4, 4)
    wanted = root @ root.T + torch.eye(4)
    gram, found, anew = (torch.zeros(4, 4, dtype=torch.float64, device=DEVICE) for _ in range(3))
    work = torch.zeros(2, 4, dtype=torch.float64, device=DEVICE)
    launch(_come_and_go, (1,), (gram, wanted.to(DEVICE), found, anew, work), (4, rows))
    kept = torch.tensor([0, 2, 3])
    want = torch.zeros(4, 4, dtype=torch.float64)
    want[kept[:, None], kept] = wanted[kept[:, None], kept].inverse()
    torch.testing.assert_close(found.cpu(), want, atol=1e-12, rtol=0)
    torch.testing.assert_close(anew.cpu(), want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("K", "L", "P"), [(1, 1, 1), (3, 130, 7), (5, 3, 40)])
def test_mixtures_and_responses(K, L, P, dtype):
    """Parts are listed several times, P fills lists up, and not all structures have a rank."""
    generator = torch.Generator().manual_seed(0)
    lists = torch.randint(0, P + 1, (4, K, L), generator=generator, dtype=torch.int32)
    flat, change, root = draw(4, P).to(dtype), draw(4, K, seed=1).to(dtype), draw(4, K, K, seed=2)
    factor = torch.linalg.cholesky(root @ root.mT + torch.eye(K), upper=True)
    # what is no part of the upper triangle of the ranks is ignored
    factor = torch.where(torch.ones(K, K).triu().bool(), factor, math.nan)
    ranks = torch.tensor([K, K, max(0, K - 1), 0])
    weights = draw(4, K, seed=3)
    weights[1] = 0.0
    here = {"flat": flat, "change": change, "lists": lists, "factor": factor, "ranks": ranks, "weights": weights}
    there = {name: tensor.to(DEVICE) for name, tensor in here.items()}
    for function, names in (("mixture", ("lists", "weights")), ("response", ("change", "lists", "factor", "ranks"))):
        got = getattr(kernel_triton, function)(there["flat"], **{name: there[name] for name in names})
        want = getattr(reference, function)(flat, **{name: here[name] for name in names})
        for a, b in zip(got if names[0] == "change" else [got], want if names[0] == "change" else [want], strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a.cpu(), b, atol=1e-11, rtol=2 * torch.finfo(dtype).eps)
