"""What the laws do not say about subsets: closed forms, long and wide scores, draws, what people see, messages."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import Subset
from structmax.testing.case import same

BACKENDS = pytest.mark.parametrize("backend", ["numba", "reference"])
KINDS = pytest.mark.parametrize("kind", ["k", "at_most"])


def normal(*shape: int, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def log_binomials(n: int, k: int) -> Tensor:
    """log C(n, c) for c = 0 … k, −inf beyond n."""
    c = torch.arange(k + 1, dtype=torch.float64)
    inside = c <= n
    c = torch.where(inside, c, 0.0)
    logs = math.lgamma(n + 1) - torch.lgamma(c + 1) - torch.lgamma(n - c + 1)
    return logs.masked_fill(~inside, -math.inf)


def answers(x: Tensor, structure: Subset, backend: str = "auto") -> tuple[Tensor, Tensor, Tensor]:
    """Value, marginals, and the gradient of a function of these."""
    leaf = x.clone().requires_grad_()
    value = structmax.log_partition(leaf, structure, backend=backend)
    mu = structmax.marginals(leaf, structure, backend=backend)
    weights = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
    (gradient,) = torch.autograd.grad((mu * weights).sum(), leaf)
    return value.detach(), mu.detach(), gradient


@BACKENDS
def test_zero_scores_count_subsets(backend):
    lengths = torch.tensor([0, 1, 4, 7, 12])
    x = torch.zeros(5, 12, dtype=torch.float64)
    for k in (0, 1, 3, 12, 20):
        exact = structmax.log_partition(x, Subset(k, lengths=lengths), backend=backend)
        counts = torch.tensor([math.comb(n, k) for n in lengths.tolist()], dtype=torch.float64)
        same("C(n, k)", exact, counts.log())
        upto = structmax.log_partition(x, Subset(at_most=k, lengths=lengths), backend=backend)
        counts = torch.tensor([sum(math.comb(n, c) for c in range(k + 1)) for n in lengths.tolist()])
        same("Σ C(n, c)", upto, counts.double().log())


@pytest.mark.parametrize("shift", [0.0, -1e6])
def test_long_equal_scores_have_closed_forms(shift):
    n, k = 100_000, 1000
    x = torch.full((n,), shift, dtype=torch.float64)
    value, mu, gradient = answers(x, Subset(k))
    same("log C(n, k)", value, log_binomials(n, k)[-1] + k * shift, 1e-11)
    same("marginals", mu, torch.full_like(x, k / n), 1e-13)
    same("sum of marginals", mu.sum(), torch.tensor(k, dtype=x.dtype), 1e-11)
    # Cov = μ(1 − μ) on the diagonal, and −μ(1 − μ) / (n − 1) off it
    weights = torch.linspace(-1, 1, n, dtype=x.dtype)
    same("Hessian", gradient, k / n * (1 - k / n) * n / (n - 1) * weights, 1e-13)


@KINDS
@pytest.mark.parametrize("gap", [0.5, 8.0, 700.0])
def test_long_scores_of_two_values_are_a_sum_over_how_many_of_each(kind, gap):
    high, low, k = 700, 60_000, 1000
    x = torch.cat([torch.full((high,), gap, dtype=torch.float64), torch.zeros(low, dtype=torch.float64)])
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))] - 3
    of_high = log_binomials(high, k)[:, None] + (gap - 3) * torch.arange(k + 1)[:, None]
    of_low = log_binomials(low, k) - 3 * torch.arange(k + 1)
    counts = torch.arange(k + 1)[:, None] + torch.arange(k + 1)
    allowed = counts == k if kind == "k" else counts <= k
    terms = (of_high + of_low).masked_fill(~allowed, -math.inf)
    want = terms.flatten().logsumexp(0)
    p = (terms - want).exp()
    value, mu, _ = answers(x, Subset(**{kind: k}))
    same("value", value, want, 1e-11)
    expected = [(p.sum(1 - d) * torch.arange(k + 1)).sum() / size for d, size in ((0, high), (1, low))]
    same("marginals", mu, torch.where(x > gap / 2 - 3, *expected), 1e-10)


@KINDS
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
@pytest.mark.parametrize("k", [1, 5, 17, 28, 29, 30])
def test_kernels_equal_the_reference(kind, scale, k):
    x = normal(4, 30, scale=scale)
    x[1, ::3] = -math.inf
    x[2] = x[2].round(decimals=-1)
    structure = Subset(**{kind: k}, lengths=torch.tensor([30, 29, 30, 30]))
    for got, want in zip(answers(x, structure, "numba"), answers(x, structure, "reference"), strict=True):
        same("numba", got, want)


def test_ties_far_below_the_best_are_told_apart():
    x = torch.tensor([0.0, -1e20, -1e20, -1e20], dtype=torch.float64)
    value, mu, _ = answers(x, Subset(2))
    same("value", value + 1e20, torch.tensor(0.0, dtype=x.dtype))
    same("marginals", mu, torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3], dtype=x.dtype))


@KINDS
def test_float32_is_accurate(kind):
    x = normal(3, 2000, dtype=torch.float32)
    for scale in (1.0, 100.0):
        rounded = answers(scale * x, Subset(**{kind: 40}))
        exact = answers((scale * x).double(), Subset(**{kind: 40}))
        for got, want in zip(rounded, exact, strict=True):
            same("float32", got.double(), want, 2e-6)


@KINDS
def test_blocks_of_the_chart_change_nothing(kind):
    # 9000 items with room for 200 in: more cells than are kept at once
    x = normal(1, 9000, scale=2.0)
    _, mu, gradient = answers(x, Subset(**{kind: 200}))
    weights = torch.linspace(-1, 1, 9000, dtype=x.dtype)
    step = 1e-4
    ahead, behind = (answers(x + sign * step * weights, Subset(**{kind: 200}))[:2] for sign in (1, -1))
    same("directional derivative of the value", ((ahead[0] - behind[0]) / (2 * step))[0], (mu * weights).sum(), 1e-6)
    same("that of the marginals", (ahead[1] - behind[1]) / (2 * step), gradient, 1e-7)


@BACKENDS
@KINDS
def test_infeasible_and_broken_instances_disturb_no_other(backend, kind):
    x = normal(5, 6)
    structure = Subset(**{kind: 3})
    clean = answers(x, structure, backend)
    x[1, 2], x[3, 0] = math.nan, math.inf
    x[4, 2:] = -math.inf
    spoilt = answers(x, structure, backend)
    for got, want in zip(spoilt, clean, strict=True):
        assert torch.equal(got[::2][:2], want[::2][:2])
        assert got[1::2].isnan().all()
    if kind == "k":
        assert spoilt[0][4] == -math.inf
        assert not spoilt[1][4].any()
        assert not spoilt[2][4].any()
    for question in (structmax.argmax, structmax.max_marginals, structmax.sparse_marginals):
        got = question(x, structure, backend=backend)
        assert not got[::2].isnan().any()
        assert got[1::2].isnan().all()
    best = structmax.topk(x, structure, 3, backend=backend)
    assert not best.parts[:, ::2].isnan().any()


@BACKENDS
@KINDS
def test_nothing_is_read_where_nothing_can_be_in(backend, kind):
    x = torch.full((2, 3), math.nan)
    structure = Subset(**{kind: 0})
    assert structmax.log_partition(x, structure, backend=backend).tolist() == [0.0, 0.0]
    assert not structmax.marginals(x, structure, backend=backend).any()
    assert not structmax.argmax(x, structure, backend=backend).any()


@KINDS
def test_draws_are_those_of_the_reference(kind):
    x = normal(3, 9)
    x[1, 4] = -math.inf
    structure = Subset(**{kind: 4}, lengths=torch.tensor([9, 8, 5]))
    got, want = (
        structmax.sample(x, structure, (60,), generator=torch.Generator().manual_seed(3), backend=backend)
        for backend in ("numba", "reference")
    )
    assert torch.equal(got, want)


@KINDS
def test_long_draws_have_the_marginals(kind):
    x = normal(3000, scale=2.0)
    structure = Subset(**{kind: 300})
    draws = structmax.sample(x, structure, (2000,), generator=torch.Generator().manual_seed(0))
    counts = draws.sum(-1)
    assert bool((counts == 300).all() if kind == "k" else (counts <= 300).all())
    mu = structmax.marginals(x, structure)
    z = (draws.mean(0) - mu) / (mu * (1 - mu) / 2000).sqrt().clamp_min(1 / 2000)
    assert float(z.abs().max()) < 5
    assert abs(float((z**2).mean()) - 1) < 0.2


@BACKENDS
@KINDS
@pytest.mark.parametrize("tied", [False, True])
def test_the_best_of_many(backend, kind, tied):
    n, k = 9, 4
    x = normal(2, n)
    x = x.round() if tied else x
    x[1, 3] = -math.inf
    structure = Subset(**{kind: k})
    sizes = (k,) if kind == "k" else range(k + 1)
    values = torch.tensor(
        [[float(row[list(s)].sum()) for size in sizes for s in itertools.combinations(range(n), size)] for row in x],
        dtype=x.dtype,
    )
    best = structmax.topk(x, structure, 30, backend=backend)
    same("values", best.values, values.topk(30, -1).values.T)
    same("scores of the parts", (torch.where(best.parts > 0, x, 0.0)).sum(-1), best.values)
    assert len(best.parts[:, 0].unique(dim=0)) == 30


def test_the_best_of_a_long_row_are_the_best():
    x = normal(1, 50_000, dtype=torch.float32)
    y = structmax.argmax(x, Subset(700))
    assert torch.equal(y.nonzero()[:, 1], x.topk(700).indices[0].sort().values)
    best = structmax.topk(x, Subset(700), 4)
    order = x[0].double().sort(descending=True).values
    top = order[:700].sum()
    # the worst of the best for the next; and then either for the one after, or the last but one for the next
    swaps = [0.0, order[700] - order[699], order[701] - order[699], order[700] - order[698]]
    want = top + torch.tensor(swaps, dtype=torch.float64).sort(descending=True).values
    same("values", best.values[:, 0].double(), want, 1e-6)
    assert bool((best.parts.sum(-1) == 700).all())


@BACKENDS
@KINDS
@pytest.mark.parametrize("scale", [0.3, 1.0, 1e4])
def test_the_nearest_point_meets_its_conditions(backend, kind, scale):
    n, k = 400, 37
    x = normal(6, n, scale=scale)
    x[1, ::2] = -math.inf
    x[2] = x[2].round()
    x[3] -= 2
    mu = structmax.sparse_marginals(x, Subset(**{kind: k}), backend=backend)
    assert not mu[1, ::2].any()
    total = mu.sum(-1)
    spent = (total - k).abs() < 1e-11
    assert bool(spent.all() if kind == "k" else (total < k + 1e-11).all())
    for row, point, is_spent in zip(x, mu, spent.tolist(), strict=True):
        free = (point > 0) & (point < 1)
        tau = (row - point)[free].mean() if is_spent and bool(free.any()) else torch.tensor(0.0, dtype=x.dtype)
        if not is_spent or bool(free.any()):
            same("clip(x − τ, 0, 1)", point, (row - tau).clamp(0, 1), 1e-9)
        else:
            assert float(row[point == 1].amin()) - float(row[point == 0].amax()) >= 1 - 1e-9
        if kind == "at_most":
            assert float(tau) >= -1e-12


@BACKENDS
@KINDS
def test_the_nearest_point_has_the_right_derivative(backend, kind):
    leaf = (0.8 * normal(3, 8)).requires_grad_()
    structure = Subset(**{kind: 3})
    assert torch.autograd.gradcheck(
        lambda x: structmax.sparse_marginals(x, structure, backend=backend), leaf, check_forward_ad=True
    )


@BACKENDS
def test_given_items_are_in(backend):
    x = normal(2, 7)
    for structure in (Subset(3), Subset(at_most=3)):
        parts, known = torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
        parts[:, 1] = parts[0, 4] = 1
        known[:, 1] = known[0, 4] = known[:, 2] = True
        got = structmax.log_prob(x, structure, parts, known=known, backend=backend)
        for b in range(2):
            members = structure.enumerate(x[b])
            scores = (members * x[b]).sum(-1)
            agree = ((members == parts[b]) | ~known[b]).all(-1)
            same("log P", got[b], scores[agree].logsumexp(0) - scores.logsumexp(0))
        # one item more than there may be
        parts[0, :4], known[0] = 1, True
        assert structmax.log_prob(x, structure, parts, known=known, backend=backend)[0] == -math.inf


def test_items_go_there_and_back():
    x = normal(4, 6, dtype=torch.float32)
    for structure in (Subset(3), Subset(at_most=3), Subset(9)):
        parts = structmax.argmax(x, structure)
        items = structure.decode(parts)
        assert items.shape == (4, min(structure.size, 6))
        assert torch.equal(structure.encode(items, 6), parts)
    assert Subset(2).decode(torch.tensor([0.0, 1.0, 0.0, 1.0])).tolist() == [1, 3]
    assert Subset(at_most=3).decode(torch.tensor([0.0, 1.0, 0.0, 1.0])).tolist() == [1, 3, -1]


def test_empty_batch():
    x = torch.zeros(0, 5)
    for structure in (Subset(2), Subset(at_most=2)):
        assert structmax.log_partition(x, structure).shape == (0,)
        assert structmax.sample(x, structure, (3,)).shape == (3, 0, 5)
        assert structmax.topk(x, structure, 2).parts.shape == (2, 0, 5)
        assert structmax.sparse_marginals(x, structure).shape == (0, 5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Subset(), TypeError, "either `k`, how many items are in, or `at_most`, but is given none"),
        (lambda: Subset(2, at_most=3), TypeError, "but is given both"),
        (lambda: Subset(-1), ValueError, "`k` should be a whole number ≥ 0, but is -1"),
        (lambda: Subset(at_most=1.5), ValueError, "`at_most` should be a whole number ≥ 0, but is 1.5"),
        (lambda: Subset(1).check(torch.zeros(())), ValueError, r"shape \(…, n\) with n ≥ 1, but are \(\)"),
        (lambda: Subset(1).check((torch.zeros(3),)), ValueError, "but are tuple"),
        (lambda: Subset(1, lengths=torch.tensor(4)).check(torch.zeros(3)), ValueError, "between 0 and 3, the number"),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()
