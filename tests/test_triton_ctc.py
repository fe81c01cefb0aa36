"""The Triton kernels of CTC against the reference in float64: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.structures.ctc import kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(blank):
    """Scores of five instances: labels that repeat, a short one, one with forbidden parts, one without frames to spare,
    and one with too few frames. What stands behind the lengths is NaN.
    """
    generator = torch.Generator().manual_seed(blank)
    labels = torch.tensor([[1, 2, 2], [3, 0, 0], [1, 2, 3], [2, 2, 0], [1, 1, 1]])
    labels = torch.where(labels == blank, 0, labels)
    scores = torch.randn(5, 5, 4, generator=generator, dtype=torch.float64)
    scores[2] = scores[2].masked_fill(torch.rand(5, 4, generator=generator) < 0.15, -math.inf)
    lengths, counts = torch.tensor([5, 4, 5, 3, 4]), torch.tensor([3, 1, 2, 2, 3])
    scores[torch.arange(5) >= lengths.unsqueeze(1)] = math.nan
    return scores, structmax.CTC(labels, lengths, counts, blank=blank), generator


def fields(structure, scores):
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in structure.fields((scores,)).items()}


def same(got, want, tolerance=1e-11):
    torch.testing.assert_close(got.cpu(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("blank", [0, 3])
def test_values_and_derivatives(blank):
    scores, structure, generator = drawn(blank)
    given, x = fields(structure, scores), scores.to(DEVICE)
    leaf = scores.clone().requires_grad_()
    value = structmax.log_partition(leaf, structure, backend="reference").detach()
    mu = structmax.marginals(leaf, structure, backend="reference")
    tangent = torch.randn(scores.shape, generator=generator, dtype=scores.dtype)
    (change,) = torch.autograd.grad(mu, leaf, grad_outputs=tangent)
    same(kernel_triton.log_partition(x, **given), value)
    got = kernel_triton.log_partition_and_marginals(x, **given)
    same(got[0], value)
    same(got[1], mu.detach())
    same(kernel_triton.marginals_jvp(x, tangent.to(DEVICE), **given), change)


@pytest.mark.parametrize("blank", [0, 3])
def test_strings(blank):
    scores, structure, _ = drawn(blank)
    given, x = fields(structure, scores), scores.to(DEVICE)
    same(kernel_triton.argmax(x, **given), structmax.argmax(scores, structure, backend="reference"), 0.0)
    seeded = torch.Generator().manual_seed(3)
    want = structmax.sample(scores, structure, (7,), generator=seeded, backend="reference")
    noise = torch.rand(5, 7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    same(kernel_triton.sample(x, noise=noise.to(DEVICE), **given).movedim(1, 0), want, 0.0)


@pytest.mark.parametrize("labels", [[], [1, 2, 1, 2, 1, 2, 1, 1, 2]])
def test_no_labels_and_more_than_half_a_block(labels):
    scores = torch.randn(1, 11, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    structure = structmax.CTC(torch.tensor([labels], dtype=torch.int64))
    given, x = fields(structure, scores), scores.to(DEVICE)
    value, mu = kernel_triton.log_partition_and_marginals(x, **given)
    same(value, structmax.log_partition(scores, structure, backend="reference"))
    same(mu, structmax.marginals(scores, structure, backend="reference"))
    same(kernel_triton.argmax(x, **given), structmax.argmax(scores, structure, backend="reference"), 0.0)


def test_long_inputs_keep_their_digits_in_float32():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 80, 4, generator=generator) - 100
    structure = structmax.CTC(torch.tensor([[1, 2, 2, 3]]))
    value, mu = kernel_triton.log_partition_and_marginals(scores.to(DEVICE), **fields(structure, scores))
    same(value.double(), structmax.log_partition(scores.double(), structure, backend="reference"), 1e-6)
    same(mu.double(), structmax.marginals(scores.double(), structure, backend="reference"), 1e-5)


def test_nan_stays_in_its_instance():
    scores, structure, _ = drawn(0)
    given = fields(structure, scores)
    want = kernel_triton.log_partition_and_marginals(scores.to(DEVICE), **given)
    scores[0, 1, 1] = math.nan
    x, noise = scores.to(DEVICE), torch.rand(5, 1, 5, dtype=torch.float64).to(DEVICE)
    value, mu = kernel_triton.log_partition_and_marginals(x, **given)
    assert value[0].isnan()
    same(value[1:], want[0][1:].cpu(), 0.0)
    same(mu[1:], want[1][1:].cpu(), 0.0)
    tangents = kernel_triton.marginals_jvp(x, x, **given)
    for answer in (mu, tangents, kernel_triton.argmax(x, **given), kernel_triton.sample(x, noise=noise, **given)):
        assert answer[0].isnan().all()
        assert not answer[1:].isnan().any()


def test_too_many_labels_are_refused():
    labels = torch.empty(1, 4096, device="meta")
    assert kernel_triton.refuses("argmax", [], {"labels": labels}) == "4096 labels are more than 4095"
