"""Parses of grammars of low rank: the same as of the grammar with their rules, and the kernels beyond enumeration."""

import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import LowRankPCFG
from structmax.structures.low_rank_pcfg import kernel_numba


def scores_of(*batch: int, N: int, K: int, T: int, R: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (N, T), (K,), (K, R), (R, K + T), (R, K + T), (N, N, K), (N, N, R)
    return tuple(torch.randn(*batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


def rules_of(heads: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The cube of rules: log Σ over r of exp(heads[a, r] + left[r, b] + right[r, c])."""
    factors = heads[..., :, :, None, None], left[..., None, :, :, None], right[..., None, :, None, :]
    return (factors[0] + factors[1] + factors[2]).logsumexp(-3)


def plain_log_partition(scores: tuple[Tensor, ...], n: int) -> Tensor:
    """The recursion over spans, one at a time, differentiable."""
    terms, roots, heads, left, right, spans, ranks = scores
    K = len(roots)
    lefts = {(i, i): (left[:, K:] + terms[i]).logsumexp(1) for i in range(n)}
    rights = {(i, i): (right[:, K:] + terms[i]).logsumexp(1) for i in range(n)}
    for w in range(1, n):
        for i in range(n - w):
            j = i + w
            splits = torch.stack([lefts[i, k] + rights[k + 1, j] for k in range(i, j)])
            inside = spans[i, j] + (heads + ranks[i, j] + splits.logsumexp(0)).logsumexp(1)
            lefts[i, j] = (left[:, :K] + inside).logsumexp(1)
            rights[i, j] = (right[:, :K] + inside).logsumexp(1)
    return (roots + inside).logsumexp(0)


def test_it_is_the_grammar_of_its_rules():
    """The log-partition, and the marginals of words, roots and spans, are those of the cube."""
    terms, roots, heads, left, right, spans, _ = scores_of(3, N=6, K=3, T=2, R=4)
    lengths = torch.tensor([6, 4, 2])
    cube = terms, rules_of(heads, left, right), roots, spans
    factors = terms, roots, heads, left, right, spans
    want, got = structmax.PCFG(lengths), LowRankPCFG(lengths)
    torch.testing.assert_close(structmax.log_partition(factors, got), structmax.log_partition(cube, want))
    of_cube, of_factors = structmax.marginals(cube, want), structmax.marginals(factors, got)
    for name in ("terms", "roots", "spans"):
        torch.testing.assert_close(getattr(of_factors, name), getattr(of_cube, name), msg=name)
    # a rule of the cube is used as often as its three factors together
    torch.testing.assert_close(of_factors.heads.sum(-1), of_cube.rules.sum((-1, -2)))
    torch.testing.assert_close(of_factors.left.sum(-2), of_cube.rules.sum((-1, -3)))
    torch.testing.assert_close(of_factors.right.sum(-2), of_cube.rules.sum((-2, -3)))


@pytest.mark.parametrize(("N", "K", "T", "R"), [(9, 3, 2, 4), (6, 9, 10, 17), (12, 1, 1, 1), (2, 2, 3, 2)])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_kernels_agree_with_the_plain_recursion(N: int, K: int, T: int, R: int, scale: float):
    """Products of matrices at the first scale, log space at the other."""
    scores = tuple(scale * t for t in scores_of(2, N=N, K=K, T=T, R=R))
    lengths = torch.tensor([N, max(2, N - 2)])
    value, *marginals = kernel_numba.log_partition_and_marginals(*scores, lengths=lengths)
    assert torch.equal(kernel_numba.log_partition(*scores, lengths=lengths), value)
    for b, n in enumerate(lengths.tolist()):
        leaves = tuple(t[b].clone().requires_grad_() for t in scores)
        want = plain_log_partition(leaves, n)
        torch.testing.assert_close(value[b], want, rtol=1e-12, atol=1e-12)
        gradients = torch.autograd.grad(want, leaves, materialize_grads=True)
        for name, got, gradient in zip(LowRankPCFG.Parts._fields, marginals, gradients, strict=True):
            torch.testing.assert_close(got[b], gradient, rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize("which", range(7))
def test_scores_far_apart_in_one_tensor_need_log_space(which: int):
    """One score 200 nats below the others: its own marginals are right all the same."""
    scores = tuple(t[None] for t in scores_of(N=4, K=2, T=2, R=2))
    place = (0, 1, 0), (0, 1), (0, 1, 0), (0, 1, 2), (0, 1, 1), (0, 0, 3, 1), (0, 0, 3, 0)
    scores[which][place[which]] = -200.0
    value, *marginals = kernel_numba.log_partition_and_marginals(*scores, lengths=torch.tensor([4]))
    leaves = tuple(t[0].clone().requires_grad_() for t in scores)
    want = plain_log_partition(leaves, 4)
    torch.testing.assert_close(value[0], want)
    for got, gradient in zip(marginals, torch.autograd.grad(want, leaves), strict=True):
        torch.testing.assert_close(got[0], gradient, rtol=1e-8, atol=0.0)


def test_lengths_below_two():
    scores, structure = scores_of(2, N=3, K=2, T=2, R=2), LowRankPCFG(torch.tensor([1, 0]))
    assert structmax.log_partition(scores, structure).tolist() == [-math.inf, 0.0]
    for question in (structmax.marginals, structmax.argmax):
        assert not any(part.any() for part in question(scores, structure))


def test_expected_uses_add_up():
    """n terms, n − 1 rules, children of either side and spans, one root, in long sentences of float32."""
    scores = tuple(t.float() for t in scores_of(2, N=40, K=12, T=9, R=20))
    grammar = (t[0].log_softmax(-1) for t in scores[1:5])
    lengths = torch.tensor([40, 17])
    found = structmax.marginals((scores[0], *grammar), LowRankPCFG(lengths))
    wanted = lengths, torch.ones(2), *[lengths - 1] * 5
    for part, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(part.flatten(1).sum(1), want.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_what_is_ignored_may_hold_anything(junk: float):
    scores, structure = scores_of(2, N=5, K=2, T=2, R=3), LowRankPCFG(torch.tensor([4, 2]))
    dirty = tuple(t.clone() for t in scores)
    for b, n in enumerate((4, 2)):
        dirty[0][b, n:] = junk
        for chart in dirty[5:]:
            chart[b, n:] = junk
            chart[b, :, n:] = junk
            chart[b][torch.ones(5, 5).tril().bool()] = junk
    # two words have no child that is a nonterminal
    dirty[3][1, :, :2] = junk
    dirty[4][1, :, :2] = junk
    for question in (structmax.log_partition, structmax.marginals, structmax.argmax):
        got, want = question(dirty, structure), question(scores, structure)
        pairs = [(got, want)] if isinstance(got, Tensor) else zip(got, want, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), question.__name__


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("which", range(7))
def test_a_broken_score_breaks_its_instance_alone(broken: float, which: int):
    scores = scores_of(2, N=3, K=2, T=2, R=2)
    place = ((1, 0, 0), (1, 0), (1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 1, 0), (1, 0, 1, 0))[which]
    scores[which][place] = broken
    value, *marginals = kernel_numba.log_partition_and_marginals(*scores, lengths=torch.tensor([3, 3]))
    assert value[0].isfinite()
    assert value[1].isnan()
    for part in marginals:
        assert part[0].isfinite().all()
        assert part[1].isnan().any()


def test_decode_and_encode_are_inverse():
    structure, scores = LowRankPCFG(torch.tensor([5, 3, 2, 1])), scores_of(4, N=5, K=2, T=3, R=2)
    best = structmax.argmax(scores, structure)
    nodes = structure.decode(best)
    assert [len(parse) for parse in nodes] == [9, 5, 3, 0]
    assert nodes[2][0][:2] == (0, 1)
    assert [node[3] for node in nodes[2][1:]] == [-1, -1]
    again = structure.encode([parse[::-1] for parse in nodes], scores)
    assert all(torch.equal(a, b) for a, b in zip(again, best, strict=True))
    stacked = LowRankPCFG.Parts(*(torch.stack([part, part]) for part in best))
    assert structure.decode(stacked) == [nodes, nodes]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([(0, 1, 0, 0), (0, 0, 2, -1)], r"2n − 1 nodes of a binary tree.*\(0, 1\) has no two children"),
        ([(0, 0, 2, -1)], "1 nodes are no parse of 2 words"),
        ([(0, 1, 2, 0)], r"nonterminals from 0 to 1 and ranks from 0 to 2, but hold \(0, 1, 2, 0\)"),
        ([(0, 0, 2, 0)], r"preterminals from 2 to 3 and ranks from -1 to -1, but hold \(0, 0, 2, 0\)"),
    ],
)
def test_nodes_that_are_no_parse(nodes, message):
    with pytest.raises(ValueError, match=message):
        LowRankPCFG().encode(nodes, scores_of(N=2, K=2, T=2, R=3))


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        (((3, 2),), TypeError, r"`scores` of a LowRankPCFG should be \(terms, roots, heads, left, right\)"),
        (((3,), (2,), (2, 4), (4, 4), (4, 4)), ValueError, r"`terms` should have shape \(…, N, T\)"),
        (((3, 2), (2,), (3, 4), (4, 4), (4, 4)), ValueError, r"`heads` should have shape \(2, 4\).*has \(3, 4\)"),
        (((3, 2), (2,), (2, 4), (4, 5), (4, 4)), ValueError, r"`left` should have shape \(4, 4\).*has \(4, 5\)"),
        (((3, 2), (2,), (2, 4), (4, 4), (4, 4), (3, 3, 4)), ValueError, r"`spans` should have shape \(3, 3, 2\)"),
        (((3, 2), (2,), (2, 0), (0, 4), (0, 4)), ValueError, "R = 0 ranks in `heads`, all at least 1"),
    ],
)
def test_shapes_that_do_not_fit_are_said(shapes, error, message):
    with pytest.raises(error, match=message):
        structmax.log_partition(tuple(torch.zeros(shape) for shape in shapes), LowRankPCFG())


def test_one_dtype():
    scores = [torch.zeros(shape) for shape in ((3, 2), (2,), (2, 4), (4, 4), (4, 4))]
    scores[2] = scores[2].double()
    with pytest.raises(TypeError, match=r"`heads` should have the dtype of `terms`, torch\.float32"):
        structmax.log_partition(scores, LowRankPCFG())


@pytest.mark.parametrize(("N", "K", "T", "R"), [(9, 3, 2, 4), (6, 9, 10, 17), (2, 2, 3, 2)])
def test_the_best_parse_is_that_of_any_recursion(N: int, K: int, T: int, R: int):
    scores, structure = scores_of(2, N=N, K=K, T=T, R=R), LowRankPCFG(torch.tensor([N, max(2, N - 3)]))
    best = structmax.argmax(scores, structure, backend="numba")
    want = structmax.topk(scores, structure, 1)
    assert structmax.which(scores, structure)["argmax"].startswith("numba (low_rank_pcfg/kernel_numba)")
    assert all(torch.equal(a, b[0]) for a, b in zip(best, want.parts, strict=True))
