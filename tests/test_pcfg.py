"""Parses of grammars: what decode and encode say, what is ignored, and the kernels on sizes beyond enumeration."""

import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax.structures.pcfg import kernel_numba


def scores_of(*batch: int, N: int, K: int, T: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (N, T), (K, K + T, K + T), (K,), (N, N, K)
    return tuple(torch.randn(*batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


def plain_log_partition(terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, n: int) -> Tensor:
    """The recursion over spans, one at a time, differentiable, with preterminals and nonterminals in one vector."""
    K, T = len(roots), terms.shape[1]
    nothing = lambda size: torch.full((size,), -1e9, dtype=terms.dtype)  # noqa: E731
    inside = {(i, i): torch.cat([nothing(K), terms[i]]) for i in range(n)}
    for w in range(1, n):
        for i in range(n - w):
            j = i + w
            splits = [inside[i, k].unsqueeze(1) + inside[k + 1, j] for k in range(i, j)]
            pairs = torch.stack(splits).logsumexp(0)
            inside[i, j] = torch.cat([spans[i, j] + (rules + pairs).flatten(1).logsumexp(1), nothing(T)])
    return (roots + inside[0, n - 1][:K]).logsumexp(0)


@pytest.mark.parametrize(("N", "K", "T"), [(9, 3, 2), (6, 9, 10), (12, 1, 1), (2, 2, 3)])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_kernels_agree_with_the_plain_recursion(N: int, K: int, T: int, scale: float):
    """Products of matrices at the first scale, log space at the other."""
    scores = tuple(scale * t for t in scores_of(2, N=N, K=K, T=T))
    lengths = torch.tensor([N, max(2, N - 2)])
    value, *marginals = kernel_numba.log_partition_and_marginals(*scores, lengths=lengths)
    assert torch.equal(kernel_numba.log_partition(*scores, lengths=lengths), value)
    for b, n in enumerate(lengths.tolist()):
        leaves = [t[b].clone().requires_grad_() for t in scores]
        want = plain_log_partition(*leaves, n)
        torch.testing.assert_close(value[b], want, rtol=1e-12, atol=1e-12)
        gradients = torch.autograd.grad(want, leaves)
        for name, got, gradient in zip(structmax.PCFG.Parts._fields, marginals, gradients, strict=True):
            torch.testing.assert_close(got[b], gradient, rtol=1e-9, atol=1e-10, msg=name)


def test_a_grammar_of_one_nonterminal_counts_trees():
    """One nonterminal, one preterminal, all scores 0: Catalan many parses."""
    lengths = torch.arange(2, 9)
    scores = torch.zeros(7, 8, 1, dtype=torch.float64), torch.zeros(1, 2, 2), torch.zeros(1)
    scores = tuple(t.double() for t in scores)
    catalan = [math.comb(2 * n, n) / (n + 1) for n in range(1, 8)]
    value = structmax.log_partition(scores, structmax.PCFG(lengths))
    torch.testing.assert_close(value, torch.tensor(catalan, dtype=torch.float64).log())


def test_lengths_below_two():
    scores, structure = scores_of(2, N=3, K=2, T=2), structmax.PCFG(torch.tensor([1, 0]))
    assert structmax.log_partition(scores, structure).tolist() == [-math.inf, 0.0]
    for question in (structmax.marginals, structmax.argmax):
        assert not any(part.any() for part in question(scores, structure))


def test_expected_uses_add_up():
    """n terms, n − 1 rules and spans, one root, in products of matrices and in long sentences of float32."""
    terms, rules, roots, _ = scores_of(2, N=40, K=12, T=9)
    terms, rules, roots = (t.float().log_softmax(-1) for t in (terms, rules, roots))
    lengths = torch.tensor([40, 17])
    found = structmax.marginals((terms, rules[0], roots[0]), structmax.PCFG(lengths))
    for part, want in zip(found, (lengths, lengths - 1, torch.ones(2), lengths - 1), strict=True):
        torch.testing.assert_close(part.flatten(1).sum(1), want.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_what_is_ignored_may_hold_anything(junk: float):
    scores, structure = scores_of(2, N=5, K=2, T=2), structmax.PCFG(torch.tensor([4, 2]))
    dirty = tuple(t.clone() for t in scores)
    for b, n in enumerate((4, 2)):
        dirty[0][b, n:] = junk
        dirty[3][b, n:] = junk
        dirty[3][b, :, n:] = junk
        dirty[3][b][torch.ones(5, 5).tril().bool()] = junk
    for question in (structmax.log_partition, structmax.marginals, structmax.argmax):
        got, want = question(dirty, structure), question(scores, structure)
        pairs = [(got, want)] if isinstance(got, Tensor) else zip(got, want, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), question.__name__


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("which", range(4))
def test_a_broken_score_breaks_its_instance_alone(broken: float, which: int):
    scores = scores_of(2, N=3, K=2, T=2)
    # A rule of two preterminals, which every sentence may use.
    place = ((1, 0, 0), (1, 0, 2, 3), (1, 0), (1, 0, 1, 0))[which]
    scores[which][place] = broken
    value, *marginals = kernel_numba.log_partition_and_marginals(*scores, lengths=torch.tensor([3, 3]))
    assert value[0].isfinite()
    assert value[1].isnan()
    for part in marginals:
        assert part[0].isfinite().all()
        assert part[1].isnan().any()


def test_decode_and_encode_are_inverse():
    structure, scores = structmax.PCFG(torch.tensor([5, 3, 2, 1])), scores_of(4, N=5, K=2, T=3)
    best = structmax.argmax(scores, structure)
    nodes = structure.decode(best)
    assert [len(parse) for parse in nodes] == [9, 5, 3, 0]
    again = structure.encode([parse[::-1] for parse in nodes], scores)
    assert all(torch.equal(a, b) for a, b in zip(again, best, strict=True))
    stacked = structmax.PCFG.Parts(*(torch.stack([part, part]) for part in best))
    assert structure.decode(stacked) == [nodes, nodes]


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        (((3, 2),), TypeError, r"`scores` of a PCFG should be \(terms, rules, roots\)"),
        (((3, 2), (2, 4, 4), (3,)), ValueError, r"`rules` should have shape \(3, 5, 5\).*K = 3.*has \(2, 4, 4\)"),
        (((3, 2), (2, 4, 4), (2,), (3, 3, 4)), ValueError, r"`spans` should have shape \(3, 3, 2\).*has \(3, 3, 4\)"),
        (((2,), (2, 4, 4), (2,)), ValueError, r"`terms` should have shape \(…, N, T\)"),
        (((5, 3, 2), (2, 4, 4), (4, 2)), ValueError, r"`roots` should have shape \(2,\) or \(5, 2\)"),
    ],
)
def test_messages(shapes: tuple[tuple[int, ...], ...], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        structmax.log_partition(tuple(torch.zeros(shape) for shape in shapes), structmax.PCFG())


def test_dtypes_agree():
    with pytest.raises(TypeError, match=r"`rules` should have the dtype of `terms`, torch.float32"):
        structmax.log_partition((torch.zeros(3, 1), torch.zeros(1, 2, 2).double(), torch.zeros(1)), structmax.PCFG())
