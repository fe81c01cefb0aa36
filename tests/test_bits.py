"""What the laws do not say about independent bits: closed forms, long rows, many best subsets, messages."""

import math

import pytest
import torch

import structmax
from structmax import Bits
from structmax.testing.case import same

BACKENDS = pytest.mark.parametrize("backend", ["numba", "reference"])


@BACKENDS
def test_there_are_two_to_the_length(backend):
    lengths = torch.tensor([0, 1, 5, 3000])
    got = structmax.log_partition(torch.zeros(4, 3000, dtype=torch.float64), Bits(lengths), backend=backend)
    same("log 2ⁿ", got, lengths.double() * math.log(2.0))


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_items_are_independent(backend, dtype):
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    x = (10 * torch.randn(3, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).to(dtype)
    x[0, :4] = torch.tensor([-math.inf, 700.0, -700.0, 0.0])
    leaf = x.clone().requires_grad_()
    value, mu = (question(leaf, Bits(), backend=backend) for question in (structmax.log_partition, structmax.marginals))
    exact = x.double()
    same("Σ log(1 + exp x)", value.detach().double(), torch.logaddexp(exact, torch.zeros(1)).sum(-1), tolerance)
    same("σ(x)", mu.detach().double(), exact.sigmoid(), tolerance)
    weights = torch.linspace(-1, 1, 2000, dtype=dtype)
    (gradient,) = torch.autograd.grad((mu * weights).sum(), leaf)
    same("σ′", gradient.double(), exact.sigmoid() * (-exact).sigmoid() * weights.double(), tolerance)


@BACKENDS
def test_nan_stays_in_its_instance(backend):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    x[1, 2], x[3, 1] = math.nan, math.inf
    for question in (structmax.marginals, structmax.log_partition, structmax.max_marginals, structmax.sparse_marginals):
        leaf = x.clone().requires_grad_()
        got = question(leaf, Bits(), backend=backend)
        assert got[1::2].isnan().all()
        assert not got[::2].isnan().any()
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((structmax.marginals(leaf, Bits(), backend=backend) ** 2).sum(), leaf)
    assert gradient[1::2].isnan().all()
    assert not gradient[::2].isnan().any()


def test_the_best_of_very_many():
    x = torch.randn(2, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 7], x[1] = -math.inf, x[1].round()
    best = structmax.topk(x, Bits(), 500)
    same("values", best.values, torch.where(best.parts > 0, x, 0.0).sum(-1))
    assert bool((best.values.diff(dim=0) <= 0).all())
    for b in range(2):
        assert len(best.parts[:, b].unique(dim=0)) == 500
        # only the cheapest flips matter: enumerate those
        few = x[b].abs().nan_to_num(posinf=1e9).argsort()[:12]
        rest = x[b].clamp_min(0).sum() - x[b, few].clamp_min(0).sum()
        every = (Bits().enumerate(x[b, few]) * x[b, few]).sum(-1) + rest
        same("the best", best.values[:20, b], every.topk(20).values)


@BACKENDS
def test_required_items(backend):
    x = torch.tensor([0.5, -1.0, 2.0, -math.inf], dtype=torch.float64)
    parts, known = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([True, True, False, False])
    got = structmax.log_prob(x, Bits(), parts, known=known, backend=backend)
    same("log P", got, x[0].sigmoid().log() + (-x[1]).sigmoid().log())
    assert structmax.log_prob(x, Bits(), torch.ones(4), known=torch.arange(4) == 3, backend=backend) == -math.inf


def test_masks_go_there_and_back():
    x = torch.tensor([[0.5, -1.0, 2.0], [-1.0, -1.0, 3.0]])
    structure = Bits(torch.tensor([3, 2]))
    mask = structure.decode(structmax.argmax(x, structure))
    assert mask.tolist() == [[True, False, True], [False, False, False]]
    assert torch.equal(structure.encode(mask), structmax.argmax(x, structure))


@pytest.mark.parametrize(
    ("scores", "lengths", "message"),
    [
        (torch.zeros(()), None, r"shape \(…, n\) with n ≥ 1, but are \(\)"),
        (torch.zeros(2, 0), None, r"but are \(2, 0\)"),
        (torch.zeros(3), torch.tensor(4), "between 0 and 3, the number of items"),
    ],
)
def test_messages(scores, lengths, message):
    with pytest.raises(ValueError, match=message):
        structmax.log_partition(scores, Bits(lengths))
