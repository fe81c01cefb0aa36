"""The mappings of the simplex: exact values, and the contract that all of them keep."""

import math

import numpy as np
import oracles
import pytest
import torch
from mapping_cases import EVERY, KERNELS, Case, close, normal
from torch import Tensor

import structmax

ALPHAS = (0.5, 1 - 1e-9, 1.0, 1.0001, 1.1, 1.3, 1.5, 1.7, 1.99, 2 - 1e-9, 2.0)
STEEP = (2 + 1e-9, 2.5, 4.0, 10.0)
on_each_backend = pytest.mark.parametrize("backend", KERNELS)
on_each_mapping = pytest.mark.parametrize(("case", "backend"), EVERY)


def rows_of_every_kind(n: int = 12) -> Tensor:
    """(80, n): spread, peaked, flat, far from zero, whole numbers with ties, and some forbidden entries."""
    x = normal(80, n, seed=1)
    x[10:20] *= 10
    x[20:30] *= 0.01
    x[30:40] += 1e4
    x[40:50] -= 1e4
    x[50:60] = x[50:60].round()
    x[60] = 0.0
    x[70:].masked_fill_(normal(10, n, seed=2) > 0.5, -math.inf)
    x[70:, 0] = 0.3
    return x


# ---------------------------------------------------------------- values


@on_each_backend
def test_sparsemax_and_entmax15_equal_the_sorted_solution(backend: str) -> None:
    x = rows_of_every_kind()
    finite = x[:70].numpy()
    close(structmax.sparsemax(x[:70], backend=backend), oracles.sparsemax(finite), 1e-12)
    close(structmax.entmax15(x[:70], backend=backend), oracles.entmax15(finite), 1e-12)
    wide = normal(20, 3000, seed=3)
    close(structmax.sparsemax(wide, backend=backend), oracles.sparsemax(wide.numpy()), 1e-12)
    close(structmax.entmax15(wide, backend=backend), oracles.entmax15(wide.numpy()), 1e-12)


@on_each_backend
@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_equals_bisection(backend: str, alpha: float) -> None:
    x = rows_of_every_kind()
    close(structmax.entmax(x[:70], alpha, backend=backend), oracles.entmax(x[:70].numpy(), alpha), 1e-12)
    wide = normal(8, 700, seed=4)
    close(structmax.entmax(wide, alpha, backend=backend), oracles.entmax(wide.numpy(), alpha), 1e-12)


@on_each_backend
@pytest.mark.parametrize("alpha", STEEP)
def test_entmax_above_two_equals_bisection_in_high_precision(backend: str, alpha: float) -> None:
    x = torch.cat([normal(6, 7, seed=5), 0.02 * normal(6, 7, seed=6), normal(4, 7, seed=7).round(), torch.zeros(1, 7)])
    close(structmax.entmax(x, alpha, backend=backend), oracles.entmax_precise(x.numpy(), alpha), 1e-12)


@on_each_backend
@pytest.mark.parametrize("alpha", [1.5, 2.0, 2.5])
def test_large_scores_near_the_edge_of_the_support_are_exact(backend: str, alpha: float) -> None:
    lead = 1 / (alpha - 1)
    gaps = torch.tensor([-1e-3, -1e-9, 0.0, 1e-9, 1e-3])
    x = torch.stack([torch.zeros(5), -lead + gaps, torch.full((5,), -9.0)], -1).double() + 4.0
    close(structmax.entmax(x, alpha, backend=backend), oracles.entmax_precise(x.numpy(), alpha), 1e-12)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0, 5.0])
def test_normmax_equals_bisection(alpha: float) -> None:
    x = rows_of_every_kind()[:70]
    close(structmax.normmax(x, alpha), oracles.normmax(x.numpy(), alpha), 1e-10)


@on_each_backend
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5, 4.0])
def test_smoothed_max_is_the_value_of_its_definition(backend: str, alpha: float) -> None:
    x = torch.cat([normal(6, 7, seed=5), normal(3, 7, seed=7).round()])
    exact = oracles.entmax_precise if alpha > 1 else oracles.entmax
    p = exact(x.numpy(), alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        omega = np.where(p > 0, p * np.log(p), 0) if alpha == 1 else (p**alpha - p) / (alpha * (alpha - 1))
    close(structmax.smoothed_max(x, alpha, backend=backend), (p * x.numpy() - omega).sum(-1), 1e-12)
    # adding a number to the scores adds it to the value
    far = structmax.smoothed_max(x + 1e4, alpha, backend=backend) - 1e4
    close(far, structmax.smoothed_max(x, alpha, backend=backend), 1e-11)


@on_each_backend
def test_large_alpha_tends_to_the_argmax(backend: str) -> None:
    x = torch.tensor([[0.3, 0.1, -0.5], [0.0, 1.0, 0.8]], dtype=torch.float64)
    close(structmax.entmax(x, 50.0, backend=backend), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 0.0)
    ties = torch.tensor([[1.0, 1.0, -3.0]], dtype=torch.float64)
    close(structmax.entmax(ties, 50.0, backend=backend), [[0.5, 0.5, 0.0]], 1e-12)


# ---------------------------------------------------------------- precision


@on_each_backend
@pytest.mark.parametrize("n", [1000, 32000])
@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.3, 1.5, 1.7, 2.0, 2.5, 4.0, 10.0])
def test_float32_sums_to_one(backend: str, n: int, alpha: float) -> None:
    x = normal(3, n, dtype=torch.float32)
    x[1] *= 0.01
    x[2] += 1e4
    sums = structmax.entmax(x, alpha, backend=backend).double().sum(-1)
    close(sums, torch.ones(3), 1e-6)


@on_each_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_half_precision_over_a_vocabulary(backend: str, dtype: torch.dtype, alpha: float) -> None:
    x = normal(3, 32000, dtype=dtype)
    x[1] += 100
    x.requires_grad_()
    p = structmax.entmax(x, alpha, backend=backend)
    assert p.dtype == dtype
    close(p.double().sum(-1), torch.ones(3), 1e-2)
    (gradient,) = torch.autograd.grad(p[:, :5].sum(), x)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()
    # half precision rounds the result of float32 and nothing else
    assert torch.equal(p, structmax.entmax(x.float(), alpha, backend=backend).to(dtype))


@on_each_mapping
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded(case: Case, backend: str, dtype: torch.dtype) -> None:
    x = normal(4, 9, dtype=dtype)
    p = case(x, backend=backend)
    assert p.dtype == dtype
    assert torch.equal(p, case(x.float(), backend=backend).to(dtype))


@on_each_mapping
def test_float32_is_near_float64(case: Case, backend: str) -> None:
    x = normal(50, 9, dtype=torch.float32)
    p = case(x, backend=backend)
    assert p.dtype == torch.float32
    # at α = 2.5 the slope of p is infinite where it vanishes
    close(p, case(x.double(), backend="reference"), 1e-4 if case.name == "entmax_2.5" else 1e-5)


# ---------------------------------------------------------------- the contract


@on_each_mapping
def test_backends_agree(case: Case, backend: str) -> None:
    x = rows_of_every_kind()
    close(case(x, backend=backend), case(x, backend="reference"), 1e-11)


@on_each_mapping
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_dim_is_the_last_dimension_moved(case: Case, backend: str, dim: int) -> None:
    x = normal(3, 4, 5)
    p = case(x, dim, backend=backend)
    close(p, case(x.movedim(dim, -1).contiguous(), backend=backend).movedim(-1, dim), 0.0)
    if case.total is not None:
        sums = p.sum(dim)
        close(sums, torch.full_like(sums, case.total), 1e-12)


@on_each_mapping
def test_masks_and_lengths_are_forbidden_entries(case: Case, backend: str) -> None:
    x = normal(4, 3, 6)
    mask = torch.rand(4, 1, 6, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., :2] = True
    forbidden = x.masked_fill(~mask, -math.inf)
    p = case(x, mask=mask, backend=backend)
    close(p, case(forbidden, backend=backend), 0.0)
    assert not p.masked_select(~mask).any()
    # a mask along another dimension broadcasts as the scores do
    close(case(x, 1, mask=torch.tensor([[True], [True], [False]]), backend=backend)[:, 2], torch.zeros(4, 6), 0.0)
    lengths = torch.tensor([[6], [4], [2], [3]])
    short = case(x, lengths=lengths, backend=backend)
    for row, length in enumerate(lengths.flatten().tolist()):
        # the weights of OWL go with the size of the row
        if case.name != "prox_owl":
            close(short[row, :, :length], case(x[row, :, :length], backend=backend), 1e-12)
        assert not short[row, :, length:].any()


@on_each_mapping
def test_rows_without_an_entry_are_zeros_with_zero_gradients(case: Case, backend: str) -> None:
    x = normal(3, 4).requires_grad_()
    mask = torch.tensor([[True], [False], [True]])
    for options in ({"mask": mask}, {"lengths": torch.tensor([4, 0, 4])}):
        p = case(x, **options, backend=backend)
        (gradient,) = torch.autograd.grad((p * normal(3, 4, seed=1)).sum(), x)
        assert not p[1].any()
        assert not gradient[1].any()
        close(p[::2], case(x[::2], backend=backend).detach(), 1e-12)
        assert gradient.isfinite().all()
    all_forbidden = torch.full((2, 4), -math.inf, dtype=torch.float64, requires_grad=True)
    p = case(all_forbidden, backend=backend)
    (gradient,) = torch.autograd.grad(p.sum(), all_forbidden)
    close(p, torch.zeros(2, 4), 0.0)
    close(gradient, torch.zeros(2, 4), 0.0)


@on_each_mapping
def test_forbidden_entries_get_no_gradient(case: Case, backend: str) -> None:
    x = normal(5, 6)
    x[:, 2] = -math.inf
    x[0, 4] = -math.inf
    x.requires_grad_()
    p = case(x, backend=backend)
    (gradient,) = torch.autograd.grad((p * normal(5, 6, seed=1)).sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[x.isinf()].any()
    # the weights of OWL go with the size of the row
    if case.name != "prox_owl":
        kept = [0, 1, 3, 4, 5]
        close(p[1:, kept], case(x[1:, kept], backend=backend).detach(), 1e-12)


@on_each_mapping
def test_nan_stays_in_its_row(case: Case, backend: str) -> None:
    x = normal(4, 5)
    x[1, 2] = math.nan
    x.requires_grad_()
    p = case(x, backend=backend)
    assert p[1].isnan().all()
    (gradient,) = torch.autograd.grad((p * normal(4, 5, seed=1)).sum(), x)
    others = torch.tensor([0, 2, 3])
    sound = x.detach()[others].requires_grad_()
    alone = case(sound, backend=backend)
    close(p[others], alone.detach(), 0.0)
    close(gradient[others], torch.autograd.grad((alone * normal(4, 5, seed=1)[others]).sum(), sound)[0], 0.0)


@on_each_mapping
def test_one_entry_takes_all(case: Case, backend: str) -> None:
    if case.smallest > 1:
        pytest.skip("one entry cannot meet the bounds of this case")
    x = torch.tensor([[3.0], [-2.0]], dtype=torch.float64, requires_grad=True)
    p = case(x, backend=backend)
    (gradient,) = torch.autograd.grad(p.sum(), x)
    if case.total is not None:
        close(p, torch.full((2, 1), case.total), 1e-15)
        close(gradient, torch.zeros(2, 1), 1e-15)


@on_each_mapping
@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (4,), (2, 3, 2, 3, 4)])
def test_any_number_of_batch_dimensions(case: Case, backend: str, shape: tuple[int, ...]) -> None:
    x = normal(*shape).requires_grad_()
    p = case(x, backend=backend)
    assert p.shape == x.shape
    (gradient,) = torch.autograd.grad((p**2).sum(), x)
    flat = x.detach().reshape(-1, 4).requires_grad_()
    p_flat = case(flat, backend=backend)
    close(p.reshape(-1, 4), p_flat.detach(), 0.0)
    close(gradient.reshape(-1, 4), torch.autograd.grad((p_flat**2).sum(), flat)[0], 0.0)


@on_each_mapping
def test_inputs_of_any_layout_are_left_alone(case: Case, backend: str) -> None:
    base = normal(8, 6, 5)
    before = base.clone()
    layouts = (base[::2], base.transpose(0, 1), base[:, 1:4, :], base[0].t(), base[0, 0].expand(3, 5), base.flip(-1))
    for x in layouts:
        close(case(x, backend=backend), case(x.contiguous().clone(), backend=backend), 0.0)
    assert torch.equal(base, before)
    x = base.transpose(1, 2).requires_grad_()
    weights = normal(5, 6, 8, seed=1).permute(2, 0, 1)
    (gradient,) = torch.autograd.grad((case(x, backend=backend) * weights).sum(), x)
    plain = x.detach().contiguous().requires_grad_()
    (wanted,) = torch.autograd.grad((case(plain, backend=backend) * weights.contiguous()).sum(), plain)
    close(gradient, wanted, 0.0)


@on_each_backend
@pytest.mark.parametrize("offset", [1e4, -1e4])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_an_offset_changes_nothing(backend: str, offset: float, alpha: float) -> None:
    # multiples of 2⁻¹⁰: adding the offset rounds nothing, in float32 either
    x = (normal(20, 10) * 1024).round() / 1024
    for dtype in (torch.float64, torch.float32):
        y = x.to(dtype)
        moved = structmax.entmax(y + offset, alpha, backend=backend)
        close(moved, structmax.entmax(y, alpha, backend=backend), 1e-12 if dtype == torch.float64 else 1e-6)


# ---------------------------------------------------------------- alpha as a tensor


# Those that give low scores nothing, however far apart; those with bounds are tried in test_capped.py.
BLIND_BELOW = (
    "softmax",
    "sparsemax",
    "entmax15",
    "entmax_1.3",
    "entmax_2.5",
    "normmax",
    "normmax_3",
    "fusedmax",
    "oscarmax",
)


@pytest.mark.parametrize(("case", "backend"), [each for each in EVERY if each.values[0].name in BLIND_BELOW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_are_measured_from_their_maximum(case: Case, backend: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    greatest = torch.finfo(dtype).max
    sizes = torch.tensor([0.0, 0.4, 1e9, 1e16, 1e20, 1e30, greatest], dtype=torch.float64)
    for n in range(1, 9):
        pick = torch.randint(len(sizes), (60, n), generator=generator)
        # half of the entries share a size, so that there are ties and close calls beside it
        pick = torch.where(torch.rand(60, n, generator=generator) < 0.5, pick[:, :1], pick)
        sign = torch.randint(2, (60, n), generator=generator) * 2 - 1
        x = (sign * sizes[pick] * (1 + torch.randint(2, (60, n), generator=generator) * 2.0**-20)).to(dtype)
        x = x.clamp(-greatest, greatest).masked_fill(torch.rand(60, n, generator=generator) < 0.1, -math.inf)
        half = x.double() / 2
        peak = half.amax(-1, keepdim=True).clamp_min(-greatest)
        # Far below the maximum all scores are alike; −inf is none of them.
        near = torch.where(half > -math.inf, (2 * (half - peak)).clamp_min(-100), -math.inf)
        x.requires_grad_()
        p = case(x, backend=backend)
        close(p, case(near, backend="reference"), 2e-6 if dtype == torch.float32 else 1e-9)
        assert torch.autograd.grad((p * torch.arange(n)).sum(), x)[0].isfinite().all()


@on_each_backend
def test_alpha_may_differ_by_row_and_by_head(backend: str) -> None:
    def rowwise(x: Tensor, alpha: Tensor) -> Tensor:
        flat = [structmax.entmax(r, float(a), backend=backend) for r, a in zip(x.reshape(-1, 5), alpha, strict=True)]
        return torch.stack(flat).reshape(x.shape)

    scores = normal(2, 3, 4, 5)
    heads = torch.tensor([1.0, 1.5, 2.7], dtype=torch.float64)
    wanted = rowwise(scores, heads[None, :, None].expand(2, 3, 4).flatten())
    for alpha in (heads, heads[:, None, None], heads.reshape(1, 3, 1, 1)):
        close(structmax.entmax(scores, alpha, backend=backend), wanted, 1e-12)
    matrix, rows = normal(4, 5), torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    for alpha in (rows, rows[:, None]):
        close(structmax.entmax(matrix, alpha, backend=backend), rowwise(matrix, rows), 1e-12)
    zero_d = torch.tensor(1.3, dtype=torch.float64)
    close(structmax.entmax(scores, zero_d, backend=backend), structmax.entmax(scores, 1.3, backend=backend), 1e-12)
    close(
        structmax.entmax(scores, zero_d[None], backend=backend), structmax.entmax(scores, 1.3, backend=backend), 1e-12
    )
    # another dim: size 1 there
    columns = torch.tensor([[1.2, 1.5, 2.0]], dtype=torch.float64)
    close(structmax.entmax(normal(5, 3), columns, 0, backend=backend).t(), rowwise(normal(5, 3).t(), columns[0]), 1e-12)
    close(
        structmax.smoothed_max(scores, heads, backend=backend)[:, 1],
        structmax.smoothed_max(scores[:, 1], 1.5, backend=backend),
        1e-12,
    )


# ---------------------------------------------------------------- top-k


@on_each_backend
def test_topk_sparsemax_is_the_best_k_sparse_point(backend: str) -> None:
    x = rows_of_every_kind()
    full = structmax.sparsemax(x, backend=backend)
    for k in (1, 2, 4, 12, 20):
        p = structmax.topk_sparsemax(x, k, backend=backend)
        # ties included: never more than k
        assert ((p > 0).sum(-1) <= k).all()
        enough = (full > 0).sum(-1) <= k
        close(p[enough], full[enough], 1e-12)
        order = x[:70].topk(min(k, 12), -1)
        small = torch.as_tensor(oracles.sparsemax(order.values.numpy()))
        close(p[:70], torch.zeros(70, 12, dtype=torch.float64).scatter(-1, order.indices, small), 1e-12)


def test_the_order_of_a_norm_may_differ_by_row() -> None:
    x = 2 * normal(4, 5, seed=11)
    alpha = torch.tensor([1.3, 2.0, 2.5, 4.0], dtype=torch.float64)
    each = [structmax.normmax(row, float(a)) for row, a in zip(x, alpha, strict=True)]
    close(structmax.normmax(x, alpha), torch.stack(each), 1e-14)
    close(structmax.normmax(x.t(), alpha.unsqueeze(0), dim=0).t(), torch.stack(each), 1e-14)
    close(structmax.normmax(x, torch.tensor(2.0)), structmax.normmax(x, 2.0), 0.0)
    both = x.requires_grad_(), alpha.requires_grad_()
    assert torch.autograd.gradcheck(structmax.normmax, both, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(structmax.normmax, both)


def test_the_same_scores_give_the_same_bits_wherever_they_lie():
    """Sums are taken in the same order whether or not the arrays of a kernel lie close together."""
    x = torch.tensor([[4.1, 2.9, -1.6, 4.2, 1.3], [-1.1, 4.0, 4.1, 0.3, 3.1], [0.4, 2.2, -2.7, 4.9, 2.1]]).double()
    wanted, held = structmax.softmax(x / 0.5), []
    for size in range(200):
        held.append(torch.empty(size))
        assert torch.equal(structmax.softmax(x / 0.5), wanted)
