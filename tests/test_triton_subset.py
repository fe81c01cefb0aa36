"""The Triton kernels of subsets against the reference: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax import Subset
from structmax.structures.subset import kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = pytest.mark.parametrize("exact", [True, False])


def structure_of(size, exact, lengths=None):
    return Subset(size, lengths=lengths) if exact else Subset(at_most=size, lengths=lengths)


def computed(name, tensors, structure, **extras):
    """The kernel's outputs."""
    there = tuple(t.to(DEVICE) for t in tensors)
    extras = {key: value.to(DEVICE) for key, value in extras.items()}
    out = getattr(kernel_triton, name)(*there, **extras, **structure.fields(there[:1]))
    return [t.cpu() for t in ((out,) if isinstance(out, torch.Tensor) else out)]


def wanted(name, tensors, structure, **extras):
    """The reference's outputs in float64."""
    wide = tuple(t.double() for t in tensors)
    function = structmax.backends.function(structure.room, name, "reference")
    out = function(*wide, **extras, **structure.fields(wide[:1]))
    return list((out,) if isinstance(out, torch.Tensor) else out)


def both(name, tensors, structure, **extras):
    outs = computed(name, tensors, structure, **extras), wanted(name, tensors, structure, **extras)
    return list(zip(*outs, strict=True))


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


CASES = [(0, 32, "float64"), (2, 32, "float64"), (2, 32, "float32"), (9, 32, "float64"), (4, 2, "float64")]


@EXACT
@pytest.mark.parametrize(("size", "lanes", "dtype"), CASES)
def test_every_question_agrees_with_the_reference(size, lanes, dtype, exact, monkeypatch):
    # counts in one strip and in several; padding, a forbidden item, more than there are
    monkeypatch.setattr(kernel_triton, "LANES", lanes)
    n, dtype, atol = 6, getattr(torch, dtype), 1e-12 if dtype == "float64" else 2e-6
    structure = structure_of(size, exact, torch.tensor([6, 3, 0]))
    x, tangent = draw(3, n, dtype=dtype), draw(3, n, seed=1, dtype=dtype)
    x[0, 4] = -math.inf
    x[2] = math.nan
    for got, want in both("log_partition", (x,), structure) + both("log_partition_and_marginals", (x,), structure):
        torch.testing.assert_close(got.double(), want, atol=atol, rtol=atol)
    for got, want in both("marginals_jvp", (x, tangent), structure):
        torch.testing.assert_close(got.double(), want, atol=4 * atol, rtol=0)
    noise = torch.rand(3, 3, n + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for got, want in both("sample", (x,), structure, noise=noise):
        assert torch.equal(got.double(), want)


@EXACT
@pytest.mark.parametrize(("size", "items", "dtype"), [(0, 64, "float64"), (3, 64, "float64"), (3, 2, "float32")])
def test_the_best_agree_with_the_reference(size, items, dtype, exact, monkeypatch):
    # items in one tile and in several; ties, zeros of both signs, all forbidden, padding, broken, fewer than are wanted
    monkeypatch.setattr(kernel_triton, "ITEMS", items)
    x = draw(7, 6).round(decimals=1).to(getattr(torch, dtype))
    x[0], x[1, ::2], x[1, 1::2], x[2], x[3, 1:], x[4, 5], x[5, 1] = 1.0, 0.0, -0.0, -math.inf, -math.inf, 9.0, math.nan
    structure = structure_of(size, exact, torch.tensor([6, 6, 6, 6, 5, 6, 2]))
    for name in ("argmax", "max_marginals"):
        for got, want in both(name, (x,), structure):
            torch.testing.assert_close(got.double(), want, atol=2e-7, rtol=2e-7, equal_nan=True)


def test_what_the_dtype_cannot_hold_is_no_subset():
    lowest = torch.finfo(torch.float32).min
    x = torch.tensor([[lowest, lowest, lowest], [lowest, 1.0, lowest]])
    (found,), (through,) = computed("argmax", (x,), Subset(2)), computed("max_marginals", (x,), Subset(2))
    assert found.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert through.tolist() == [[-math.inf] * 3, [lowest, lowest, lowest]]


@EXACT
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_stays_with_its_instance(exact, bad):
    x = draw(3, 5)
    x[1, 2] = bad
    there = x.to(DEVICE)
    fields = structure_of(2, exact, torch.tensor([5, 4, 5])).fields((there,))
    noise = torch.rand(3, 2, 6, dtype=torch.float64, device=DEVICE)
    value, mu = kernel_triton.log_partition_and_marginals(there, **fields)
    drawn = kernel_triton.sample(there, noise=noise, **fields)
    assert value.isnan().tolist() == [False, True, False]
    assert mu.isnan().sum(1).tolist() == [0, 4, 0]
    assert drawn.isnan().sum((1, 2)).tolist() == [0, 8, 0]


@EXACT
@pytest.mark.parametrize("low", [-1e30, torch.finfo(torch.float32).min])
def test_low_numbers_forbid_what_can_be_avoided(exact, low):
    x = draw(1, 6, dtype=torch.float32)
    finite, infinite = x.clone(), x.clone()
    finite[:, 1:3], infinite[:, 1:3] = low, -math.inf
    name, structure = "log_partition_and_marginals", structure_of(3, exact)
    for got, want in zip(computed(name, (finite,), structure), wanted(name, (infinite,), structure), strict=True):
        torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-6)


def test_where_all_is_masked_the_marginals_are_those_of_some_subsets():
    _, mu = computed("log_partition_and_marginals", (draw(2, 5, dtype=torch.float32) - 1e15,), Subset(2))
    torch.testing.assert_close(mu.sum(1), torch.full((2,), 2.0))


@pytest.mark.parametrize("scale", [1e3, 1e20, 1e38])
def test_a_set_that_is_best_by_far(scale):
    x = scale * torch.tensor([[0.5, -1.0, 0.25, -0.5]])
    _, mu = computed("log_partition_and_marginals", (x,), Subset(2))
    assert mu.tolist() == [[1, 0, 1, 0]]


def test_long_sums_keep_the_digits_of_float32():
    x = draw(1, 20, dtype=torch.float32) - 300
    (value, want), (mu, want_mu) = both("log_partition_and_marginals", (x,), Subset(10))
    torch.testing.assert_close(value.double(), want, atol=0, rtol=1e-6)
    torch.testing.assert_close(mu.double(), want_mu, atol=2e-6, rtol=0)
