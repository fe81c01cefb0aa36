"""The entropic matching: optimality, limits, derivatives of any order, and what it says when it has not converged."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax import Matching

BACKENDS = ("numba", "reference")
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)
SHAPES = ((1, 1), (5, 5), (3, 6), (6, 3), (1, 4))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normalised(x, temperature, sweeps):
    """Rows and columns normalised in turn, in the log domain."""
    z = x / temperature
    for _ in range(sweeps):
        z = z - z.logsumexp(-1, keepdim=True)
        z = z - z.logsumexp(-2, keepdim=True)
    return z.exp()


@on_each_backend
def test_is_the_limit_of_normalising_rows_and_columns(backend):
    x = normal(6, 5, 5)
    for temperature, sweeps in ((1.0, 100), (0.5, 400)):
        found = structmax.sinkhorn(x, temperature=temperature, backend=backend)
        assert found.converged.all()
        torch.testing.assert_close(found.marginals, normalised(x, temperature, sweeps), rtol=0, atol=1e-8)


def duals_explain(x, mu, temperature, partial):
    """θ − τ log μ = u ⊕ v with u, v ≥ 0 where sums may be less than 1, and 0 where they are."""
    r, c = mu.shape[-2:]
    slack = x - temperature * mu.log()
    full = [mu.sum(-1) > 1 - 1e-7, mu.sum(-2) > 1 - 1e-7]
    tight = [not partial and r <= c, not partial and c <= r]
    for b in range(len(x)):
        # least squares for u, v, with 0 for those of sums below 1
        rows = [i for i in range(r) if tight[0] or full[0][b, i]]
        columns = [j for j in range(c) if tight[1] or full[1][b, j]]
        design = torch.zeros(r * c, len(rows) + len(columns), dtype=x.dtype)
        for k, i in enumerate(rows):
            design.view(r, c, -1)[i, :, k] = 1
        for k, j in enumerate(columns):
            design.view(r, c, -1)[:, j, len(rows) + k] = 1
        solution = torch.linalg.lstsq(design, slack[b].reshape(-1, 1), driver="gelsd").solution
        assert (design @ solution - slack[b].reshape(-1, 1)).abs().max() < 1e-6
        u, v = solution[: len(rows)], solution[len(rows) :]
        if len(rows) == r and len(columns) == c:
            # a constant may move from u to v
            assert any(tight) or u.min() + v.min() > -1e-6
        else:
            assert tight[0] or not len(u) or u.min() > -1e-6
            assert tight[1] or not len(v) or v.min() > -1e-6


@on_each_backend
@pytest.mark.parametrize("partial", [False, True])
def test_meets_the_optimality_conditions(backend, partial):
    for (r, c), temperature in itertools.product(SHAPES, (1.0, 0.3)):
        x = normal(5, r, c, seed=r + c)
        found = structmax.sinkhorn(x, Matching(partial=partial), temperature=temperature, tol=1e-12, backend=backend)
        mu = found.marginals
        assert found.converged.all()
        for sums, tight in ((mu.sum(-1), not partial and r <= c), (mu.sum(-2), not partial and c <= r)):
            over = sums - 1
            assert (over.abs() if tight else over).amax() <= 1e-11
        duals_explain(x, mu, temperature, partial)
        value = (x * mu).sum((-1, -2)) - temperature * (mu * (mu.log() - 1)).sum((-1, -2))
        torch.testing.assert_close(found.value, value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("partial", [False, True])
def test_converges_at_any_temperature_and_tends_to_the_best_matching(partial):
    matching = Matching(partial=partial)
    for shape in ((16, 20, 20), (16, 8, 25), (16, 25, 8)):
        x = normal(*shape)
        for temperature in (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-5):
            found = structmax.sinkhorn(x, matching, temperature=temperature)
            assert found.converged.all()
            assert found.error.max() < 1e-8
        best = structmax.argmax(x, matching)
        torch.testing.assert_close(found.marginals, best, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.value, (x * best).sum((-1, -2)), rtol=0, atol=1e-3)


def test_ties_and_large_scores_converge():
    whole = torch.randint(-3, 4, (20, 9, 9), generator=torch.Generator().manual_seed(0)).double()
    sums = normal(20, 9, 1) + normal(20, 1, 9, seed=1)
    for x in (torch.zeros(2, 9, 9).double(), whole, 1e3 * whole, 1e3 * normal(20, 9, 9), 1e3 * sums):
        for matching in (Matching(), Matching(partial=True)):
            found = structmax.sinkhorn(x, matching)
            assert found.converged.all()
            assert (found.marginals.sum(-1) <= 1 + 1e-8).all()
    uniform = torch.full((20, 9, 9), 1 / 9, dtype=torch.float64)
    torch.testing.assert_close(structmax.sinkhorn(sums).marginals, uniform, rtol=0, atol=1e-9)


@on_each_backend
def test_pairs_of_no_matching_get_nothing(backend):
    """Normalising in turn never gets there: the pair (0, 1) is in no matching, though it is not forbidden."""
    x = torch.tensor([[[0.0, 5.0], [-math.inf, 0.0]], [[-math.inf, -math.inf], [0.0, 0.0]]], dtype=torch.float64)
    found = structmax.sinkhorn(x, backend=backend)
    assert torch.equal(found.marginals, torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]).double())
    assert found.value[1] == -math.inf
    assert found.converged.all()
    x = normal(40, 4, 5).masked_fill(torch.rand(40, 4, 5, generator=torch.Generator().manual_seed(3)) < 0.5, -math.inf)
    for matching in (Matching(), Matching(partial=True)):
        leaf = x.clone().requires_grad_()
        found = structmax.sinkhorn(leaf, matching, backend=backend)
        low = structmax.sinkhorn(x.clamp_min(-1000), matching, backend=backend)
        exists = found.value.detach() > -math.inf
        assert matching.partial or 5 < int(exists.sum()) < 38
        torch.testing.assert_close(found.marginals[exists], low.marginals[exists], rtol=0, atol=1e-8)
        (gradient,) = torch.autograd.grad((found.marginals**2).sum() + found.value[exists].sum(), leaf)
        assert gradient.isfinite().all()
        assert not gradient[x == -math.inf].any()


@on_each_backend
def test_padding_and_broken_instances(backend):
    rows, columns = torch.tensor([3, 0, 4, 2, 3]), torch.tensor([3, 2, 2, 4, 3])
    x = torch.full((5, 4, 4), math.nan, dtype=torch.float64)
    for b, (r, c) in enumerate(zip(rows, columns, strict=True)):
        x[b, :r, :c] = normal(r, c, seed=b)
    x[4, 1, 1] = math.inf
    found = structmax.sinkhorn(x, Matching(rows, columns), temperature=0.5, backend=backend)
    for b, (r, c) in enumerate(zip(rows, columns, strict=True)):
        assert not found.marginals[b, r:].any()
        assert not found.marginals[b, :, c:].any()
        if b != 4:
            alone = structmax.sinkhorn(x[b, :r, :c], temperature=0.5, backend=backend)
            torch.testing.assert_close(found.marginals[b, :r, :c], alone.marginals, rtol=0, atol=1e-8)
            torch.testing.assert_close(found.value[b], alone.value, rtol=0, atol=1e-8)
    assert found.marginals[4, :3, :3].isnan().all()
    assert found.value[4].isnan()
    assert found.converged.tolist() == [True, True, True, True, False]
    assert structmax.sinkhorn(x[:0, :3, :3], backend=backend).marginals.shape == (0, 3, 3)


GRADIENTS = {
    "square": (Matching(), (2, 3, 3)),
    "wide": (Matching(), (2, 2, 4)),
    "tall": (Matching(), (1, 2, 4, 2)),
    "partial": (Matching(partial=True), (2, 3, 3)),
    "lengths": (Matching(torch.tensor([2, 3]), torch.tensor([3, 2])), (2, 3, 4)),
}


@on_each_backend
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, backend):
    matching, shape = GRADIENTS[name]
    for temperature in (1.0, 0.3):
        x = normal(*shape).requires_grad_()

        def answer(t, temperature=temperature):
            return structmax.sinkhorn(t, matching, temperature=temperature, backend=backend)[:2]

        gradcheck(answer, (x,), check_forward_ad=True)
        gradgradcheck(answer, (x,), check_fwd_over_rev=True)


def total(x):
    found = structmax.sinkhorn(x, temperature=0.5)
    return (found.marginals**3).sum() + found.value.sum()


def test_transforms_and_third_derivatives():
    x = normal(3, 3)
    hessian = torch.func.hessian(total)
    torch.testing.assert_close(hessian(x), torch.func.jacrev(torch.func.jacrev(total))(x), rtol=0, atol=1e-12)
    step, direction = 1e-5, normal(3, 3, seed=1)
    numeric = (hessian(x + step * direction) - hessian(x - step * direction)) / (2 * step)
    third = torch.func.jacrev(hessian)(x).flatten(-2) @ direction.flatten()
    torch.testing.assert_close(third, numeric, rtol=0, atol=1e-8)
    many = normal(4, 3, 3)
    each = torch.stack([torch.func.grad(total)(one) for one in many])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(many), each)


def test_compile():
    torch._dynamo.reset()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    answers = []
    for call in (total, compiled):
        leaf = normal(2, 4, 4).requires_grad_()
        answers.append(torch.autograd.grad(call(leaf), leaf)[0])
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize("partial", [False, True])
def test_gradients_at_low_temperatures_are_projections_of_the_tangent(partial):
    """The gradient τ · J is μ ∘ (t − a ⊕ b), whose sums vanish where those of μ are 1, however weak the couplings."""
    x, t = normal(20, 12, 12), normal(20, 12, 12, seed=1)
    for temperature in (0.1, 0.01, 1e-3, 1e-4):
        leaf = x.clone().requires_grad_()
        mu = structmax.sinkhorn(leaf, Matching(partial=partial), temperature=temperature).marginals
        moved = temperature * torch.autograd.grad(mu, leaf, t)[0]
        assert moved.isfinite().all()
        assert moved.abs().max() <= 4 * t.abs().max()
        for dim in (-1, -2):
            full = mu.detach().sum(dim) > 1 - 1e-7
            assert moved.sum(dim)[full].abs().max() < 1e-9


def test_dtypes():
    x = normal(8, 6, 9)
    want = structmax.sinkhorn(x, temperature=0.2)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.15)):
        found = structmax.sinkhorn(x.to(dtype), temperature=0.2)
        assert found.marginals.dtype == found.value.dtype == dtype
        torch.testing.assert_close(found.marginals.double(), want.marginals, rtol=0, atol=tolerance)


def test_warns_if_not_converged():
    x = normal(3, 12, 12)
    with pytest.warns(UserWarning, match="of 3 instances have not converged.*larger `max_iter`"):
        found = structmax.sinkhorn(x, temperature=0.01, max_iter=3)
    assert not found.converged.all()
    assert found.error.max() > 1e-9


def test_errors():
    x = normal(3, 3)
    with pytest.raises(TypeError, match=r"`matching` should be a Matching, but is Matching itself. Try `Matching\(\)`"):
        structmax.sinkhorn(x, Matching)
    with pytest.raises(TypeError, match="`matching` should be a Matching, but is Simplex"):
        structmax.sinkhorn(x, structmax.Simplex())
    with pytest.raises(TypeError, match=r"`temperature` should be a number, but is a tensor.*float\(temperature\)"):
        structmax.sinkhorn(x, temperature=torch.tensor(1.0))
    with pytest.raises(ValueError, match="`temperature` should be > 0"):
        structmax.sinkhorn(x, temperature=0.0)
    with pytest.raises(ValueError, match="`max_iter` should be a whole number"):
        structmax.sinkhorn(x, max_iter=0)


# ---------------------------------------------------------------- with Gumbel noise


def test_gumbel_sinkhorn_is_random_and_repeatable():
    x = normal(2, 4, 4)

    def drawn(**how):
        return structmax.gumbel_sinkhorn(x, sample_shape=(5,), generator=torch.Generator().manual_seed(7), **how)

    soft = drawn(temperature=0.5)
    assert soft.shape == (5, 2, 4, 4)
    assert torch.equal(soft, drawn(temperature=0.5))
    torch.testing.assert_close(soft.sum(-1), torch.ones(5, 2, 4, dtype=torch.float64), rtol=0, atol=1e-8)
    assert (soft[0] - soft[1]).abs().max() > 0.01
    still = structmax.gumbel_sinkhorn(x, noise_scale=0.0)
    torch.testing.assert_close(still, structmax.sinkhorn(x).marginals)
    cold = drawn(temperature=1e-4)
    torch.testing.assert_close(cold, drawn(hard=True), rtol=0, atol=1e-6)


def test_hard_gumbel_sinkhorn_has_the_gradient_of_the_soft_one():
    gradients = []
    for hard in (False, True):
        leaf = normal(3, 4, 4).requires_grad_()
        generator = torch.Generator().manual_seed(1)
        sample = structmax.gumbel_sinkhorn(leaf, hard=hard, generator=generator)
        gradients.append(torch.autograd.grad(sample, leaf, normal(3, 4, 4, seed=2))[0])
    assert ((sample == 0) | (sample == 1)).all()
    torch.testing.assert_close(*gradients)


def test_gumbel_sinkhorn_errors():
    with pytest.raises(ValueError, match="`noise_scale` should be ≥ 0"):
        structmax.gumbel_sinkhorn(normal(3, 3), noise_scale=-1.0)


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("lowest", [-1e15, -1e30, -1.7e308])
def test_masks_on_every_matching(backend, lowest):
    """A row of one mask is a row of one score; where two rows have one good column, they share it and all others."""
    x = torch.tensor([[0.3, -0.2, 1.0], [0.0, 0.0, 0.0], [0.5, 0.1, -0.4]], dtype=torch.float64)
    masked = x.clone()
    masked[1] = lowest
    want = structmax.sinkhorn(x, temperature=0.5, backend=backend)
    got = structmax.sinkhorn(masked, temperature=0.5, backend=backend)
    torch.testing.assert_close(got.marginals, want.marginals, rtol=0, atol=1e-9)
    torch.testing.assert_close(got.value, want.value + lowest)
    rivals = torch.tensor([[0.0, lowest, lowest], [0.0, lowest, lowest]], dtype=torch.float64)
    share = torch.tensor([[0.5, 0.25, 0.25]] * 2, dtype=torch.float64)
    got = structmax.sinkhorn(rivals, backend=backend).marginals
    torch.testing.assert_close(got, share, rtol=0, atol=1e-9)
    none = torch.full((2, 2), -1.7e308, dtype=torch.float64)
    assert not structmax.sinkhorn(none, backend=backend).marginals.any()
