"""Structures under compile, export, autocast, no_grad and inference_mode."""

import pytest
import torch

import structmax

# transforms of every structure
pytestmark = pytest.mark.thorough

LENGTHS = torch.tensor([4, 2, 3])


def pieces(n):
    yield 0, -1, -1
    for j in range(1, n + 1):
        for i in range(j):
            yield j, i * (n + 1) + j, i


# structure and the shapes of its scores
STRUCTURES = {
    "chain": (structmax.LinearChain(LENGTHS), (3, 4, 3), (3, 3)),
    "chain with holes": (
        structmax.LinearChain(keep=torch.tensor([True, False, True, True])),
        (3, 4, 3),
        (3, 3, 3, 3),
    ),
    "semi-Markov": (structmax.SemiMarkov(LENGTHS), (3, 4, 2, 2), (2, 2)),
    "alignment": (structmax.MonotoneAlignment(LENGTHS), (3, 4, 3)),
    "jump alignment": (structmax.JumpAlignment(LENGTHS), (3, 4, 5), (3, 1, 1)),
    "projective tree": (structmax.ProjectiveTree(LENGTHS, single_root=True), (3, 5, 5)),
    "second-order tree": (structmax.SecondOrderTree(LENGTHS, single_root=True), (3, 5, 5), (3, 5, 5, 5)),
    "binary tree": (structmax.BinaryTree(LENGTHS), (3, 4, 4)),
    "bilexical tree": (structmax.BilexicalTree(LENGTHS), (3, 5, 5), (3, 4, 4), (3, 4, 4, 4)),
    "ctc": (structmax.CTC(torch.tensor([1, 2]), LENGTHS), (3, 4, 3)),
    "lattice": (structmax.Lattice(torch.tensor([[0, 1], [1, 2], [0, 2]]), 0, 2), (3, 3)),
    "hypergraph": (structmax.Hypergraph.from_function(pieces, 4, goal=LENGTHS), (3, 25)),
    "spanning tree": (structmax.SpanningTree(LENGTHS, single_root=True), (3, 5, 5)),
    "undirected tree": (structmax.SpanningTree(LENGTHS, directed=False), (3, 4, 4)),
    "subset": (structmax.Subset(2, lengths=LENGTHS), (3, 4)),
    "bits": (structmax.Bits(LENGTHS), (3, 4)),
    "small matching": (structmax.SmallMatching(LENGTHS), (3, 4, 3)),
}


@pytest.fixture(params=STRUCTURES, ids=lambda name: name.replace(" ", "_"))
def problem(request):
    structure, *shapes = STRUCTURES[request.param]
    generator = torch.Generator().manual_seed(0)
    scores = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return structure, scores


def total(structure, *scores):
    """A number that needs value, marginals, best structure and, of a recursion, a smoothed value."""
    parts = structure.Parts(*scores) if structure.Parts else scores[0]
    mu = structure.tensors(structmax.marginals(parts, structure))
    best = structure.tensors(structmax.argmax(parts, structure))
    inner = sum((m * b).sum() + (m**2).sum() for m, b in zip(mu, best, strict=True))
    value = structmax.log_partition(parts, structure)
    if "smoothed" not in structure.intractable:
        value = value + structmax.smoothed(parts, structure, structmax.omega.LocalL2(1.0))
    return inner + value.sum()


def test_compile_gives_the_plain_answer_and_gradient(problem):
    structure, scores = problem
    torch._dynamo.reset()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    answers = []
    for call in (total, compiled):
        leaves = tuple(t.clone().requires_grad_() for t in scores)
        out = call(structure, *leaves)
        answers.append((out.detach(), *torch.autograd.grad(out, leaves)))
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("structure", "shape"),
    [
        (structmax.Simplex(), (3, 4)),
        (structmax.Bits(LENGTHS), (3, 4)),
        (structmax.Subset(2, lengths=LENGTHS), (3, 4)),
        (structmax.Matching(LENGTHS), (3, 4, 3)),
    ],
    ids=["simplex", "bits", "subset", "matching"],
)
def test_compile_of_projections_and_draws(structure, shape):
    def ask(x):
        best = structmax.argmax(x, structure) + structmax.topk(x, structure, 2).values.nan_to_num(neginf=0.0).sum()
        return (structmax.sparse_marginals(x, structure, temperature=0.5) * best).sum()

    torch._dynamo.reset()
    answers = []
    for call in (ask, torch.compile(ask, fullgraph=True, backend="aot_eager")):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
        out = call(x)
        answers.append((out.detach(), *torch.autograd.grad(out, x)))
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b)


# the mask of a chain with holes is no index
@pytest.mark.parametrize("problem", [name for name in STRUCTURES if name != "chain with holes"], indirect=True)
def test_fields_out_of_range_are_refused_when_compiled(problem):
    structure, scores = problem
    parts = structure.Parts(*scores) if structure.Parts else scores[0]
    fields = structure.per_instance
    name = next(each for each in fields if each in ("lengths", "rows", "goal"))
    torch._dynamo.reset()
    ask = torch.compile(structmax.argmax, fullgraph=True, backend="eager")
    for wrong in (99, -1):
        values = [torch.full((3,), wrong) if each == name else getattr(structure, each) for each in fields]
        with pytest.raises(ValueError, match=f"`{name}` should be between 0 and"):
            ask(parts, structure.with_values(values))


@pytest.mark.parametrize("labels", [[1, 9], [1, -1], [0, 1]])
def test_labels_out_of_range_are_refused_when_compiled(labels):
    torch._dynamo.reset()
    ask = torch.compile(structmax.log_partition, fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match=r"`labels` should be symbols from 0 to 2 other than the blank, 0"):
        ask(torch.zeros(2, 4, 3), structmax.CTC(torch.tensor(labels)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_lengths_of_any_integers(dtype):
    x = torch.randn(2, 40, 40)
    lengths = torch.tensor([40, 3])
    want = structmax.argmax(x, structmax.BinaryTree(lengths), backend="reference")
    got = structmax.argmax(x, structmax.BinaryTree(lengths.to(dtype)), backend="reference")
    torch.testing.assert_close(got, want)


def test_derivatives_under_vmap_over_lengths():
    x = torch.randn(3, 4, 4, dtype=torch.float64)

    def ask(x, lengths):
        return structmax.log_partition(x, structmax.BinaryTree(lengths), backend="reference")

    structure = structmax.BinaryTree(LENGTHS)
    want = structmax.marginals(x, structure, backend="reference")
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(ask))(x, LENGTHS), want)
    torch.testing.assert_close(torch.func.grad(lambda x: torch.func.vmap(ask)(x, LENGTHS).sum())(x), want)
    torch.testing.assert_close(torch.func.grad(lambda *args: ask(*args).sum())(x, LENGTHS), want)
    each = [torch.func.hessian(lambda x, n=n: ask(x, n))(one) for one, n in zip(x, LENGTHS, strict=True)]
    torch.testing.assert_close(torch.func.vmap(torch.func.hessian(ask))(x, LENGTHS), torch.stack(each))


def test_an_estimator_under_vmap_over_lengths():
    x = torch.randn(3, 4)
    estimator = structmax.estimators.StraightThrough(structmax.omega.Entropy())

    def ask(x, lengths):
        return structmax.surrogate(x, structmax.Bits(lengths), estimator).square().sum()

    want = torch.stack([torch.func.grad(ask)(one, n) for one, n in zip(x, LENGTHS, strict=True)])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(ask))(x, LENGTHS), want)


def test_export(problem):
    structure, scores = problem

    class Model(torch.nn.Module):
        def forward(self, *scores):
            parts = structure.Parts(*scores) if structure.Parts else scores[0]
            return structmax.log_partition(parts, structure)

    exported = torch.export.export(Model(), scores).module()
    torch.testing.assert_close(exported(*scores), Model()(*scores))


def test_without_gradients(problem):
    structure, scores = problem
    parts = structure.Parts(*scores) if structure.Parts else scores[0]
    want = structmax.log_partition(parts, structure)
    for mode in (torch.no_grad, torch.inference_mode):
        for backend in ("numba", "reference"):
            with mode():
                torch.testing.assert_close(structmax.log_partition(parts, structure, backend=backend), want)
                structmax.marginals(parts, structure, backend=backend)
                structmax.topk(parts, structure, 2, backend=backend)
                structmax.sample(parts, structure, (2,), backend=backend)


def test_half_precision(problem):
    structure, scores = problem
    leaves = tuple(t.bfloat16().requires_grad_() for t in scores)
    parts = structure.Parts(*leaves) if structure.Parts else leaves[0]
    value = structmax.log_partition(parts, structure)
    assert value.dtype == torch.bfloat16
    gradients = torch.autograd.grad(value.sum(), leaves)
    assert all(g.dtype == torch.bfloat16 and bool(g.isfinite().all()) for g in gradients)


def test_a_tangent_of_one_part_alone():
    chain = structmax.LinearChain()
    unary, pairwise = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    tangent = torch.randn(3, 2, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(unary, tangent)
        value = structmax.log_partition((dual, pairwise), chain)
        pushed = torch.autograd.forward_ad.unpack_dual(value).tangent
    want = (structmax.marginals((unary, pairwise), chain).unary * tangent).sum()
    torch.testing.assert_close(pushed, want)


@pytest.mark.parametrize(
    "question",
    [
        structmax.log_partition,
        lambda scores, chain: structmax.marginals(scores, chain).unary.square(),
        lambda scores, chain: structmax.sparsemap(scores, chain).marginals.unary.square(),
        lambda scores, chain: structmax.smoothed(scores, chain, structmax.omega.LocalL2(1.0)),
        lambda scores, chain: structmax.smoothed_log_prob(
            scores, chain, chain.encode(torch.tensor([[0, 1, 2, 0]] * 3), scores), structmax.omega.LocalL2(1.0)
        ),
    ],
    ids=["log_partition", "marginals", "sparsemap", "smoothed", "smoothed_log_prob"],
)
def test_checkpoints_recompute_the_same_gradient(question):
    chain = structmax.LinearChain()
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4, 3), (3, 3))]
    gradients = []
    for checkpointed in (False, True):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        ask = lambda *tensors: question(chain.Parts(*tensors), chain).sum()  # noqa: E731
        total = torch.utils.checkpoint.checkpoint(ask, *own, use_reentrant=False) if checkpointed else ask(*own)
        gradients.append(torch.autograd.grad(total, own))
    torch.testing.assert_close(*gradients)


def test_best_values_have_exact_gradients_under_autocast():
    x = torch.randn(3, 6, dtype=torch.float32, requires_grad=True)
    weights = torch.linspace(1.001, 1.005, 5).unsqueeze(-1)
    wanted = torch.autograd.grad((structmax.topk(x, structmax.Simplex(), 5).values * weights).sum(), x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad((structmax.topk(x, structmax.Simplex(), 5).values * weights).sum(), x)[0]
    assert torch.equal(got, wanted)
