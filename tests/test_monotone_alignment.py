"""Monotone alignments beyond the laws: counts, what people see, messages, padding, long series, the noise."""

import itertools
import math

import pytest
import torch

import structmax
from structmax import MonotoneAlignment

KINDS = pytest.mark.parametrize("kind", ["warping", "gaps", "local"])


def structure_of(kind, rows=None, columns=None, band=None):
    return MonotoneAlignment(rows, columns, gaps=kind != "warping", local=kind == "local", band=band)


def draw(kind, N, M, batch=(), dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(N, M)] if kind == "warping" else [(N, M), (N, M + 1), (N + 1, M)]
    tensors = tuple(torch.randn(*batch, *shape, generator=generator, dtype=dtype) for shape in shapes)
    return tensors[0] if kind == "warping" else tensors


def delannoy(n, m):
    return sum(math.comb(n, k) * math.comb(m, k) * 2**k for k in range(min(n, m) + 1))


# Too long for a single strip, and not a multiple of anything.
LONG = 203, 131


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 5), (60, 7), LONG])
def test_there_are_delannoy_many_paths(n, m):
    value = structmax.log_partition(torch.zeros(n, m, dtype=torch.float64), MonotoneAlignment())
    assert value.item() == pytest.approx(math.log(delannoy(n - 1, m - 1)), rel=1e-12)
    gap = torch.zeros((), dtype=torch.float64)
    value = structmax.log_partition((gap.expand(n, m), gap, gap), MonotoneAlignment(gaps=True))
    assert value.item() == pytest.approx(math.log(delannoy(n, m)), rel=1e-12)


def test_nothing_with_nothing_is_one_alignment_and_something_with_nothing_is_none():
    structure = MonotoneAlignment(torch.tensor([0, 0, 2]), torch.tensor([0, 3, 0]))
    value = structmax.log_partition(torch.ones(3, 2, 3, dtype=torch.float64), structure)
    assert value.tolist() == [0.0, -math.inf, -math.inf]
    gaps = MonotoneAlignment(torch.tensor([0, 0, 2]), torch.tensor([0, 3, 0]), gaps=True)
    delete, insert = torch.tensor([0.5, 0.25], dtype=torch.float64)
    value = structmax.log_partition((torch.ones(3, 2, 3, dtype=torch.float64), delete, insert), gaps)
    assert value.tolist() == pytest.approx([0.0, 0.75, 1.0])


def test_an_end_outside_the_band_cannot_be_reached():
    structure = MonotoneAlignment(torch.tensor([4, 3]), band=1)
    scores = torch.zeros(2, 4, 5, requires_grad=True)
    value = structmax.log_partition(scores, structure)
    assert value[0] > 0
    assert value[1] == -math.inf
    value[0].backward()
    assert scores.grad[1].abs().sum() == 0
    assert not structmax.argmax(scores, structure)[1].any()


# ---------------------------------------------------------------- long ones, against a plain recursion


def plain_log_partition(kind, scores, band=None):
    """log Z by a loop over anti-diagonals of Python: one instance, float64."""
    tensors = (scores,) if kind == "warping" else scores
    N, M = tensors[0].shape[-2:]
    never = tensors[0].new_tensor(-math.inf)
    values, ends = {}, [tensors[0].new_zeros(())]

    def allowed(i, j):
        return band is None or abs(i - j) <= band

    for i in range(N + (kind != "warping")):
        for j in range(M + (kind != "warping")):
            if not allowed(i, j):
                continue
            tails = [values.get(place, never) for place in ((i - 1, j - 1), (i - 1, j), (i, j - 1))]
            if kind == "warping":
                total = torch.stack(tails).logsumexp(0) if i or j else tensors[0].new_zeros(())
                values[i, j] = total + scores[i, j] if total > -math.inf else never
                continue
            match, delete, insert = tensors
            terms = [match[i - 1, j - 1] + tails[0]] if i and j else []
            if kind == "local" and i and j:
                terms = [match[i - 1, j - 1] + torch.logaddexp(tails[0], torch.zeros_like(tails[0]))]
                ends += terms
            terms += [delete[i - 1, j] + tails[1]] if i else []
            terms += [insert[i, j - 1] + tails[2]] if j else []
            terms = [term for term in terms if term > -math.inf]
            first = kind == "gaps" and not i and not j
            values[i, j] = tensors[0].new_zeros(()) if first else torch.stack(terms).logsumexp(0) if terms else never
    return torch.stack(ends).logsumexp(0) if kind == "local" else values[max(values)]


@KINDS
@pytest.mark.parametrize("band", [None, 9])
def test_several_strips_agree_with_a_plain_recursion(kind, band):
    N, M = 95, 90
    scores = draw(kind, N, M)
    structure = structure_of(kind, band=band)
    want = plain_log_partition(kind, scores, band)
    assert structmax.log_partition(scores, structure, backend="numba").item() == pytest.approx(want.item(), rel=1e-12)
    leaves = tuple(t.clone().requires_grad_() for t in structure.tensors(scores))
    structmax.log_partition(structure.parts(leaves), structure, backend="numba").backward()
    directions = structure.tensors(draw(kind, N, M, seed=1))
    step = 1e-5
    ahead, behind = (
        structmax.log_partition(
            structure.parts(tuple(t + sign * step * d for t, d in zip(leaves, directions, strict=True))), structure
        )
        for sign in (1, -1)
    )
    slope = sum((leaf.grad * d).sum() for leaf, d in zip(leaves, directions, strict=True))
    assert slope.item() == pytest.approx(((ahead - behind) / (2 * step)).item(), rel=1e-6)
    if kind != "local":
        # every path crosses every row
        rows = leaves[0].grad if kind == "warping" else leaves[0].grad + leaves[1].grad[..., :-1]
        crossings = rows.sum(-1) + (0 if kind == "warping" else leaves[1].grad[..., -1])
        assert crossings.min() > 1 - 1e-9


@KINDS
def test_the_hessian_of_several_strips_is_the_derivative_of_the_marginals(kind):
    N, M = 90, 40
    structure = structure_of(kind, torch.tensor([N, 85]), torch.tensor([33, M]))
    scores, directions = (structure.tensors(draw(kind, N, M, (2,), seed=seed)) for seed in (0, 1))
    scores = tuple(t.requires_grad_() for t in scores)
    marginals = structure.tensors(structmax.marginals(structure.parts(scores), structure, backend="numba"))
    products = torch.autograd.grad(marginals, scores, directions)
    step = 1e-5
    with torch.no_grad():
        ahead, behind = (
            structure.tensors(
                structmax.marginals(
                    structure.parts(tuple(t + sign * step * d for t, d in zip(scores, directions, strict=True))),
                    structure,
                )
            )
            for sign in (1, -1)
        )
    for product, a, b in zip(products, ahead, behind, strict=True):
        torch.testing.assert_close(product, (a - b) / (2 * step), rtol=1e-5, atol=1e-8)


@KINDS
def test_the_best_path_of_several_strips_is_best(kind):
    scores = draw(kind, *LONG)
    structure = structure_of(kind)
    best = structmax.argmax(scores, structure, backend="numba")
    value = sum((s * b).sum() for s, b in zip(structure.tensors(scores), structure.tensors(best), strict=True))
    # at a low temperature the soft maximum is the best score
    cold = structmax.smoothed(scores, structure, structmax.omega.Entropy(1e-9))
    assert value.item() == pytest.approx(cold.item(), rel=1e-7)
    again = structure.encode(structure.decode(best), *LONG)
    for a, b in zip(structure.tensors(again), structure.tensors(best), strict=True):
        assert torch.equal(a.double(), b)


@KINDS
def test_kernel_and_recursion_draw_the_same(kind):
    N, M = 20, 17
    structure = structure_of(kind, torch.tensor([20, 9, 0]), torch.tensor([17, 17, 4]), band=15)
    scores = draw(kind, N, M, (3,))
    drawn = [
        structmax.sample(scores, structure, (6,), generator=torch.Generator().manual_seed(3), backend=backend)
        for backend in ("numba", "reference")
    ]
    for ours, reference in zip(*(structure.tensors(d) for d in drawn), strict=True):
        assert torch.equal(ours, reference)


def test_draws_of_several_strips_have_the_marginals_as_mean():
    scores = draw("warping", *LONG)
    drawn = structmax.sample(scores, MonotoneAlignment(), (2000,), generator=torch.Generator().manual_seed(0))
    error = (drawn.mean(0) - structmax.marginals(scores, MonotoneAlignment())).abs().max()
    assert error < 5 * math.sqrt(0.25 / 2000)


@pytest.mark.thorough
def test_float32_is_right_on_long_series_with_squared_distances():
    walk = torch.randn(2, 1500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    costs = torch.cdist(walk[:1], walk[1:, :1300]) ** 2 / 50
    exact, rounded = (-costs).float().double().requires_grad_(), (-costs).float().requires_grad_()
    want, got = (structmax.log_partition(x, MonotoneAlignment()) for x in (exact, rounded))
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0.0)
    want.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(rounded.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)


def test_the_band_may_leave_a_long_local_instance():
    N, M = 400, 3
    scores = draw("local", N, M)
    structure = structure_of("local", band=2)
    short = structmax.MonotoneAlignment(torch.tensor(M + 2), gaps=True, local=True, band=2)
    assert structmax.log_partition(scores, structure).item() == pytest.approx(
        structmax.log_partition(scores, short).item()
    )
    for a, b in zip(structmax.marginals(scores, structure), structmax.marginals(scores, short), strict=True):
        torch.testing.assert_close(a, b)
    drawn = structmax.sample(scores, structure, (50,), generator=torch.Generator().manual_seed(0))
    assert drawn.match.sum() > 0
    assert not drawn.match[:, M + 2 :].any()


# ---------------------------------------------------------------- numbers out of the ordinary


@pytest.mark.thorough
@KINDS
@pytest.mark.parametrize("scale", [1e5, 1e9, 1e20, 1e35])
def test_scores_too_large_for_float32_are_not(kind, scale):
    structure = structure_of(kind)
    scores = structure.parts(tuple((scale * t).float() for t in structure.tensors(draw(kind, 5, 4, (3,)))))
    best = structmax.argmax(scores, structure)
    for soft, hard in zip(*(structure.tensors(s) for s in (structmax.marginals(scores, structure), best)), strict=True):
        torch.testing.assert_close(soft, hard)
    drawn = structmax.sample(scores, structure, (4,))
    for sampled, hard in zip(structure.tensors(drawn), structure.tensors(best), strict=True):
        assert torch.equal(sampled, hard.expand_as(sampled))


@KINDS
def test_a_finite_number_for_minus_infinity_forbids_what_can_be_avoided(kind):
    lowest = torch.finfo(torch.float32).min
    structure = structure_of(kind)
    tensors = structure.tensors(draw(kind, 4, 4, (2,), dtype=torch.float32))
    blocked = tuple(torch.rand(t.shape, generator=torch.Generator().manual_seed(5)) < 0.2 for t in tensors)
    finite, infinite = (
        structure.parts(tuple(t.masked_fill(b, number) for t, b in zip(tensors, blocked, strict=True)))
        for number in (lowest, -math.inf)
    )
    torch.testing.assert_close(structmax.log_partition(finite, structure), structmax.log_partition(infinite, structure))
    for a, b in zip(*(structure.tensors(structmax.marginals(s, structure)) for s in (finite, infinite)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["warping", "gaps"])
def test_the_best_path_of_the_lowest_numbers_is_a_path_as_long_as_its_sum_is_a_number(kind):
    structure = structure_of(kind)
    tensors = structure.tensors(draw(kind, 3, 3, (2,), dtype=torch.float32))
    lowest = torch.finfo(torch.float32).min
    for low, cells in ((lowest / 8, 3.0), (lowest, 0.0)):
        scores = structure.parts(tuple(torch.full_like(t, low) for t in tensors))
        (moves, *_) = structure.tensors(structmax.argmax(scores, structure))
        assert moves.sum((1, 2)).tolist() == [cells, cells]
        assert structmax.log_partition(scores, structure).isfinite().tolist() == [cells > 0] * 2


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_stays_with_its_instance(kind, bad):
    structure = structure_of(kind)
    tensors = structure.tensors(draw(kind, 3, 3, (3,)))
    clean = structmax.marginals(structure.parts(tensors), structure)
    tensors[0][1, 1, 1] = bad
    value = structmax.log_partition(structure.parts(tensors), structure)
    assert value.isnan().tolist() == [False, True, False]
    spoilt = structmax.marginals(structure.parts(tensors), structure)
    for got, want in zip(structure.tensors(spoilt), structure.tensors(clean), strict=True):
        assert got[1].isnan().equal(want[1] > 0)
        assert torch.equal(got[::2], want[::2])


@KINDS
def test_padding_may_hold_anything(kind):
    rows, columns = torch.tensor([3, 0, 5]), torch.tensor([4, 2, 1])
    structure = structure_of(kind, rows, columns, band=3)
    tensors = structure.tensors(draw(kind, 5, 4, (3,)))
    used = structure.tensors(
        structmax.marginals(structure.parts(tuple(torch.zeros_like(t) for t in tensors)), structure)
    )
    reach = [(0, 0)] if kind == "warping" else [(1, 1), (1, 0), (0, 1)]
    leaves = []
    for tensor, (down, right) in zip(tensors, reach, strict=True):
        i, j = torch.arange(tensor.shape[1])[:, None], torch.arange(tensor.shape[2])
        items = 0 if kind == "warping" else 1
        inside = (i + down < rows[:, None, None] + items) & (j + right < columns[:, None, None] + items)
        inside = inside & ((i - j).abs() <= 3) & ((i + down - j - right).abs() <= 3)
        leaves.append(tensor.masked_fill(~inside, math.nan).requires_grad_())
    total = structmax.log_partition(structure.parts(tuple(leaves)), structure)
    want = structmax.log_partition(structure.parts(tensors), structure)
    torch.testing.assert_close(total, want, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(total[total.isfinite()].sum(), leaves)
    for gradient, use in zip(gradients, used, strict=True):
        assert not gradient[use == 0].any()
        assert gradient.isfinite().all()


# ---------------------------------------------------------------- what people see and say


def test_paths_are_decoded_in_order():
    cells = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert MonotoneAlignment().decode(cells).tolist() == [[0, 0], [0, 1], [1, 2], [-1, -1]]
    gaps = MonotoneAlignment(gaps=True)
    path = torch.tensor([[0, 0, 2], [0, 1, 0], [1, 2, 1], [-1, -1, -1]])
    parts = gaps.encode(path, 2, 2)
    assert parts.insert[0, 0] == parts.match[0, 1] == parts.delete[1, 2] == 1
    assert torch.equal(gaps.decode(parts), path)


def test_one_gap_score_has_the_gradient_of_all_its_uses():
    match = draw("warping", 4, 3)
    gap = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    structure = MonotoneAlignment(gaps=True)
    structmax.log_partition((match, gap, gap), structure).backward()
    marginals = structmax.marginals((match, gap.detach(), gap.detach()), structure)
    assert gap.grad.item() == pytest.approx((marginals.delete.sum() + marginals.insert.sum()).item())


@pytest.mark.parametrize(
    ("structure", "scores", "message"),
    [
        (MonotoneAlignment(), torch.zeros(3), r"should have shape \(…, N, M\), but has \(3,\)"),
        (MonotoneAlignment(), (torch.zeros(2, 2),) * 3, r"should be one tensor.*Try gaps=True"),
        (MonotoneAlignment(gaps=True), torch.zeros(2, 2), r"should be three tensors.*but are one tensor"),
        (
            MonotoneAlignment(gaps=True),
            (torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(())),
            r"`delete` should broadcast to \(2, 4\).*but has shape \(2, 3\)",
        ),
        (
            MonotoneAlignment(gaps=True),
            (torch.zeros(2, 3), torch.zeros((), dtype=torch.float64), torch.zeros(())),
            r"`delete` should have the dtype of `match`, torch.float32, but has torch.float64",
        ),
        (MonotoneAlignment(torch.tensor([3])), torch.zeros(1, 2, 2), r"`rows` should be between 0 and 2"),
        (
            MonotoneAlignment(columns=torch.tensor([1.0])),
            torch.zeros(1, 2, 2),
            r"`columns` should be an integer tensor",
        ),
    ],
)
def test_what_does_not_fit_is_said(structure, scores, message):
    with pytest.raises((TypeError, ValueError), match=message):
        structmax.log_partition(scores, structure)


def test_what_makes_no_structure_is_said():
    with pytest.raises(ValueError, match=r"`gaps` should be True, but is False. Try gaps=True"):
        MonotoneAlignment(local=True)
    with pytest.raises(ValueError, match="`band` should be a whole number ≥ 0"):
        MonotoneAlignment(band=-1)


@pytest.mark.parametrize("options", [{}, {"gaps": True}, {"gaps": True, "local": True}])
def test_which_parts_exist(options):
    for n, m, band in itertools.product(range(4), range(4), (0, 1, None)):
        structure = structmax.MonotoneAlignment(torch.tensor(n), torch.tensor(m), band=band, **options)
        scores = (torch.zeros(3, 3), torch.zeros(3, 4), torch.zeros(4, 3)) if options else (torch.zeros(3, 3),)
        members = structure.tensors(structure.enumerate(structure.parts(scores)))
        for exists, member in zip(structure.exists(scores), members, strict=True):
            assert torch.equal(exists, (member > 0).any(0))
