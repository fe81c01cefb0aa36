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
