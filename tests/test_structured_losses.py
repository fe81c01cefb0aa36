"""Losses of structures: against sums and maxima over listed members, identities between them, gradients, edge cases."""

import math

import pytest
import torch
from cases import CASES
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax.omega import Entropy, LocalL2, LocalTsallis, SquaredNorm, Zero
from structmax.testing import Case, same
from structmax.testing.projection import nearest

SMALL = [
    "simplex",
    "simplex in two batch dimensions",
    "bits with lengths",
    "subset with lengths",
    "linear chain",
    "linear chain, a matrix for each position",
    "linear chain with gaps",
    "semi-Markov",
    "projective tree, roots",
    "spanning tree",
    "binary tree",
    "alignment with gaps",
    "matching",
]


def of_names(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [CASES[name] for name in names], ids=names)


small = of_names(SMALL)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_target(case: Case, scores) -> Tensor:
    """One member of each instance, not the best one where there are more: (batch, d)."""
    every, members = case.scores_of_members(scores), case.members(scores)
    index = every.argmin(-1).where(every.isfinite().all(-1), every.masked_fill(every.isinf(), math.inf).argmin(-1))
    return members.gather(-2, index[..., None, None].expand(*index.shape, 1, members.shape[-1])).squeeze(-2)


def counted(case: Case, scores) -> Tensor:
    """1 for the parts that count in norms and costs: (d,)."""
    names = case.structure.Parts._fields if case.structure.Parts else ("scores",)
    kept = case.structure.regularised
    ones = tuple(
        torch.ones_like(s) if kept is None or name in kept else torch.zeros_like(s)
        for name, s in zip(names, scores, strict=False)
    )
    return case.vector(ones)


def hamming(case: Case, scores, y: Tensor) -> Tensor:
    """Half the counted parts in which each member differs from y: (batch, M)."""
    members = case.members(scores)
    return 0.5 * ((members - y.unsqueeze(-2)).abs() * counted(case, scores).unsqueeze(-2)).sum(-1)


def of(case: Case, y: Tensor, scores):
    return case.unflat(y, scores)


def dot(case: Case, scores, y: Tensor) -> Tensor:
    return torch.where(y > 0, case.vector(scores) * y, 0.0).sum(-1)


# ---------------------------------------------------------------- values


@small
def test_maxima_over_members(case):
    scores = case.scores()
    y = a_target(case, scores)
    every, target = case.scores_of_members(scores), of(case, y, scores)
    got = structmax.perceptron_loss(case.parts(scores), case.structure, target, reduction="none")
    same("perceptron", got, every.amax(-1) - dot(case, scores, y))
    c = torch.randn(y.shape, generator=seeded(3), dtype=torch.float64)
    cost = torch.einsum("...mi,...i->...m", case.members(scores) - y.unsqueeze(-2), c)
    got = structmax.svm_loss(case.parts(scores), case.structure, target, of(case, c, scores), reduction="none")
    same("svm with a cost", got, (every + cost).amax(-1) - dot(case, scores, y))
    counts = counted(case, scores)
    if bool((case.members(scores) * counts.unsqueeze(-2) <= 1).all()):
        got = structmax.svm_loss(case.parts(scores), case.structure, target, reduction="none")
        same("svm", got, (every + hamming(case, scores, y)).amax(-1) - dot(case, scores, y))


@of_names([name for name in SMALL if CASES[name].answers("marginals", "reference")])
def test_sums_over_members(case):
    scores = case.scores()
    y = a_target(case, scores)
    every, target = case.scores_of_members(scores), of(case, y, scores)
    parts, structure = case.parts(scores), case.structure
    got = structmax.crf_loss(parts, structure, target, reduction="none")
    same("crf", got, every.logsumexp(-1) - dot(case, scores, y))
    cost = hamming(case, scores, y)
    got = structmax.softmax_margin_loss(parts, structure, target, reduction="none")
    same("softmax margin", got, (every + cost).logsumexp(-1) - dot(case, scores, y))
    got = structmax.risk(parts, structure, target, reduction="none")
    same("risk", got, (case.probabilities(scores) * cost.nan_to_num(0.0)).sum(-1))
    got = structmax.fenchel_young(parts, structure, target, Entropy(2.0), reduction="none")
    same("temperature", got, 2 * (every / 2).logsumexp(-1) - dot(case, scores, y))


@small
def test_sparsemap_loss_is_not_negative(case):
    scores = case.scores()
    target = of(case, a_target(case, scores), scores)
    got = structmax.sparsemap_loss(case.parts(scores), case.structure, target, temperature=0.7, reduction="none")
    assert bool((got >= -1e-12).all())


@of_names([name for name in SMALL if CASES[name].structure.regularised is None])
def test_projections(case):
    """max ⟨θ, μ⟩ − t/2 ‖μ‖², where all parts count, is a distance to the nearest point."""
    scores = case.scores()
    y = a_target(case, scores)
    got = structmax.sparsemap_loss(
        case.parts(scores), case.structure, of(case, y, scores), temperature=0.7, reduction="none"
    )
    rows = zip(
        case.members(scores).flatten(0, -3),
        case.vector(scores).flatten(0, -2),
        y.flatten(0, -2),
        got.flatten(),
        strict=True,
    )
    for members, theta, target, value in rows:
        mu = nearest(members[(members >= 0).all(-1)], theta / 0.7)
        want = (theta * mu).sum() - 0.35 * (mu**2).sum() + 0.35 * (target**2).sum() - (theta * target).sum()
        same("sparsemap_loss", value, want, 1e-8)


@small
def test_the_gradient_is_point_minus_target(case):
    scores = case.scores()
    y = a_target(case, scores)
    target = of(case, y, scores)
    structure = case.structure
    points = {
        Zero(): lambda s: structmax.argmax(s, structure),
        SquaredNorm(0.7): lambda s: structmax.sparsemap(s, structure, temperature=0.7).marginals,
    }
    if case.answers("marginals", "reference"):
        points[Entropy()] = lambda s: structmax.marginals(s, structure)
    if case.answers("smoothed_and_marginals", "reference"):
        points[LocalL2(0.7)] = lambda s: structmax.smoothed_marginals(s, structure, LocalL2(0.7))
    for omega, point in points.items():
        leaves = tuple(t.clone().requires_grad_() for t in scores)
        loss = structmax.fenchel_young(case.parts(leaves), structure, target, omega, reduction="sum")
        gradient = case.vector(torch.autograd.grad(loss, leaves))
        same(f"gradient of {omega}", gradient, case.flat(point(case.parts(scores))) - y, 1e-9)


@small
def test_never_negative_and_zero_at_the_point(case):
    scores = tuple(1e5 * t for t in case.scores())
    best = structmax.argmax(case.parts(scores), case.structure)
    other = of(case, a_target(case, scores), scores)
    omegas = [Zero(), SquaredNorm()]
    omegas += [LocalL2(), LocalTsallis(1.5)] if case.answers("smoothed", "reference") else []
    omegas += [Entropy()] if case.answers("log_partition", "reference") else []
    for omega in omegas:
        at_best, elsewhere = (
            structmax.fenchel_young(case.parts(scores), case.structure, y, omega, reduction="none")
            for y in (best, other)
        )
        assert bool((torch.stack([at_best, elsewhere]) >= -1e-9).all()), omega
        same(f"{omega} at a point that leads by far", at_best, torch.zeros_like(at_best), 1e-8)


# ---------------------------------------------------------------- identities


@small
def test_identities(case):
    scores = case.scores()
    parts, structure = case.parts(scores), case.structure
    target = of(case, a_target(case, scores), scores)
    nothing = structure.parts(tuple(torch.zeros_like(s) for s in scores))
    same(
        "svm without cost is the perceptron",
        structmax.svm_loss(parts, structure, target, nothing),
        structmax.perceptron_loss(parts, structure, target),
        0.0,
    )
    same(
        "margin sparsemap without cost",
        structmax.margin_sparsemap_loss(parts, structure, target, nothing),
        structmax.sparsemap_loss(parts, structure, target),
        0.0,
    )
    if case.answers("smoothed", "reference"):
        same(
            "crf is smoothed by entropy",
            structmax.crf_loss(parts, structure, target),
            structmax.fenchel_young(parts, structure, target, Entropy(1.0)),
            1e-12,
        )


def test_on_the_simplex_they_are_the_losses_of_the_simplex():
    x = torch.randn(4, 5, generator=seeded(1), dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 1])
    y, simplex = torch.nn.functional.one_hot(labels, 5).double(), structmax.Simplex()
    for reduction in ("mean", "sum", "none"):
        pairs = [
            (structmax.sparsemap_loss(x, simplex, y, reduction=reduction), structmax.sparsemax_loss),
            (structmax.fenchel_young(x, simplex, y, LocalTsallis(1.5), reduction=reduction), structmax.entmax15_loss),
            (structmax.crf_loss(x, simplex, y, reduction=reduction), torch.nn.functional.cross_entropy),
        ]
        for got, loss in pairs:
            torch.testing.assert_close(got, loss(x, labels, reduction=reduction))
        hinge = torch.nn.functional.multi_margin_loss
        wrong = (x - x.gather(-1, labels[:, None]) + 1 - y).amax(-1)
        got = structmax.svm_loss(x, simplex, y, reduction=reduction)
        torch.testing.assert_close(got, wrong if reduction == "none" else getattr(wrong, reduction)())
        assert bool((got <= 5 * hinge(x, labels, reduction=reduction) + 1e-12).all())


def test_a_wrong_label_costs_one():
    """By default the cost of a chain counts labels, not transitions; that of trees heads."""
    chain, lengths = structmax.LinearChain(torch.tensor([4, 2])), torch.tensor([4, 2])
    scores = (torch.zeros(2, 4, 3), torch.zeros(3, 3))
    target = chain.encode(torch.tensor([[0, 1, 2, 0], [1, 1, -1, -1]]), scores)
    torch.testing.assert_close(structmax.svm_loss(scores, chain, target, reduction="none"), lengths.float())
    torch.testing.assert_close(structmax.risk(scores, chain, target, reduction="none"), lengths * 2 / 3)
    trees = structmax.SpanningTree(single_root=False)
    best = structmax.argmax(torch.randn(4, 4, generator=seeded(1)), trees)
    assert structmax.svm_loss(torch.zeros(4, 4), trees, best) == 3


def test_partial_targets():
    chain = structmax.LinearChain()
    scores = tuple(torch.randn(shape, generator=seeded(1), dtype=torch.float64) for shape in ((2, 3, 2), (2, 2)))
    target = chain.encode(torch.tensor([[0, 1, 1], [1, 0, 0]]), scores)
    known = chain.Parts(torch.tensor([True, False, True])[:, None].expand(2, 3, 2), None)
    got = structmax.crf_loss(scores, chain, target, known=known, reduction="none")
    either = [chain.encode(torch.tensor([[0, m, 1], [1, m, 0]]), scores) for m in (0, 1)]
    each = torch.stack([structmax.log_prob(scores, chain, y) for y in either])
    torch.testing.assert_close(got, -each.logsumexp(0))
    assert bool((got < structmax.crf_loss(scores, chain, target, reduction="none")).all())


# ---------------------------------------------------------------- derivatives, chance, edges


@pytest.mark.parametrize("name", ["linear chain", "spanning tree", "subset with lengths"])
def test_gradcheck(name):
    case = CASES[name]
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    target = of(case, a_target(case, case.scores()), case.scores())
    structure = case.structure
    losses = [
        lambda *s: structmax.crf_loss(structure.parts(s), structure, target),
        lambda *s: structmax.softmax_margin_loss(structure.parts(s), structure, target),
        lambda *s: structmax.risk(structure.parts(s), structure, target),
        lambda *s: structmax.sparsemap_loss(structure.parts(s), structure, target, temperature=0.7),
        lambda *s: structmax.margin_sparsemap_loss(structure.parts(s), structure, target, temperature=0.7),
    ]
    for loss in losses:
        assert gradcheck(loss, leaves)
        assert gradgradcheck(loss, leaves)
    piecewise = [
        lambda *s: structmax.perceptron_loss(structure.parts(s), structure, target),
        lambda *s: structmax.svm_loss(structure.parts(s), structure, target),
        lambda *s: structmax.perturbed_loss(structure.parts(s), structure, target, samples=3, generator=seeded(4)),
    ]
    for loss in piecewise:
        assert gradcheck(loss, leaves)


def test_perturbed_loss():
    scores = torch.randn(2, 3, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    matchings = structmax.Matching()
    target = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    losses = structmax.perturbed_loss(
        scores, matchings, target, samples=40, temperature=0.5, generator=seeded(2), reduction="none"
    )
    assert losses.shape == (2,)
    assert bool((losses >= 0).all())
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    draws = structmax.perturb_and_map(
        scores, matchings, (40,), noise=structmax.noise.Normal(), temperature=0.5, generator=seeded(2)
    )
    torch.testing.assert_close(gradient, draws.mean(0) - target)


@pytest.mark.parametrize("omega", [Zero(), SquaredNorm(), Entropy(), LocalL2()], ids=repr)
def test_forbidden_targets_cost_infinity_and_disturb_nobody(omega):
    x = torch.tensor([[0.0, -math.inf, 1.0], [0.0, -math.inf, 1.0], [-math.inf] * 3, [0.5, 0.2, 0.1]])
    y = torch.nn.functional.one_hot(torch.tensor([1, 2, 0, 0]), 3)
    x.requires_grad_()
    losses = structmax.fenchel_young(x, structmax.Simplex(), y, omega, reduction="none")
    assert losses.isinf().tolist() == [True, False, True, False]
    assert bool((losses >= 0).all())
    (gradient,) = torch.autograd.grad(losses[[1, 3]].sum(), x)
    assert bool(gradient.isfinite().all())


@small
def test_padding_may_hold_anything(case):
    scores = case.scores()
    y = a_target(case, scores)
    padding = ~(case.members(scores) > 0).any(-2)
    junk = case.structure.tensors(case.unflat(case.vector(scores).masked_fill(padding, math.nan), scores))
    losses = [structmax.perceptron_loss, structmax.svm_loss, structmax.sparsemap_loss]
    if case.answers("marginals", "reference"):
        losses += [structmax.crf_loss, structmax.softmax_margin_loss, structmax.risk]
    for loss in losses:
        values, gradients = [], []
        for tensors in (scores, junk):
            leaves = tuple(t.clone().requires_grad_() for t in tensors)
            value = loss(case.parts(leaves), case.structure, of(case, y, scores))
            values.append(value.detach())
            gradients.append(case.vector(torch.autograd.grad(value, leaves)))
        same(loss.__name__, values[1], values[0], 1e-12)
        same(f"gradient of {loss.__name__}", gradients[1], gradients[0], 1e-12)
        assert not bool(gradients[1][padding].any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    chain = structmax.LinearChain()
    scores = (torch.randn(2, 3, 2, generator=seeded(1)).to(dtype), torch.zeros(2, 2, dtype=dtype))
    target = chain.encode(torch.tensor([[0, 1, 1], [1, 0, 0]]), scores)
    for loss in (structmax.perceptron_loss, structmax.crf_loss, structmax.svm_loss, structmax.sparsemap_loss):
        assert loss(scores, chain, target).dtype == dtype


def test_errors():
    x, simplex = torch.zeros(2, 3), structmax.Simplex()
    y = torch.nn.functional.one_hot(torch.tensor([1, 2]), 3)
    with pytest.raises(ValueError, match=r"`target` should have the scores' shape \(2, 3\), but has \(2, 4\)"):
        structmax.perceptron_loss(x, simplex, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"`cost` should have the scores' shape \(2, 3\), but has \(4,\)"):
        structmax.svm_loss(x, simplex, y, torch.zeros(4))
    with pytest.raises(ValueError, match="`reduction` should be one of 'mean', 'sum', 'none', but is 'avg'"):
        structmax.crf_loss(x, simplex, y, reduction="avg")
    with pytest.raises(TypeError, match=r"`omega` should be .*but is Zero itself"):
        structmax.fenchel_young(x, simplex, y, Zero)
    with pytest.raises(ValueError, match="`samples` should be a whole number"):
        structmax.perturbed_loss(x, simplex, y, samples=0)
    with pytest.raises(ValueError, match="`temperature` should be > 0"):
        structmax.perturbed_loss(x, simplex, y, temperature=0.0)
    with pytest.raises(ValueError, match="`temperature` should be > 0"):
        structmax.sparsemap_loss(x, simplex, y, temperature=0.0)
    with pytest.raises(structmax.Refusal, match="Matching does not support `log_partition"):
        structmax.crf_loss(torch.zeros(2, 2), structmax.Matching(), torch.eye(2))


def test_heads_past_the_length_count_nothing():
    """Once a log-probability of +5.3 and a loss of −6."""
    trees = structmax.SpanningTree(torch.tensor([2]), single_root=False)
    whole = structmax.SpanningTree(single_root=False)
    arc = torch.randn(1, 5, 5, generator=seeded(0))
    heads = torch.tensor([[0, 1, 1, 2]])
    want = structmax.log_prob(arc[:, :3, :3], whole, whole.encode(heads[:, :2]))
    for target in (trees.encode(heads), whole.encode(heads)):
        torch.testing.assert_close(structmax.log_prob(arc, trees, target), want)
        assert structmax.perceptron_loss(arc, trees, target) >= 0
    known = torch.ones(1, 5, 5, dtype=torch.bool)
    torch.testing.assert_close(structmax.log_prob(arc, trees, whole.encode(heads), known=known), want)


@pytest.mark.parametrize("name", ["spanning tree", "ctc", "semi-Markov", "hypergraph", "alignment with gaps"])
def test_padding_of_a_target_under_compilation_and_vmap(name):
    case = CASES[name]
    scores = case.scores()
    used = (case.members(scores) > 0).any(-2)
    clean = case.members(scores)[..., 0, :]
    junk = case.structure.tensors(case.unflat(clean.masked_fill(~used, math.nan), scores))
    want = structmax.log_prob(case.parts(scores), case.structure, case.unflat(clean, scores))

    def ask(*tensors):
        half = len(tensors) // 2
        return structmax.log_prob(case.parts(tensors[:half]), case.structure, case.parts(tensors[half:]))

    compiled = torch.compile(ask, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(*scores, *junk), want)
    twice = torch.func.vmap(ask)(*(torch.stack([t, t]) for t in (*scores, *junk)))
    torch.testing.assert_close(twice, torch.stack([want, want]))
    targets = tuple(t.clone().requires_grad_() for t in junk)
    slopes = case.vector(torch.autograd.grad(ask(*scores, *targets).sum(), targets))
    assert torch.equal(slopes[~used], torch.zeros_like(slopes[~used]))


@pytest.mark.parametrize(
    "loss",
    [
        structmax.crf_loss,
        structmax.perceptron_loss,
        structmax.svm_loss,
        structmax.softmax_margin_loss,
        structmax.sparsemap_loss,
        structmax.margin_sparsemap_loss,
        structmax.perturbed_loss,
        structmax.risk,
        lambda *given, **how: structmax.fenchel_young(*given, LocalL2(1.0), **how),
        lambda *given, **how: structmax.fenchel_young(*given, Entropy(), **how),
    ],
)
def test_an_instance_without_structures_counts_nothing(loss):
    """Two labels do not fit into one frame: no gradient, whatever the target holds there."""
    scores = torch.zeros(2, 2, 3, requires_grad=True)
    structure = structmax.CTC(torch.tensor([1, 2]), lengths=torch.tensor([2, 1]))
    target = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]] * 2)
    losses = loss(scores, structure, target, reduction="none")
    assert losses[1].item() == (math.inf if loss is structmax.crf_loss else 0)
    assert losses[0].isfinite()
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert not gradient[1].any()


def test_a_forbidden_target_costs_infinitely_much_even_where_nothing_is_feasible():
    scores, target = torch.full((1, 3), -math.inf), torch.tensor([[1.0, 0.0, 0.0]])
    for loss in (structmax.crf_loss, structmax.perceptron_loss, structmax.softmax_margin_loss):
        assert loss(scores, structmax.Simplex(), target) == math.inf
