"""Single spanning trees beyond the laws: exhaustive small cases, larger ones by other means, chance, broken scores."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import SpanningTree
from structmax.structures.spanning_tree import reference_walk
from structmax.testing.chance import chi_squared

ROOTS = pytest.mark.parametrize("single_root", [True, False])
# What must not be read.
JUNK = math.nan


def usable(nodes: int, words: int) -> Tensor:
    node = torch.arange(nodes)
    return (node <= words) & (node[:, None] <= words) & (node > 0) & (node[:, None] != node)


def random_scores(batch: int, words: int, seed: int) -> Tensor:
    """Normal, tied integers and large by turns, with none to nearly all arcs forbidden, and junk where none can be."""
    generator = torch.Generator().manual_seed(seed)
    shape = batch, words + 1, words + 1
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    kind = torch.arange(batch)[:, None, None] % 3
    scores = torch.where(kind == 0, normal, torch.where(kind == 1, normal.round(), 1e3 * normal))
    share = torch.rand((batch, 1, 1), generator=generator) * (torch.arange(batch)[:, None, None] % 2)
    scores = scores.masked_fill(torch.rand(shape, generator=generator) < 0.8 * share, -math.inf)
    return scores.masked_fill(~usable(words + 1, words), JUNK)


def judged(scores: Tensor, structure: SpanningTree) -> tuple[Tensor, Tensor]:
    """All trees (M, d), and the score of each (B, M)."""
    members = structure.enumerate(scores[0]).flatten(1)
    return members, torch.where(members > 0, scores.flatten(1)[:, None], 0.0).sum(-1)


@ROOTS
@pytest.mark.parametrize("words", [1, 2, 3, 4, 5])
def test_the_best_trees_of_small_graphs(words, single_root):
    structure = SpanningTree(single_root=single_root)
    scores = random_scores(200, words, words)
    members, values = judged(scores, structure)
    k = min(len(members) + 1, 40)
    best = structmax.argmax(scores, structure).flatten(1)
    ranked = structmax.topk(scores, structure, k)
    want = torch.full((len(scores), k), -math.inf, dtype=torch.float64)
    want[:, : min(k, len(members))] = values.topk(min(k, len(members)), -1).values
    torch.testing.assert_close(ranked.values.T, want, rtol=1e-12, atol=1e-12)
    feasible = want[:, 0] > -math.inf
    assert not best[~feasible].any()
    which = (best[:, None] == members).all(-1)
    assert torch.equal(which.sum(-1), feasible.long())
    torch.testing.assert_close(values[which], want[feasible, 0], rtol=1e-12, atol=1e-12)
    which = (ranked.parts.flatten(2).transpose(0, 1)[:, :, None] == members).all(-1)
    assert torch.equal(which.sum(-1), (want > -math.inf).long())
    assert int(which.sum(1).max()) <= 1


@ROOTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_tree_of_larger_graphs_is_that_of_the_reference(single_root, dtype):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([16, 0, 11, 1])
    scores = torch.randn(4, 17, 17, generator=generator, dtype=dtype)
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < 0.5, -math.inf)
    structure = SpanningTree(lengths, single_root=single_root)
    used = torch.stack([usable(17, int(n)) for n in lengths])
    got = structmax.argmax(scores.masked_fill(~used, JUNK), structure, backend="numba")
    assert torch.equal(got, structmax.argmax(scores, structure, backend="reference"))
    parts, values = structmax.topk(scores.masked_fill(~used, JUNK), structure, 4, backend="numba")
    assert torch.equal(parts[0], got)
    want = structmax.topk(scores, structure, 4, backend="reference").values
    torch.testing.assert_close(values, want, rtol=1e-6, atol=1e-6)


def test_the_best_undirected_tree_is_scipy_s():
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    scores = torch.randn(3, 60, 60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    structure = SpanningTree(torch.tensor([60, 41, 2]), directed=False)
    best = structmax.argmax(scores, structure)
    for one, parts, n in zip(scores, best, structure.lengths.tolist(), strict=True):
        # its trees are least, and 0 is no edge
        tree = csgraph.minimum_spanning_tree(torch.triu(10.0 - one[:n, :n], 1).numpy()).toarray() > 0
        assert torch.equal(parts[:n, :n] > 0, torch.from_numpy(tree))
        assert parts.sum() == n - 1


@ROOTS
def test_cycles_within_cycles(single_root):
    """Neighbours want each other, the more the nearer to word 1: each cycle becomes part of the next."""
    n = 120
    scores = torch.full((n + 1, n + 1), -1e4, dtype=torch.float64)
    for m in range(1, n):
        scores[m + 1, m] = scores[m, m + 1] = n - m
    structure = SpanningTree(single_root=single_root)
    best = structmax.argmax(scores, structure)
    # all neighbours are joined, and any one word hangs on the root
    assert float((scores * best).sum()) == n * (n - 1) / 2 - 1e4
    assert int((structure.decode(best) == 0).sum()) == 1


@ROOTS
def test_max_marginals_of_the_best_tree_are_its_score(single_root):
    scores = torch.randn(2, 13, 13, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    structure = SpanningTree(torch.tensor([12, 7]), single_root=single_root, labelled=True)
    best, values = structmax.argmax(scores, structure), structmax.max_marginals(scores, structure)
    top = structmax.topk(scores, structure, 2).values
    for b in range(2):
        on, off = values[b][best[b] > 0], values[b][best[b] == 0]
        torch.testing.assert_close(on, top[0, b].expand_as(on))
        torch.testing.assert_close(off.max(), top[1, b])


# --- chance --------------------------------------------------------------------------------------------------------


def with_whirl(words: int, strength: float) -> Tensor:
    """Normal scores, and words 1 and 2 draw a walk to one another."""
    scores = torch.randn(words + 1, words + 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    scores[1, 2] += strength
    scores[2, 1] += strength
    return scores


@ROOTS
# Walks end soon, sometimes, and never.
@pytest.mark.parametrize("strength", [0.0, 3.5, 1000.0])
def test_draws_that_give_up_walking_are_as_good(single_root, strength):
    scores, structure = with_whirl(4, strength), SpanningTree(single_root=single_root)
    members, values = judged(scores[None], structure)
    drawn = structmax.sample(scores, structure, (6000,), generator=torch.Generator().manual_seed(5))
    which = (drawn.flatten(1)[:, None] == members).all(-1)
    assert bool((which.sum(-1) == 1).all())
    chi_squared("draws", which[:, None], values.softmax(-1))


@pytest.mark.thorough
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backends_draw_the_same(directed, labels, dtype):
    for single_root, strength in itertools.product([True, False], [0.0, 1000.0]):
        scores = torch.stack([with_whirl(7, strength), 300 * with_whirl(7, 0.0)]).to(dtype)
        if labels:
            scores = scores[..., None] + torch.randn(labels, generator=torch.Generator().manual_seed(6))
        structure = SpanningTree(torch.tensor([6, 7]), single_root=single_root, directed=directed, labelled=labels > 0)
        for question in (structmax.sample, structmax.sample_without_replacement):
            answers = []
            for backend in ("numba", "reference"):
                generator = torch.Generator().manual_seed(7)
                shape = (9,) if question is structmax.sample else 9
                answers.append(question(scores, structure, shape, generator=generator, backend=backend))
            torch.testing.assert_close(*answers, rtol=1e-6, atol=1e-6)


@ROOTS
def test_frequencies_of_arcs_are_marginals(single_root):
    scores = 2 * torch.randn(12, 12, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    structure = SpanningTree(single_root=single_root)
    draws = 20000
    drawn = structmax.sample(scores, structure, (draws,), generator=torch.Generator().manual_seed(9))
    mu = structmax.marginals(scores, structure)
    spread = (mu * (1 - mu) / draws).clamp_min(1 / draws**2).sqrt()
    assert float(((drawn.mean(0) - mu).abs() / spread).max()) < 5.0


@ROOTS
def test_without_replacement_exhausts_a_wide_set(single_root):
    scores = 1e3 * torch.randn(5, 5, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    scores[3, 1] = scores[0, 2] = -math.inf
    structure = SpanningTree(single_root=single_root)
    members, values = judged(scores[None], structure)
    drawn = structmax.sample_without_replacement(scores, structure, len(members) + 1)
    which = (drawn.parts.flatten(1)[:, None] == members).all(-1)
    assert torch.equal(which.any(0), values[0] > -math.inf)
    found = which.any(-1)
    assert torch.equal(found, drawn.log_probs > -math.inf)
    want = values[0].log_softmax(0)[which[found].long().argmax(-1)]
    torch.testing.assert_close(drawn.log_probs[found], want, rtol=1e-12, atol=1e-12)


def test_words_on_which_no_other_can_hang_are_roots():
    """Words 1 and 2 hang on 3, and 3 on none of them: trees of the words alone grow from 3 only."""
    scores = torch.full((4, 4), -math.inf, dtype=torch.float64)
    scores[0, 3] = scores[3, 1] = scores[3, 2] = scores[0, 1] = 0.0
    one = SpanningTree(single_root=True)
    drawn = structmax.sample(scores, one, (20,))
    assert torch.equal(one.decode(drawn), torch.tensor([3, 3, 0]).expand(20, 3))
    assert float(structmax.sample_without_replacement(scores, one, 2).log_probs[0]) == 0.0


def test_walks_of_both_backends_have_the_same_patience():
    kernel = pytest.importorskip("structmax.structures.spanning_tree.kernel_numba.walks")
    assert kernel.PATIENCE == reference_walk.PATIENCE


# --- broken scores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_instance_breaks_no_other(backend, broken):
    scores = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(11))
    structure = SpanningTree(single_root=True)

    def ask(theta: Tensor) -> list[Tensor]:
        parts, values = structmax.topk(theta, structure, 3, backend=backend)
        drawn = [
            structmax.sample(theta, structure, (2,), generator=torch.Generator().manual_seed(1), backend=backend),
            *structmax.sample_without_replacement(
                theta, structure, 2, generator=torch.Generator().manual_seed(2), backend=backend
            ),
        ]
        best = structmax.argmax(theta, structure, backend=backend)
        most = structmax.max_marginals(theta, structure, backend=backend)
        return [best[None], most[None], values, parts, *drawn]

    sound = ask(scores)
    scores[1, 2, 4] = broken
    used = usable(5, 4)
    for got, want in zip(ask(scores), sound, strict=True):
        assert torch.equal(got[:, [0, 2]], want[:, [0, 2]])
        assert bool((got[:, 1] if got.dim() == 2 else got[:, 1][:, used]).isnan().all())


def test_an_empty_batch():
    structure = SpanningTree(single_root=True)
    scores = torch.zeros(0, 4, 4)
    assert structmax.argmax(scores, structure).shape == (0, 4, 4)
    assert structmax.topk(scores, structure, 2).parts.shape == (2, 0, 4, 4)
    assert structmax.max_marginals(scores, structure).shape == (0, 4, 4)
    assert structmax.sample(scores, structure, (3,)).shape == (3, 0, 4, 4)
    assert structmax.sample_without_replacement(scores, structure, 3).log_probs.shape == (3, 0)


def test_no_tree_follows_those_whose_sum_is_a_number():
    """Two arcs of the lowest float32 are −inf together: such a tree is no member."""
    x = torch.full((3, 3), torch.finfo(torch.float32).min)
    x[0, 1] = 0.0
    best = structmax.topk(x, SpanningTree(single_root=False), 3)
    assert torch.equal(best.values.isfinite(), torch.tensor([True, True, False]))
    assert not best.parts[2].any()


def test_the_reference_has_sums_beyond_its_dtype():
    """It adds Python's floats, which have no end at that of float32."""
    x = torch.full((4, 4), torch.finfo(torch.float32).min)
    x[0, 1] = x[0, 2] = 0.0
    tree = SpanningTree(single_root=False)
    best = structmax.topk(x, tree, 4, backend="reference")
    assert torch.equal(best.values, structmax.topk(x, tree, 4).values)
    assert best.parts.any(-1).any(-1).tolist() == best.values.isfinite().tolist() == [True] * 3 + [False]
    most = structmax.max_marginals(x, tree, backend="reference")
    assert torch.equal(most, structmax.max_marginals(x, tree))
    drawn = structmax.sample_without_replacement(x, tree, 4, backend="reference")
    assert drawn.parts.any(-1).any(-1).sum() == 3
