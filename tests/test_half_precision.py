"""What is composed of several answers is computed in float32 and rounded once."""

import pytest
import torch

import structmax
from structmax import LinearChain, Simplex

HALF = [torch.bfloat16, torch.float16]
# Large scores that lie close: their log-partition and their mean are the same number in half precision.
X = torch.tensor([200.0, 199.0, 198.0])


@pytest.mark.parametrize("dtype", HALF)
def test_nothing_is_lost_between_large_numbers(dtype):
    x = X.to(dtype)
    assert abs(structmax.entropy(x, Simplex()) - 0.8324) < 4e-3
    assert structmax.kl_divergence(x, x + 1, Simplex()) >= 0
    target = torch.tensor([1.0, 0.0, 0.0])
    assert structmax.crf_loss(x, Simplex(), target).dtype == dtype
    assert abs(structmax.crf_loss(x, Simplex(), target) - 0.4076) < 2e-3


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y, **more: structmax.entmax_loss(x, y, 1.5, **more),
        lambda x, y, **more: structmax.entmax_loss(x, y, 1.0, label_smoothing=0.1, **more),
        lambda x, y, **more: structmax.sparsemax_loss(x, y, weight=torch.tensor([1.0, 0.3, 2.0]), **more),
        lambda x, y, **more: structmax.normmax_loss(x, y, **more),
        lambda x, y, **more: structmax.entmax15_loss(x, torch.eye(3)[y] * 0.7 + 0.1, **more),
    ],
)
def test_losses_of_the_simplex(loss, reduction, dtype):
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).mul(30).to(dtype)
    y = torch.arange(50) % 3
    narrow, wide = x.clone().requires_grad_(), x.float().requires_grad_()
    got, want = (loss(each, y, reduction=reduction) for each in (narrow, wide))
    assert torch.equal(got, want.to(dtype))
    for value in (got, want):
        value.float().sum().backward()
    assert narrow.grad.dtype == dtype
    torch.testing.assert_close(narrow.grad.float(), wide.grad, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", HALF)
def test_gradients_come_back_in_the_dtype_of_the_scores(dtype):
    narrow, wide = X.to(dtype).requires_grad_(), X.clone().requires_grad_()
    for x in (narrow, wide):
        structmax.entropy(x, Simplex()).backward()
    assert torch.equal(narrow.grad, wide.grad.to(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_the_crf_module(dtype):
    torch.manual_seed(0)
    crf = structmax.nn.CRF(3, batch_first=True).to(dtype)
    emissions, tags = (40 * torch.randn(2, 5, 3)).to(dtype), torch.tensor([[0, 1, 2, 0, 1], [2, 2, 0, 0, 1]])
    wide = structmax.nn.CRF(3, batch_first=True)
    wide.load_state_dict({name: value.float() for name, value in crf.state_dict().items()})
    for reduction in ("none", "sum", "mean", "token_mean"):
        want = wide(emissions.float(), tags, reduction=reduction)
        assert torch.equal(crf(emissions, tags, reduction=reduction), want.to(dtype))
        assert (want <= 0).all()
    assert torch.equal(crf.topk(emissions, 2).log_probs, wide.topk(emissions.float(), 2).log_probs.to(dtype))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "estimator",
    [
        structmax.estimators.Enumerate(),
        structmax.estimators.SumAndSample(2),
        structmax.estimators.SampleWithoutReplacement(2),
        structmax.estimators.ScoreFunction(4, structmax.estimators.LeaveOneOut()),
        structmax.estimators.SparseTopK(2),
        structmax.estimators.Relaxation(structmax.omega.Entropy()),
    ],
    ids=repr,
)
def test_expectations(estimator, dtype):
    """f is given parts in the dtype of the scores, as its network wants them."""
    cost = torch.tensor([3.0, 2.0, 1.0], dtype=dtype)

    def value(x):
        def f(z, _):
            assert z.dtype == x.dtype
            return z.to(dtype) @ cost

        generator = torch.Generator().manual_seed(0)
        return structmax.expect(f, x, Simplex(), estimator, generator=generator).value

    narrow, wide = X.to(dtype).requires_grad_(), X.clone().requires_grad_()
    got, want = value(narrow), value(wide)
    assert torch.equal(got, want.to(dtype))
    for each in (got, want):
        each.backward()
    torch.testing.assert_close(narrow.grad.float(), wide.grad, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", HALF)
def test_surrogates_and_variances(dtype):
    for estimator in (
        structmax.estimators.ReinMax(),
        structmax.estimators.StraightThrough(structmax.omega.Entropy()),
        structmax.estimators.ImplicitMLE(),
    ):
        grads = []
        for x in (X.to(dtype).requires_grad_(), X.clone().requires_grad_()):
            z = structmax.surrogate(x, Simplex(), estimator, generator=torch.Generator().manual_seed(0))
            assert z.dtype == x.dtype
            (z * torch.tensor([0.1, 0.5, 0.3], dtype=x.dtype)).sum().backward()
            grads.append(x.grad.float())
        torch.testing.assert_close(*grads, atol=1e-2, rtol=1e-2)
    p = structmax.Distribution(X.to(dtype), Simplex())
    assert torch.equal(p.variance, structmax.Distribution(X, Simplex()).variance.to(dtype))


def test_parts_and_arguments_by_name():
    chain = LinearChain()
    scores = LinearChain.Parts(torch.zeros(3, 2, dtype=torch.bfloat16), torch.zeros(2, 2, dtype=torch.bfloat16))
    assert structmax.entropy(scores=scores, structure=chain).dtype == torch.bfloat16
    assert structmax.log_prob(scores, chain, chain.encode(torch.tensor([0, 1, 0]), scores)).dtype == torch.bfloat16


def test_it_compiles():
    compiled = torch.compile(lambda x: structmax.entropy(x, Simplex()), backend="eager", fullgraph=True)
    x = X.to(torch.bfloat16)
    assert torch.equal(compiled(x), structmax.entropy(x, Simplex()))


# --- sums that a structure forms itself ----------------------------------------------------------------------------


def ends(dtype: torch.dtype) -> tuple[LinearChain, LinearChain.Parts, LinearChain.Parts]:
    """A chain whose sums, 1024 + 0.3 say, have more digits than half precision keeps; the same in float32."""
    g = torch.Generator().manual_seed(0)
    unary, pairwise, start, end = (torch.randn(*shape, generator=g) for shape in ((8, 3, 4), (4, 4), (4,), (8, 4)))
    scores = LinearChain.Parts(*(t.to(dtype) for t in (1024 + 0 * unary, pairwise, start, end)))
    return LinearChain(), scores, LinearChain.Parts(*(t.float() for t in scores))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "question",
    [
        structmax.argmax,
        structmax.log_partition,
        structmax.marginals,
        structmax.max_marginals,
        structmax.minimum_bayes_risk,
        structmax.sparse_marginals,
        lambda x, chain: structmax.topk(x, chain, 3),
        lambda x, chain: structmax.sample(x, chain, (4,), generator=torch.Generator().manual_seed(0)),
        lambda x, chain: structmax.sample_without_replacement(x, chain, 4, generator=torch.Generator().manual_seed(0)),
        lambda x, chain: structmax.sparsemap(x, chain).marginals,
        lambda x, chain: structmax.sparsemap(x, chain).gap,
        lambda x, chain: structmax.smoothed(x, chain, structmax.omega.LocalL2(1.0)),
        lambda x, chain: structmax.smoothed_marginals(x, chain, structmax.omega.LocalL2(1.0)),
        lambda x, chain: structmax.Distribution(x, chain).mean,
        lambda x, chain: structmax.Distribution(x, chain).variance,
        lambda x, chain: (
            structmax.expect(lambda y, _: y.unary[..., 0].sum(-1), x, chain, structmax.estimators.Enumerate()).value
        ),
    ],
)
def test_scores_of_the_ends_are_added_in_float32(question, dtype):
    chain, narrow, wide = ends(dtype)
    got, want = question(narrow, chain), question(wide, chain)
    for a, b in zip(pieces(got), pieces(want), strict=True):
        assert torch.equal(a, b.to(dtype) if b.dtype == torch.float32 else b)


def pieces(answer: object) -> list[torch.Tensor]:
    return [answer] if isinstance(answer, torch.Tensor) else [t for each in answer or () for t in pieces(each)]


def test_sums_that_half_precision_cannot_hold():
    lowest = torch.finfo(torch.float16).min
    unary, start = torch.full((2, 2), lowest, dtype=torch.float16), torch.full((2,), lowest, dtype=torch.float16)
    scores = LinearChain.Parts(unary, torch.zeros(2, 2, dtype=torch.float16), start)
    assert abs(structmax.log_count(scores, LinearChain()) - torch.tensor(4.0).log()) < 1e-6
    assert structmax.argmax(scores, LinearChain()).unary.sum() == 2


@pytest.mark.parametrize("dtype", HALF)
def test_the_gradient_of_many_values_is_rounded_once(dtype):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(64, generator=g).to(dtype)
    pairwise = torch.zeros(2, 2, dtype=dtype, requires_grad=True)
    parts, values = structmax.topk((torch.zeros(6, 2, dtype=dtype), pairwise), LinearChain(), 64)
    (values * weight).sum().backward()
    want = torch.einsum("k,kij->ij", weight.double(), parts.pairwise.double())
    assert torch.equal(pairwise.grad, want.to(dtype))


# --- entropies between large masks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [-6e4, -4e5, -1e9, -1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("structure", [structmax.BinaryTree(), structmax.SpanningTree(single_root=True)])
def test_entropies_are_no_larger_than_the_number_of_structures_allows(structure, dtype, mask):
    noise = torch.randn(64, 6, 6, generator=torch.Generator().manual_seed(0))
    scores = (mask + 0.01 * noise).to(dtype).requires_grad_()
    got, most = structmax.entropy(scores, structure), structmax.log_count(scores, structure)
    assert ((got >= 0) & (got <= most.to(dtype))).all()
    # a difference of 0.01, or what is lost by rounding, hardly matters
    assert (got > most - (0.1 if mask > -1e5 else most)).all()
    got.sum().backward()
    assert scores.grad.isfinite().all()
