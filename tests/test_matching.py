"""Matchings beyond the laws: what people see, messages, big and odd scores, and other ways to compute the same."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import structmax
from structmax import Matching, SmallMatching

linear_sum_assignment = pytest.importorskip("scipy.optimize").linear_sum_assignment
EITHER = pytest.mark.parametrize("partial", [False, True])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def best_value(table: np.ndarray, partial: bool) -> float:
    """By SciPy; −inf where nothing is feasible."""
    if partial:
        own = np.where(np.eye(len(table)) > 0, 0.0, -np.inf)
        table = np.concatenate([table, own], 1)
    try:
        return float(table[linear_sum_assignment(table, maximize=True)].sum())
    except ValueError:
        return -math.inf


def check_matching(scores: Tensor, parts: Tensor, r: int, c: int, partial: bool) -> None:
    """Parts of one instance are a matching of its corner, as good as SciPy's."""
    want = best_value(scores[:r, :c].double().numpy(), partial)
    ones = parts.nonzero().tolist()
    assert all(parts[i, j] == 1 and i < r and j < c for i, j in ones)
    assert len({i for i, _ in ones}) == len({j for _, j in ones}) == len(ones)
    if want == -math.inf:
        assert not ones
        return
    assert partial or len(ones) == min(r, c)
    got = math.fsum(float(scores[i, j]) for i, j in ones)
    assert abs(got - want) <= 1e-10 * max(1.0, abs(want))


def draw(kind: str, *shape: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "integers":
        return torch.randint(-3, 4, shape, generator=generator).double()
    if kind == "forbidden":
        return normal.masked_fill(torch.rand(shape, generator=generator) < 0.5, -math.inf)
    if kind == "large":
        return 1e3 * normal
    if kind == "rank one":
        return torch.rand(*shape[:-1], 1, generator=generator) * torch.rand(
            *shape[:-2], 1, shape[-1], generator=generator, dtype=torch.float64
        )
    return normal


@EITHER
@DTYPES
@pytest.mark.parametrize("kind", ["normal", "integers", "forbidden", "large", "rank one"])
@pytest.mark.parametrize("shape", [(30, 30), (17, 40), (40, 17), (1, 33), (16, 16), (5, 64)])
def test_best_matchings_are_as_good_as_those_of_scipy(kind, shape, partial, dtype):
    generator = torch.Generator().manual_seed(0)
    scores = draw(kind, 6, *shape, generator=generator).to(dtype)
    rows, columns = (torch.randint(0, size + 1, (6,), generator=generator) for size in shape)
    rows[:3], columns[:3] = torch.tensor(shape).unsqueeze(1)
    best = structmax.argmax(scores, Matching(rows, columns, partial=partial), backend="numba")
    for b in range(6):
        check_matching(scores[b], best[b], int(rows[b]), int(columns[b]), partial)


@DTYPES
def test_a_large_matching(dtype):
    scores = torch.rand(300, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
    check_matching(scores, structmax.argmax(scores, Matching()), 300, 300, False)


@EITHER
def test_scores_of_very_different_size(partial):
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(40, 12, 12, generator=generator, dtype=torch.float64)
    scores = scores * 10.0 ** torch.randint(-6, 7, scores.shape, generator=generator)
    for table, best in zip(scores, structmax.argmax(scores, Matching(partial=partial)), strict=True):
        check_matching(table, best, 12, 12, partial)


@EITHER
@pytest.mark.parametrize("kind", ["normal", "integers", "forbidden", "large"])
@pytest.mark.parametrize("shape", [(5, 5), (3, 6), (6, 3)])
def test_the_best_of_small_ones_agree_with_the_program_over_subsets(kind, shape, partial):
    scores = draw(kind, 8, *shape, generator=torch.Generator().manual_seed(3))
    ranked, small = Matching(partial=partial), SmallMatching(partial=partial)
    for k in (1, 7, 60):
        got, want = structmax.topk(scores, ranked, k, backend="numba"), structmax.topk(scores, small, k)
        torch.testing.assert_close(got.values, want.values, rtol=1e-10, atol=1e-10)
        of_parts = torch.where(got.parts > 0, scores, 0.0).sum((-1, -2))
        found = got.values > -math.inf
        torch.testing.assert_close(of_parts[found], got.values[found], rtol=1e-10, atol=1e-10)
        for b in range(len(scores)):
            rows = got.parts[:, b].flatten(1)[found[:, b]]
            assert len(rows.unique(dim=0)) == len(rows)
    want = structmax.max_marginals(scores, small)
    torch.testing.assert_close(structmax.max_marginals(scores, ranked), want, rtol=1e-10, atol=1e-10)


@EITHER
def test_best_matchings_with_a_pair_by_solving_again(partial):
    scores = draw("normal", 9, 14, generator=torch.Generator().manual_seed(4))
    got = structmax.max_marginals(scores, Matching(partial=partial))
    for i, j in itertools.product(range(9), range(14)):
        others = np.delete(np.delete(scores.numpy(), i, 0), j, 1)
        assert got[i, j] == pytest.approx(float(scores[i, j]) + best_value(others, partial), rel=1e-12)


@EITHER
@pytest.mark.parametrize("shape", [(8, 8), (6, 11), (11, 6)])
def test_many_best_are_in_order_distinct_and_begin_with_the_best(shape, partial):
    generator = torch.Generator().manual_seed(5)
    for scores in (draw("normal", *shape, generator=generator), draw("integers", *shape, generator=generator)):
        best = structmax.topk(scores, Matching(partial=partial), 200)
        assert bool((best.values.diff() <= 1e-12).all())
        assert len(best.parts.flatten(1).unique(dim=0)) == 200
        assert best.values[0] == pytest.approx(best_value(scores.numpy(), partial))
        for q in (0, 50, 199):
            one = best.parts[q]
            assert int(one.sum(0).max()) <= 1
            assert int(one.sum(1).max()) <= 1
            assert partial or int(one.sum()) == min(shape)
            assert best.values[q] == pytest.approx(float((one * scores).sum()))


@EITHER
def test_padding_may_hold_anything(partial):
    scores = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(6))
    structure = Matching(torch.tensor([5, 3, 0]), torch.tensor([4, 6, 2]), partial=partial)
    in_rows, in_columns = torch.arange(5) < structure.rows[:, None], torch.arange(6) < structure.columns[:, None]
    used = in_rows[:, :, None] & in_columns[:, None, :]
    answers = []
    for junk, backend in ((0.0, "reference"), (math.nan, "numba"), (math.inf, "numba"), (1e30, "numba")):
        filled = torch.where(used, scores, junk)
        parts, values = structmax.topk(filled, structure, 4, backend=backend)
        assert not parts.masked_fill(used, 0.0).any()
        through = structmax.max_marginals(filled, structure, backend=backend)
        assert bool((through[~used] == -math.inf).all())
        answers.append((values, parts, through, structmax.argmax(filled, structure, backend=backend)))
    for got in answers[1:]:
        for a, b in zip(got, answers[0], strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_a_broken_instance_breaks_no_other(broken, backend):
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(7))
    asked = {"structure": Matching(torch.tensor([4, 3, 4])), "backend": backend}
    sound = structmax.argmax(scores, **asked), structmax.max_marginals(scores, **asked)
    scores[1, 2, 4] = broken
    got = structmax.argmax(scores, **asked), structmax.max_marginals(scores, **asked)
    for a, b in zip(got, sound, strict=True):
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], rtol=0.0, atol=0.0)
        assert bool(a[1, :3].isnan().all())
    best = structmax.topk(scores, k=2, **asked)
    assert bool(best.values[:, 1].isnan().all())
    assert not bool(best.values[:, [0, 2]].isnan().any())


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_nothing_to_match(shape, backend):
    scores = torch.zeros(shape)
    assert structmax.argmax(scores, Matching(), backend=backend).shape == shape
    best = structmax.topk(scores, Matching(), 2, backend=backend)
    assert torch.equal(best.values, torch.tensor([0.0, -math.inf])[:, None].expand(2, shape[0]))
    assert structmax.max_marginals(scores, Matching(), backend=backend).shape == shape


def test_half_precision_goes_in_and_comes_out():
    scores = torch.randn(2, 6, 6).bfloat16()
    got = structmax.argmax(scores, Matching())
    assert got.dtype == torch.bfloat16
    assert torch.equal(got.double(), structmax.argmax(scores.double(), Matching()))


def test_a_pair_of_negative_score_is_never_worth_while():
    scores = torch.tensor([[-1.0, -2.0], [3.0, -1.0]])
    assert torch.equal(structmax.argmax(scores, Matching(partial=True)), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert structmax.topk(-scores.abs(), Matching(partial=True), 1).values == 0


@pytest.mark.parametrize("structure", [Matching(partial=True), SmallMatching(partial=True)])
def test_columns_and_back(structure):
    columns = torch.tensor([[2, -1, 0], [1, 3, -1]])
    parts = structure.encode(columns, 4)
    assert parts.shape == (2, 3, 4)
    assert parts.sum() == 4
    assert torch.equal(structure.decode(parts), columns)
    assert torch.equal(structure.decode(torch.zeros(2, 3, 0)), torch.full((2, 3), -1))


def test_the_permanent_is_refused_with_what_to_ask_instead():
    with pytest.raises(structmax.Refusal, match=r"Matching does not support .*permanent.*`sinkhorn`.*`SmallMatching`"):
        structmax.log_partition(torch.zeros(3, 3), Matching())
    with pytest.raises(structmax.Refusal, match="permanent"):
        structmax.sample(torch.zeros(3, 3), Matching())


@pytest.mark.parametrize("kind", [Matching, SmallMatching])
def test_messages(kind):
    with pytest.raises(ValueError, match=r"should have shape \(…, N, M\), but have \(3,\)"):
        structmax.argmax(torch.zeros(3), kind())
    with pytest.raises(TypeError, match=r"should be one tensor \(…, N, M\).* but are a tuple"):
        structmax.argmax((torch.zeros(3, 3), torch.zeros(3)), kind())
    with pytest.raises(ValueError, match=r"`rows` should be between 0 and 3, the number of rows"):
        structmax.argmax(torch.zeros(2, 3, 4), kind(torch.tensor([1, 4])))
    with pytest.raises(ValueError, match=r"`columns` should broadcast to the batch shape \(2,\)"):
        structmax.argmax(torch.zeros(2, 3, 4), kind(columns=torch.tensor([1, 2, 3])))
    with pytest.raises(TypeError, match=r"`partial` should be True .* but is None"):
        kind(partial=None)
    with pytest.raises(TypeError, match=r"`columns` should be an integer tensor"):
        kind().encode(torch.zeros(3), 4)


def test_the_best_is_the_same_on_every_thread_count():
    scores = torch.randn(40, 30, 30, generator=torch.Generator().manual_seed(8))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = structmax.argmax(scores, Matching())
        torch.set_num_threads(4)
        assert torch.equal(structmax.argmax(scores, Matching()), one)
    finally:
        torch.set_num_threads(threads)
