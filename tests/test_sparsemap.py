"""What the laws of the sparse map leave open: many random Jacobians, sizes, solvers, starts, messages."""

import math

import pytest
import torch

import structmax

SIMPLEX, CHAIN = structmax.Simplex(), structmax.LinearChain()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shapes, dtype=torch.float64, seed=0):
    g = generator(seed)
    tensors = tuple(torch.randn(shape, generator=g, dtype=dtype) for shape in shapes)
    return tensors if len(tensors) > 1 else tensors[0]


def flat(structure, parts, batch=1):
    return torch.cat([t.flatten(batch) for t in structure.tensors(parts)], -1)


# --- gradients ------------------------------------------------------------------------------------------------------

THOUSAND = {
    "simplex": (SIMPLEX, [(1000, 6)]),
    "chain": (CHAIN, [(1000, 5, 3), (1000, 4, 3, 3)]),
    "chain, one matrix": (CHAIN, [(1000, 5, 3), (3, 3)]),
    "semi-Markov": (structmax.SemiMarkov(), [(1000, 4, 2, 2), (2, 2)]),
    "alignment": (structmax.MonotoneAlignment(), [(1000, 4, 4)]),
    "projective tree": (structmax.ProjectiveTree(single_root=True), [(1000, 6, 6)]),
    "binary tree": (structmax.BinaryTree(), [(1000, 6, 6)]),
    "spanning tree": (structmax.SpanningTree(single_root=True), [(1000, 6, 6)]),
    "undirected tree": (structmax.SpanningTree(directed=False), [(1000, 6, 6)]),
    "matching": (structmax.Matching(), [(1000, 4, 5)]),
    "partial matching": (structmax.Matching(partial=True), [(1000, 4, 4)]),
}


@pytest.mark.parametrize("name", THOUSAND)
def test_a_thousand_jacobians(name):
    """Marginals against differences wherever these are straight, and means over structures while the support stays."""
    structure, shapes = THOUSAND[name]
    scores, along = (structure.tensors(draw(*shapes, seed=seed)) for seed in (0, 1))
    weigh = torch.randn(flat(structure, scores).shape[-1], generator=generator(2), dtype=torch.float64)

    def ask(*tensors):
        result = structmax.sparsemap(structure.parts(tensors), structure)
        codes = flat(structure, result.parts, 2) @ weigh
        # A function of structures that is no sum of their parts, and a mark of the support.
        expected = (result.probabilities * codes.square()).sum(0)
        mark = torch.where(result.probabilities > 0, (7 * codes).sin(), 0.0).sum(0)
        return (flat(structure, result.marginals), expected), mark

    def moved(step):
        return ask(*(t + step * d for t, d in zip(scores, along, strict=True)))

    step = 1e-4
    (here, _), (pushed, pushed_expected), mark = torch.func.jvp(ask, scores, along, has_aux=True)
    ((above, above_expected), mark_above), ((below, below_expected), mark_below) = moved(step), moved(-step)
    straight = (above - 2 * here + below).abs().amax(-1) < 1e-9
    assert straight.double().mean() > 0.98
    wrong = ((above - below) / (2 * step) - pushed).abs().amax(-1) > 1e-6
    assert not bool((wrong & straight).any())
    stays = ((mark_above - mark).abs() < 1e-9) & ((mark_below - mark).abs() < 1e-9) & straight
    assert stays.double().mean() > 0.3
    wrong = ((above_expected - below_expected) / (2 * step) - pushed_expected).abs() > 1e-5
    assert not bool((wrong & stays).any())


def test_backward_again_is_the_same_and_agrees_with_forward_mode():
    unary, pairwise = (t.requires_grad_() for t in draw((4, 6, 3), (3, 3)))
    result = structmax.sparsemap((unary, pairwise), CHAIN)
    total = (result.marginals.unary * draw((4, 6, 3), seed=1)).sum() + result.probabilities.square().sum()
    once = torch.autograd.grad(total, (unary, pairwise), retain_graph=True)
    again = torch.autograd.grad(total, (unary, pairwise))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_transforms():
    scores = draw((3, 2, 5))
    tree = structmax.SpanningTree(single_root=False)
    arcs = draw((3, 2, 4, 4))

    def total(x):
        return structmax.sparsemap(x, SIMPLEX).marginals.square().sum()

    got = torch.func.vmap(torch.func.grad(total))(scores)
    want = torch.stack([torch.func.grad(total)(x) for x in scores])
    torch.testing.assert_close(got, want)
    every = torch.func.vmap(lambda x: structmax.sparsemap(x, tree).marginals)(arcs)
    torch.testing.assert_close(every, structmax.sparsemap(arcs, tree).marginals)


def test_compiled_code_breaks_at_it_and_is_right():
    scores = draw((3, 5)).requires_grad_()
    compiled = torch.compile(lambda x: structmax.sparsemap(2 * x, SIMPLEX).marginals * 3, backend="eager")
    torch.testing.assert_close(compiled(scores), 3 * structmax.sparsemax(2 * scores))


# --- values ---------------------------------------------------------------------------------------------------------


def test_on_the_simplex_it_is_sparsemax():
    scores = draw((20, 9))
    result = structmax.sparsemap(scores, SIMPLEX, temperature=0.3)
    torch.testing.assert_close(result.marginals, structmax.sparsemax(scores / 0.3), rtol=0, atol=1e-12)
    assert torch.equal(result.counts, (result.marginals > 0).sum(-1))


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize(
    ("structure", "shapes"),
    [
        (CHAIN, [(3, 7, 4), (3, 6, 4, 4)]),
        (structmax.SpanningTree(torch.tensor([7, 5, 0]), single_root=False), [(3, 8, 8)]),
        (structmax.Matching(torch.tensor([6, 3, 6]), torch.tensor([5, 5, 2])), [(3, 6, 5)]),
    ],
    ids=["chain", "tree", "matching"],
)
def test_no_structure_is_better_on_larger_sizes(structure, shapes, backend):
    scores = draw(*shapes)
    result = structmax.sparsemap(scores, structure, tol=1e-12, backend=backend)
    parts = structure.tensors(scores)
    free = structure.Parts is not None
    mean = structure.tensors(result.marginals)
    g = tuple(t - m if not (free and i) else t for i, (t, m) in enumerate(zip(parts, mean, strict=True)))
    best = structure.tensors(structmax.argmax(structure.parts(g), structure))
    gap = sum((d * (y - m)).flatten(1).sum(-1) for d, y, m in zip(g, best, mean, strict=True))
    assert bool((gap < 1e-11).all())
    assert bool(result.converged.all())


def test_backends_agree_and_threads_change_nothing():
    scores, tree = draw((4, 8, 8)), structmax.SpanningTree(single_root=True)
    ours, reference = (structmax.sparsemap(scores, tree, backend=backend) for backend in ("numba", "reference"))
    torch.testing.assert_close(ours.marginals, reference.marginals, rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.value, reference.value, rtol=0, atol=1e-10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = structmax.sparsemap(scores, tree, backend="numba")
    torch.set_num_threads(threads)
    assert torch.equal(alone.marginals, ours.marginals)


def test_more_structures_than_there_is_room_for_at_first():
    """Tied scores of matchings have large supports, and warm starts bring many structures."""
    scores = draw((2, 9, 9)) * 1e-3
    result = structmax.sparsemap(scores, structmax.Matching())
    assert int(result.counts.min()) > 4 * 9 + 16
    torch.testing.assert_close(result.marginals, structmax.sparse_marginals(scores, structmax.Matching()))
    again = structmax.sparsemap(scores, structmax.Matching(), start=result)
    assert again.iterations.tolist() == [1, 1]


def test_temperature_goes_from_argmax_to_the_most_even_mean():
    scores = draw((5, 5, 5))
    tree = structmax.SpanningTree(single_root=False)
    cold = structmax.sparsemap(scores, tree, temperature=1e-6)
    assert torch.equal(cold.marginals, structmax.argmax(scores, tree))
    assert cold.counts.tolist() == [1] * 5
    warm = structmax.sparsemap(scores, tree, temperature=1e6)
    even = structmax.sparsemap(torch.zeros_like(scores), tree)
    torch.testing.assert_close(warm.marginals, even.marginals, rtol=0, atol=1e-5)


def test_float32_and_half():
    scores = draw((4, 9, 9), dtype=torch.float32)
    tree = structmax.SpanningTree(single_root=True)
    result, exact = structmax.sparsemap(scores, tree), structmax.sparsemap(scores.double(), tree)
    assert result.marginals.dtype == result.probabilities.dtype == result.value.dtype == torch.float32
    torch.testing.assert_close(result.marginals.double(), exact.marginals, rtol=0, atol=1e-6)
    assert torch.equal(result.counts, exact.counts)
    half = scores.bfloat16().requires_grad_()
    found = structmax.sparsemap(half, tree).marginals
    assert found.dtype == torch.bfloat16
    assert torch.autograd.grad(found.float().square().sum(), half)[0].dtype == torch.bfloat16


def test_nan_stays_in_its_instance_and_padding_may_hold_anything():
    tree = structmax.SpanningTree(torch.tensor([3, 2, 3]), single_root=False)
    scores = draw((3, 4, 4))
    want = structmax.sparsemap(scores, tree)
    scores[0, 1, 2] = math.nan
    scores[1, 3] = scores[1, :, 3] = math.nan
    scores[:, range(4), range(4)] = math.nan
    result = structmax.sparsemap(scores, tree)
    assert bool(result.marginals[0].isnan().any())
    assert bool(result.value[0].isnan())
    assert not bool(result.converged[0])
    torch.testing.assert_close(result.marginals[1:], want.marginals[1:])


def test_no_batch_and_an_empty_one():
    tree = structmax.SpanningTree(single_root=False)
    alone = structmax.sparsemap(draw((5, 5)), tree)
    assert alone.value.shape == ()
    assert alone.parts.shape == (int(alone.counts), 5, 5)
    none = structmax.sparsemap(draw((0, 5, 5)), tree)
    assert none.marginals.shape == (0, 5, 5)
    assert none.counts.shape == (0,)
    assert structmax.sparsemap(draw((0, 5)), SIMPLEX).marginals.shape == (0, 5)


def test_sparse_marginals_take_this_way_where_there_is_no_shorter():
    scores = draw((3, 4, 2), (2, 2))
    got = structmax.sparse_marginals(scores, CHAIN, temperature=0.5)
    want = structmax.sparsemap(scores, CHAIN, temperature=0.5).marginals
    assert torch.equal(got.unary, want.unary)
    assert torch.equal(got.pairwise, want.pairwise)


# --- starts, solvers ------------------------------------------------------------------------------------------------


def test_a_start_saves_searches_and_changes_nothing():
    tree = structmax.SpanningTree(single_root=False)
    scores = draw((8, 9, 9))
    cold = structmax.sparsemap(scores, tree)
    near = scores + 1e-3 * draw((8, 9, 9), seed=1)
    want = structmax.sparsemap(near, tree)
    for start in (cold, cold.parts, structmax.sample(scores, tree, (4,), generator=generator())):
        warm = structmax.sparsemap(near, tree, start=start)
        torch.testing.assert_close(warm.marginals, want.marginals, rtol=0, atol=1e-9)
    warm = structmax.sparsemap(near, tree, start=cold)
    assert 4 * int(warm.iterations.sum()) < int(want.iterations.sum())


def test_peaked_scores_need_few_searches():
    """As a trained parser's: one head of each word stands out."""
    tree = structmax.SpanningTree(single_root=True)
    scores = draw((64, 21, 21), dtype=torch.float32)
    gold = structmax.argmax(draw((64, 21, 21), dtype=torch.float32, seed=1), tree)
    result = structmax.sparsemap(scores + 8 * gold, tree)
    assert result.iterations.double().mean() < 3


@pytest.mark.parametrize(
    "solver", [structmax.omega.AwaySteps(), structmax.omega.PairwiseSteps(), structmax.omega.FrankWolfe()]
)
@pytest.mark.parametrize("structure", [SIMPLEX, CHAIN, structmax.Matching()], ids=["simplex", "chain", "matching"])
def test_conditional_gradients_come_to_the_same_point(solver, structure):
    shapes = {SIMPLEX: [(4, 6)], CHAIN: [(4, 4, 3), (3, 3)]}.get(structure, [(4, 4, 4)])
    scores = tuple(t.requires_grad_() for t in structure.tensors(draw(*shapes)))
    want = structmax.sparsemap(structure.parts(scores), structure)
    # The plain method is slow: it is held to what its gap promises.
    tol = 1e-3 if isinstance(solver, structmax.omega.FrankWolfe) else 1e-10
    result = structmax.sparsemap(structure.parts(scores), structure, solver=solver, tol=tol, max_iter=20000)
    assert bool(result.converged.all())
    assert bool((want.value - result.value <= result.gap + 1e-9).all())
    regular = structure.tensors(result.marginals)[0], structure.tensors(want.marginals)[0]
    assert bool(((regular[0] - regular[1]).flatten(1).square().sum(1) <= 2 * result.gap + 1e-9).all())
    if tol < 1e-9:
        along = torch.randn(regular[0].shape, generator=generator(3), dtype=torch.float64)
        pulled = [torch.autograd.grad((t * along).sum(), scores)[0] for t in regular]
        torch.testing.assert_close(pulled[0], pulled[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "solver", [structmax.omega.AwaySteps(), structmax.omega.PairwiseSteps(), structmax.omega.FrankWolfe()]
)
def test_conditional_gradients_need_no_batch(solver):
    scores = draw((1, 4, 4))
    many, one = (structmax.sparsemap(x, structmax.Matching(), solver=solver, tol=1e-3) for x in (scores, scores[0]))
    assert torch.equal(many.marginals[0], one.marginals)
    assert one.value.shape == ()


def test_what_is_not_done_is_said():
    scores = draw((3, 9, 9))
    tree = structmax.SpanningTree(single_root=False)
    with pytest.warns(UserWarning, match=r"did not converge in 3 of 3 instances after max_iter=2 .*Try a larger"):
        result = structmax.sparsemap(scores, tree, max_iter=2)
    assert not bool(result.converged.any())
    assert bool((result.gap > 0).all())
    exact = structmax.sparsemap(scores, tree)
    assert bool((exact.value - result.value <= result.gap).all())


# --- the k best -----------------------------------------------------------------------------------------------------


def test_top_k_is_sparsemax_over_structures():
    structure, scores = structmax.Bits(), draw((4, 5)).requires_grad_()
    members = structure.enumerate(scores[0].detach())
    want = structmax.sparsemax(scores @ members.T, -1)
    found = structmax.topk_sparsemap(scores, structure, 16)
    assert bool(found.exact.all())
    torch.testing.assert_close(found.probabilities.sort(0).values, want.sort(-1).values.T[-16:])
    torch.testing.assert_close(found.marginals, want @ members)
    along = draw((4, 5), seed=1)
    got, expected = (torch.autograd.grad((t * along).sum(), scores)[0] for t in (found.marginals, want @ members))
    torch.testing.assert_close(got, expected)
    assert not bool(structmax.topk_sparsemap(1e-3 * scores, structure, 3).exact.any())
    assert bool(structmax.topk_sparsemap(1e-3 * scores, structure, 40).exact.all())


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": 0.0}, ValueError, "`temperature` should be > 0"),
        ({"tol": 0.0}, ValueError, "`tol` should be > 0"),
        ({"max_iter": 0}, ValueError, "`max_iter` should be a whole number ≥ 1"),
        ({"solver": "fw"}, TypeError, r"`solver` should be ActiveSet\(\)"),
        ({"regularised": ("label",)}, ValueError, "`regularised` should be a tuple of some of 'unary', 'pairwise'"),
        ({"regularised": "unary"}, ValueError, "`regularised` should be a tuple"),
        ({"start": draw((4, 2), (2, 2))}, ValueError, "`start` should be structures with one dimension in front"),
        ({"start": structmax.sparsemap(draw((5, 2), (2, 2)), CHAIN)}, ValueError, "`start` should be a result for"),
    ],
)
def test_messages(options, error, message):
    with pytest.raises(error, match=message):
        structmax.sparsemap(draw((4, 2), (2, 2)), CHAIN, **options)


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_scores_without_parts(backend):
    """The one matching of nothing has no pairs."""
    found = structmax.sparsemap(torch.zeros(3, 2, 0), structmax.Matching(), backend=backend)
    assert found.marginals.shape == (3, 2, 0)
    assert found.value.tolist() == [0, 0, 0]
    assert found.probabilities.sum(0).tolist() == [1, 1, 1]


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e9])
def test_a_start_that_is_far_off(scale, backend):
    """Scores may have changed by any amount: the start is left, and what it has to do with rounding too."""
    partial = structmax.Matching(partial=True)
    scores = scale * torch.tensor([[0.5, -0.8], [-0.7, 1.1]], dtype=torch.float64) + torch.tensor(
        [[0.0, 0.1], [0.2, 0.3]]
    )
    for former in (-scores, scores.flip(0), torch.full_like(scores, -1.0)):
        start = structmax.sparsemap(former, partial, backend=backend)
        got = structmax.sparsemap(scores, partial, start=start, tol=1e-11, backend=backend)
        want = structmax.sparsemap(scores, partial, tol=1e-11, backend=backend)
        assert bool(got.converged)
        torch.testing.assert_close(got.probabilities.sum(), torch.ones((), dtype=torch.float64), atol=1e-14, rtol=0)
        torch.testing.assert_close(got.marginals, want.marginals, atol=1e-14, rtol=0)
