"""The log loss of layers of few inputs in Triton, against the reference in float64."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.losses import few_inputs
from structmax.structures.simplex import kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def layer(rows, words, size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, size), (words, size), (words,)
    hidden, weight, bias = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return hidden, weight, bias, torch.randint(words, (rows,), generator=generator).to(DEVICE)


def asked(hidden, weight, bias, target, dtype, backend):
    leaves = [t.detach().to(dtype).requires_grad_() for t in (hidden, weight, bias)]
    loss = structmax.linear_entmax_loss(*leaves[:2], target, 1.0, bias=leaves[2], reduction="none", backend=backend)
    return [loss, *torch.autograd.grad(loss, leaves, torch.linspace(-1, 1, len(loss), device=DEVICE, dtype=loss.dtype))]


def compare(*given, dtype=torch.float32, tolerance=3e-6):
    rounded = [t.to(dtype) if t.is_floating_point() else t for t in given]
    wanted = asked(*rounded, torch.float64, "reference")
    for ours, theirs in zip(asked(*rounded, dtype, "triton"), wanted, strict=True):
        scale = max([1.0, *theirs.detach()[theirs.isfinite()].abs().tolist()])
        torch.testing.assert_close(ours.double(), theirs, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize(("rows", "words", "size"), [(70, 256, 5), (1, 64, 1), (33, 200, 16), (700, 90, 3)])
def test_equals_the_reference(rows, words, size):
    hidden, weight, bias, target = layer(rows, words, size)
    bias[[0, 3]] = -math.inf
    target[::5] = -100
    # a word that is forbidden costs +inf
    target[rows // 2] = 3
    compare(hidden, weight, bias, target)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    compare(*layer(40, 64, 4), dtype=dtype, tolerance=2 * torch.finfo(dtype).eps)


def test_which_layers_it_takes():
    hidden, weight, *_ = layer(2, 64, 3)
    assert few_inputs.fits(hidden, weight, "triton")
    assert not few_inputs.fits(hidden.double(), weight.double(), "triton")
    assert not few_inputs.fits(hidden, torch.zeros(257, 3, device=DEVICE), "triton")


def test_what_is_no_number():
    hidden, weight, bias, target = layer(5, 64, 3)
    hidden[1, 0], hidden[3, 1] = math.nan, math.inf
    loss, d_hidden, _, _ = asked(hidden, weight, bias, target, torch.float32, "triton")
    assert loss.isnan().tolist() == [False, True, False, True, False]
    assert d_hidden.isnan().all(-1).tolist() == [False, True, False, True, False]
    # nothing can be chosen
    loss, *gradients = asked(hidden[:1], weight, torch.full_like(bias, -math.inf), target[:1], torch.float32, "triton")
    assert loss.tolist() == [math.inf]
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
    # one word is no number, all others are forbidden
    weight, bias = torch.ones_like(weight), torch.full_like(bias, -math.inf)
    weight[7, 0] = math.nan
    assert asked(hidden[:1], weight, bias, target[:1], torch.float32, "triton")[0].isnan().all()


def test_targets_that_are_no_words():
    hidden, weight, bias, target = layer(4, 70, 3)
    target[:3] = torch.tensor([70, 200, -3])
    loss = asked(hidden, weight, bias, target, torch.float32, "triton")[0] if DEVICE == "cuda" else None
    found = kernel_triton.layer_loss(*(t.unsqueeze(0) for t in (hidden, weight, bias, target)), ignored=-100, rows=4)
    assert found[0].isnan().tolist() == [[True, True, True, False]]
    assert loss is None or loss.isnan().tolist() == [True, True, True, False]


def test_rows_that_count_nothing_do_no_harm():
    hidden, weight, bias, target = layer(5, 64, 3)
    target[2] = -100
    wanted = asked(hidden, weight, bias, target, torch.float32, "triton")
    hidden[2] = math.nan
    for ours, theirs in zip(asked(hidden, weight, bias, target, torch.float32, "triton"), wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_the_same_bits_again():
    given = layer(3000, 64, 3)
    first, second = (asked(*given, torch.float32, "triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_rows():
    loss, *gradients = asked(*layer(0, 64, 3), torch.float32, "triton")
    assert loss.shape == (0,)
    assert all(not gradient.abs().sum() for gradient in gradients)
