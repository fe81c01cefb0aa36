"""Soft sorting and ranking: projections onto permutahedra, their limits, ties and gradients."""

import itertools

import pytest
import torch
from scipy.stats import rankdata
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax.omega import Entropy, SquaredNorm

BACKENDS = ("numba", "reference")
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nearest_of_hull(z, points):
    """The nearest point to z in the hull of `points` (m, n): the best of all its simplices."""
    best, found = float("inf"), None
    for size in range(1, len(z) + 1):
        for chosen in itertools.combinations(range(len(points)), size):
            p = points[list(chosen)]
            gram = torch.zeros(size + 1, size + 1, dtype=z.dtype)
            gram[:size, :size], gram[:size, size], gram[size, :size] = p @ p.T, 1, 1
            right = torch.cat([p @ z, torch.ones(1, dtype=z.dtype)])
            weights = (torch.linalg.pinv(gram) @ right)[:size]
            if (weights < -1e-9).any() or abs(weights.sum() - 1) > 1e-9:
                continue
            gap = ((weights @ p - z) ** 2).sum().item()
            if gap < best:
                best, found = gap, weights @ p
    return found


@on_each_backend
def test_ranks_and_sorted_values_are_nearest_points_of_permutahedra(backend):
    ranks = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for x, temperature in itertools.product(normal(6, 3), (0.3, 1.0, 3.0)):
        hull = torch.stack([ranks[list(order)] for order in itertools.permutations(range(3))])
        got = structmax.soft_rank(x, SquaredNorm(temperature), backend=backend)
        torch.testing.assert_close(got, nearest_of_hull(x / temperature, hull), rtol=0, atol=1e-9)
        hull = torch.stack([x[list(order)] for order in itertools.permutations(range(3))])
        got = structmax.soft_sort(x, SquaredNorm(temperature), backend=backend)
        torch.testing.assert_close(got, nearest_of_hull(ranks / temperature, hull), rtol=0, atol=1e-9)


@on_each_backend
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("omega", [SquaredNorm, Entropy])
def test_small_gamma_is_exact(backend, descending, omega):
    x = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(s)).double() for s in range(4)])
    x = x * 0.3 - 1
    how = {"descending": descending, "backend": backend}
    ordered = x.sort(dim=-1, descending=descending).values
    torch.testing.assert_close(structmax.soft_sort(x, omega(0.003), **how), ordered, rtol=0, atol=1e-9)
    ranks = torch.as_tensor(rankdata(-x if descending else x, axis=-1))
    torch.testing.assert_close(structmax.soft_rank(x, omega(0.003), **how), ranks, rtol=0, atol=1e-9)
    p = structmax.soft_permutation(x, omega(0.003), **how)
    torch.testing.assert_close((p @ x.unsqueeze(-1)).squeeze(-1), ordered, rtol=0, atol=1e-9)


@pytest.mark.parametrize("omega", [SquaredNorm, Entropy])
def test_large_gamma_is_the_mean_and_ties_share(omega):
    x = normal(3, 6)
    flat = torch.full_like(x, 3.5)
    torch.testing.assert_close(structmax.soft_rank(x, omega(1e7)), flat, rtol=0, atol=1e-5)
    mean = x.mean(-1, keepdim=True).expand_as(x)
    torch.testing.assert_close(structmax.soft_sort(x, omega(1e7)), mean, rtol=0, atol=1e-5)
    tied = torch.tensor([2.0, 5.0, 2.0, 2.0, 9.0, 5.0], dtype=torch.float64)
    ranks = torch.as_tensor(rankdata(tied.numpy()))
    torch.testing.assert_close(structmax.soft_rank(tied, omega(0.01)), ranks, rtol=0, atol=1e-9)
    torch.testing.assert_close(structmax.soft_sort(tied, omega(0.01)), tied.sort().values, rtol=0, atol=1e-9)


def test_tiny_gamma_in_float32_is_exact():
    x = normal(5, 300).float()
    assert torch.equal(structmax.soft_rank(x, SquaredNorm(1e-9)), torch.as_tensor(rankdata(x, axis=-1)).float())
    assert torch.equal(structmax.soft_sort(x, SquaredNorm(1e-9)), x.sort().values)


def test_sums_are_kept_and_long_rows_agree_with_the_reference():
    x = normal(4, 400)
    for temperature in (0.01, 0.3, 10.0):
        for ask in (structmax.soft_rank, structmax.soft_sort):
            got, want = ask(x, SquaredNorm(temperature)), ask(x, SquaredNorm(temperature), backend="reference")
            torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
        total = torch.full((4,), 400 * 401 / 2, dtype=torch.float64)
        torch.testing.assert_close(structmax.soft_rank(x, SquaredNorm(temperature)).sum(-1), total)
        torch.testing.assert_close(structmax.soft_sort(x, SquaredNorm(temperature)).sum(-1), x.sum(-1))


def test_soft_permutations_are_doubly_stochastic():
    x = normal(2, 3, 6)
    for omega in (SquaredNorm(0.5), Entropy(0.5)):
        p = structmax.soft_permutation(x, omega)
        for dim in (-1, -2):
            torch.testing.assert_close(p.sum(dim), torch.ones(2, 3, 6, dtype=torch.float64), rtol=0, atol=1e-8)
    assert (structmax.soft_permutation(x, SquaredNorm(0.5)) == 0).any()


@on_each_backend
@pytest.mark.parametrize("ask", [structmax.soft_rank, structmax.soft_sort, structmax.soft_permutation])
@pytest.mark.parametrize("omega", [SquaredNorm(0.5), SquaredNorm(2.0), Entropy(0.7)])
def test_gradients(ask, omega, backend):
    x = normal(2, 4, seed=3).requires_grad_()
    gradcheck(lambda t: ask(t, omega, backend=backend), (x,), check_forward_ad=True)
    if isinstance(omega, Entropy):
        gradgradcheck(lambda t: ask(t, omega, backend=backend), (x,))


@on_each_backend
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_entropic_ranks_and_values_solve_their_problems(backend, temperature):
    """Both against a conditional gradient over all permutations, to its own gap."""
    how = {"over": "permutahedron", "backend": backend}
    ranks = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    orders = torch.tensor(list(itertools.permutations(range(4))))

    def gap(y, linear, points):
        """How much any permutation could improve ⟨linear, y⟩ − t Σ y (log y − 1): 0 at the maximum, within its hull."""
        slope = linear - temperature * y.log()
        return ((points - y) @ slope).max()

    for x in normal(5, 4, seed=7):
        y = structmax.soft_rank(x, Entropy(temperature), **how)
        torch.testing.assert_close(y.sum(), ranks.sum())
        assert (y.sort().values.cumsum(0) >= ranks.cumsum(0) - 1e-9).all()
        assert gap(y, x, ranks[orders]) < 1e-9
        p = structmax.soft_sort(x, Entropy(temperature), descending=True, **how).exp()
        torch.testing.assert_close(p.sum(), x.exp().sum())
        assert (p.sort().values.cumsum(0) >= x.exp().sort().values.cumsum(0) - 1e-9).all()
        assert gap(p, ranks.flip(0), x.exp()[orders]) < 1e-8
        ascending = structmax.soft_sort(-x, Entropy(temperature), **how)
        torch.testing.assert_close(ascending, -p.log())


def test_published_examples():
    """Those of fast-soft-sort's page."""
    values = torch.tensor([[5.0, 1.0, 2.0], [2.0, 1.0, 5.0]], dtype=torch.float64)
    sort, rank = structmax.soft_sort, structmax.soft_rank
    third = torch.tensor([5 / 3, 8 / 3, 11 / 3], dtype=torch.float64)
    torch.testing.assert_close(sort(values, SquaredNorm(1.0)), third.expand(2, 3))
    torch.testing.assert_close(sort(values, SquaredNorm(0.1)), values.sort().values)
    torch.testing.assert_close(
        rank(values, SquaredNorm(2.0)), torch.tensor([[3.0, 1.25, 1.75], [1.75, 1.25, 3.0]], dtype=torch.float64)
    )
    torch.testing.assert_close(
        rank(values, SquaredNorm(1.0)), torch.tensor([[3.0, 1.0, 2.0], [2.0, 1.0, 3.0]], dtype=torch.float64)
    )


@on_each_backend
def test_both_regularisers_over_both_hulls(backend):
    x = normal(2, 5, seed=4)
    for omega in (SquaredNorm(0.4), Entropy(0.4)):
        p = structmax.soft_permutation(x, omega, backend=backend)
        positions = torch.arange(1, 6, dtype=torch.float64)
        got = structmax.soft_rank(x, omega, over="matrices", backend=backend)
        torch.testing.assert_close(got, positions @ p)
        got = structmax.soft_sort(x, omega, over="matrices", backend=backend)
        torch.testing.assert_close(got, (p @ x.unsqueeze(-1)).squeeze(-1))
        default = "matrices" if isinstance(omega, Entropy) else "permutahedron"
        assert torch.equal(structmax.soft_rank(x, omega), structmax.soft_rank(x, omega, over=default))
    sharp = {"over": "permutahedron", "backend": backend}
    torch.testing.assert_close(structmax.soft_sort(x, Entropy(1e-3), **sharp), x.sort().values)
    ranks = torch.as_tensor(rankdata(x, axis=-1))
    torch.testing.assert_close(structmax.soft_rank(x, Entropy(1e-3), **sharp), ranks)
    with pytest.raises(ValueError, match="`over` should be one of 'permutahedron', 'matrices'"):
        structmax.soft_sort(x, over="vectors")


@on_each_backend
@pytest.mark.parametrize("ask", [structmax.soft_rank, structmax.soft_sort])
@pytest.mark.parametrize("temperature", [0.2, 2.0])
def test_gradients_over_the_permutahedron_with_entropy(ask, temperature, backend):
    x = normal(2, 4, seed=3).requires_grad_()
    how = {"over": "permutahedron", "backend": backend}
    gradcheck(lambda t: ask(t, Entropy(temperature), **how), (x,), check_forward_ad=True)
    gradgradcheck(lambda t: ask(t, Entropy(temperature), **how), (x,))


def test_transforms_and_compile():
    def total(x):
        return (structmax.soft_rank(x, SquaredNorm(0.7)) ** 2).sum() + (
            structmax.soft_sort(x, SquaredNorm(0.7)) ** 3
        ).sum()

    x = normal(4, 5)
    each = torch.stack([torch.func.grad(total)(row) for row in x])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(x), each)
    torch._dynamo.reset()
    leaf = x.clone().requires_grad_()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], each)


def test_dtypes_shapes_and_errors():
    x = normal(2, 3, 5)
    for ask in (structmax.soft_rank, structmax.soft_sort):
        assert ask(x.half()).dtype == torch.float16
        assert ask(x[:0]).shape == (0, 3, 5)
        assert ask(x[0, 0, :1]).shape == (1,)
        with pytest.raises(
            TypeError,
            match=r"`omega` should be SquaredNorm\(temperature\) or Entropy\(temperature\), but is LocalTsallis",
        ):
            ask(x, structmax.omega.LocalTsallis(1.5))
        with pytest.raises(TypeError, match="but is SquaredNorm itself"):
            ask(x, SquaredNorm)
