"""Projections onto averages of matchings, held to their variational inequality with scipy as the judge."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import structmax

BACKENDS = ("numba", "reference")
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).double()


SCORES = {
    "normal": normal(20, 9, 9),
    "small": 0.01 * normal(20, 9, 9),
    "steep": 10 * normal(20, 12, 12),
    "large": 1e3 * normal(20, 12, 12),
    "huge": 1e6 * normal(20, 8, 8),
    "wide": 3 * normal(20, 5, 12),
    "tall": 3 * normal(20, 12, 5),
    "wide, large": 1e3 * normal(20, 5, 12),
    "one row": normal(20, 1, 7),
    "one column": normal(20, 7, 1),
    "one pair": normal(20, 1, 1),
    "constant": torch.full((2, 7, 7), 3.0, dtype=torch.float64),
    "whole numbers": whole(-3, 4, 20, 9, 9),
    "bits": 100 * whole(0, 2, 20, 12, 12),
    "sums": 10 * normal(20, 9, 1) + 10 * normal(20, 1, 9, seed=1),
    "whole sums": whole(-9, 9, 20, 12, 1) + whole(-9, 9, 20, 1, 12, seed=1),
    "products": 10 * normal(20, 15, 1) * torch.arange(15),
    "whole products": whole(-5, 5, 20, 15, 1) * torch.arange(15),
    "repeated": (5 * normal(20, 3, 3)).repeat(1, 4, 5),
    "identity": 20 * torch.eye(12, dtype=torch.float64).repeat(2, 1, 1),
}


def best(gains, partial):
    """The greatest ⟨gains, y⟩ over matchings y."""
    gains = np.maximum(gains, 0) if partial else gains
    return gains[linear_sum_assignment(gains, maximize=True)].sum()


def feasible(mu, partial, tolerance):
    """By how much sums over rows and columns miss what they should be, at most `tolerance`."""
    r, c = mu.shape[-2:]
    for sums, tight in ((mu.sum(-1), not partial and r <= c), (mu.sum(-2), not partial and c <= r)):
        over = sums - 1
        assert (over.abs() if tight else over).amax() <= tolerance
    assert (mu >= 0).all()


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("partial", [False, True])
@on_each_backend
def test_is_the_nearest_point(name, partial, backend):
    x = SCORES[name]
    mu = structmax.sparse_marginals(x, structmax.Matching(partial=partial), backend=backend)
    feasible(mu, partial, 1e-14)
    scale = max(1.0, x.abs().max().item())
    for gains, point in zip((x - mu).numpy(), mu.numpy(), strict=True):
        assert best(gains, partial) - (gains * point).sum() <= 1e-13 * scale


def test_many_random_instances_are_nearest_points():
    for seed in range(20):
        r, c = 1 + seed % 7, 1 + seed * 5 % 11
        x = 10 ** (seed % 5 - 1) * normal(30, r, c, seed=seed)
        for partial in (False, True):
            mu = structmax.sparse_marginals(x, structmax.Matching(partial=partial))
            feasible(mu, partial, 1e-14)
            for gains, point in zip((x - mu).numpy(), mu.numpy(), strict=True):
                assert best(gains, partial) - (gains * point).sum() <= 1e-12 * max(1.0, x.abs().max().item())


@on_each_backend
def test_closed_forms(backend):
    matching = structmax.Matching()
    uniform = structmax.sparse_marginals(torch.zeros(5, 5, dtype=torch.float64), matching, backend=backend)
    torch.testing.assert_close(uniform, torch.full((5, 5), 0.2, dtype=torch.float64), rtol=0, atol=1e-15)
    large = 1e5 * normal(6, 10, 10)
    exact = structmax.argmax(large, matching)
    assert torch.equal(structmax.sparse_marginals(large, matching, backend=backend), exact)
    row = normal(4, 1, 6)
    simplex = structmax.sparsemax(row)
    torch.testing.assert_close(structmax.sparse_marginals(row, matching, backend=backend), simplex, rtol=0, atol=1e-15)
    partial = structmax.sparse_marginals(0.1 * row, structmax.Matching(partial=True), backend=backend)
    torch.testing.assert_close(partial, (0.1 * row).clamp_min(0), rtol=0, atol=1e-15)


@on_each_backend
@pytest.mark.parametrize("partial", [False, True])
def test_forbidden_pairs(backend, partial):
    """As if the forbidden scores were very low, where a matching exists; zeros where none does."""
    x = normal(60, 5, 6).masked_fill(torch.rand(60, 5, 6, generator=torch.Generator().manual_seed(1)) < 0.55, -math.inf)
    matching = structmax.Matching(partial=partial)
    mu = structmax.sparse_marginals(x, matching, backend=backend)
    exists = structmax.argmax(x, matching).flatten(1).any(-1) | torch.tensor(partial)
    assert partial or 5 < int(exists.sum()) < 55
    low = structmax.sparse_marginals(x.clamp_min(-1e4), matching, backend=backend)
    torch.testing.assert_close(mu[exists], low[exists], rtol=0, atol=1e-9)
    assert not mu[~exists].any()
    assert not mu[x == -math.inf].any()


@on_each_backend
def test_junk_in_padding_and_broken_instances(backend):
    rows, columns = torch.tensor([3, 0, 4, 2, 3]), torch.tensor([3, 2, 2, 4, 3])
    matching = structmax.Matching(rows, columns)
    x = torch.full((5, 4, 4), math.nan, dtype=torch.float64)
    for b, (r, c) in enumerate(zip(rows, columns, strict=True)):
        x[b, :r, :c] = normal(r, c, seed=b)
    x[4, 1, 1] = math.nan
    mu = structmax.sparse_marginals(x, matching, backend=backend)
    for b, (r, c) in enumerate(zip(rows, columns, strict=True)):
        assert not mu[b, r:].any()
        assert not mu[b, :, c:].any()
        if b != 4 and r > 0:
            alone = structmax.sparse_marginals(x[b, :r, :c], structmax.Matching(), backend=backend)
            torch.testing.assert_close(mu[b, :r, :c], alone, rtol=0, atol=1e-15)
    assert mu[4, :3, :3].isnan().all()


@pytest.mark.parametrize("partial", [False, True])
def test_jacobians_are_those_of_finite_differences(partial):
    for r, c in ((3, 3), (4, 4), (2, 5), (5, 3)):
        x, direction, step = 1.5 * normal(250, r, c), normal(250, r, c, seed=1), 1e-7
        matching = structmax.Matching(partial=partial)
        ahead, behind = (structmax.sparse_marginals(x + s * direction, matching) for s in (step, -step))
        numeric = (ahead - behind) / (2 * step)
        # where the support, or which sums are full, changes in between there is no derivative
        faces = [
            torch.cat([p.flatten(1) > 0, p.sum(-1) > 1 - 1e-12, p.sum(-2) > 1 - 1e-12], 1) for p in (ahead, behind)
        ]
        smooth = (faces[0] == faces[1]).all(-1)
        assert smooth.sum() > 240
        moved = torch.func.jvp(lambda t, m=matching: structmax.sparse_marginals(t, m), (x,), (direction,))[1]
        torch.testing.assert_close(moved[smooth], numeric[smooth], rtol=0, atol=1e-7)


@on_each_backend
def test_gradients(backend):
    for matching, shape in ((structmax.Matching(), (2, 3, 3)), (structmax.Matching(partial=True), (2, 3, 4))):
        x = normal(*shape, seed=5).requires_grad_()
        torch.autograd.gradcheck(lambda t, m=matching: structmax.sparse_marginals(t, m, backend=backend), (x,))


def test_kernel_and_reference_agree_in_float32_too():
    x = 3 * normal(16, 10, 13).float()
    for partial in (False, True):
        matching = structmax.Matching(partial=partial)
        answers = []
        for backend in BACKENDS:
            leaf = x.clone().requires_grad_()
            mu = structmax.sparse_marginals(leaf, matching, backend=backend)
            answers.append((mu.detach(), *torch.autograd.grad((mu * x.cos()).sum(), leaf)))
        for a, b in zip(*answers, strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_one_and_many_threads_agree():
    x = normal(64, 20, 20)
    many = structmax.sparse_marginals(x, structmax.Matching())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(structmax.sparse_marginals(x, structmax.Matching()), many)
    finally:
        torch.set_num_threads(threads)


@on_each_backend
@pytest.mark.parametrize("lowest", [-1e9, -1e15, -1e30, -1.7e308])
def test_masks_on_every_matching(backend, lowest):
    """A row of one mask is a row of one score; where two rows have one good column, they share it and all others."""
    x = normal(3, 3)
    lost = x.clone()
    lost[1] = 0
    masked = lost.clone()
    masked[1] = lowest
    matching = structmax.Matching()
    want = structmax.sparse_marginals(lost, matching, backend=backend)
    for turned in (False, True):
        given = masked.mT if turned else masked
        got = structmax.sparse_marginals(given, matching, backend=backend)
        torch.testing.assert_close(got.mT if turned else got, want, rtol=0, atol=1e-12)
    rivals = torch.tensor([[0, lowest, lowest], [0, lowest, lowest]], dtype=torch.float64)
    share = torch.tensor([[0.5, 0.25, 0.25]] * 2, dtype=torch.float64)
    got = structmax.sparse_marginals(rivals, matching, backend=backend)
    torch.testing.assert_close(got, share, rtol=0, atol=1e-12)
    single = structmax.sparse_marginals(rivals + 0.3, structmax.Matching(partial=True), backend=backend)
    torch.testing.assert_close(single, torch.tensor([[0.3, 0, 0]] * 2, dtype=torch.float64), rtol=0, atol=1e-12)


@on_each_backend
@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_a_shared_offset_counts_nothing(backend, offset):
    for x in (normal(5, 3, 1), normal(5, 2, 4)):
        want = structmax.sparse_marginals(x, structmax.Matching(), backend=backend)
        got = structmax.sparse_marginals(x + offset, structmax.Matching(), backend=backend)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-8)
