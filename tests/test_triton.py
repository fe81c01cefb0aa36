"""The Triton kernels of the simplex against the reference in float64: on a GPU, or under Triton's interpreter."""

import itertools
import math

import pytest
import torch

pytest.importorskip("triton")

from structmax.numerics import kernel_triton as numerics
from structmax.structures.simplex import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALPHAS = [1.0, 1.0001, 1.3, 1.5, 2.0, 0.6, 3.0, 10.0]
# packed many to a program, one to a program, streamed; none a power of two
SIZES = [1, 7, 65, 1000, 4200]
# The interpreter walks every bisection of the steep and the general case: short rows are enough for it there.
CASES = [(a, n) for a in ALPHAS for n in SIZES if DEVICE == "cuda" or n <= 65 or a in (1.0, 1.5, 2.0)]


def rows(n, seed=0):
    """Random rows, one far from 0, one with forbidden entries, one tied, one all forbidden, one one-hot."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, n, generator=generator, dtype=torch.float64)
    x[1] += 1000.0
    x[2] = x[2].masked_fill(torch.rand(n, generator=generator) < 0.5, -math.inf)
    x[3] = 0.5
    x[4] = -math.inf
    x[5] = -3.0
    x[5, n // 2] = 20.0
    x[6] *= 0.01
    return x


def both(function, *arguments, dtype=torch.float32, alpha, **fields):
    """The kernel's outputs in `dtype` and the reference's in float64, on the same rounded inputs."""
    narrow = [a.to(dtype) if a.is_floating_point() else a for a in arguments]
    wide = [a.double() if a.is_floating_point() else a for a in narrow]
    row_alpha = isinstance(alpha, torch.Tensor)
    given = alpha.to(DEVICE, torch.promote_types(dtype, torch.float32)) if row_alpha else alpha
    got = getattr(kernel_triton, function)(*(a.to(DEVICE) for a in narrow), given, **fields)
    want = getattr(reference, function)(*wide, alpha.double() if row_alpha else alpha, **fields)
    listed = [(g,) if isinstance(g, torch.Tensor) else g for g in (got, want)]
    return [(g.double().cpu(), w) for g, w in zip(*listed, strict=True)]


@pytest.mark.parametrize(("alpha", "n"), CASES)
def test_point_and_pullback(alpha, n):
    x = rows(n)
    for dtype, atol in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        if dtype == torch.float32 and alpha > 2:
            # p has infinite slope at 0: what rounding the scores costs is not the kernel's
            atol = 2e-5
        ((p, want),) = both("entmax", x, dtype=dtype, alpha=alpha)
        torch.testing.assert_close(p, want, atol=atol, rtol=0)
        feasible = (x > -math.inf).any(-1)
        torch.testing.assert_close(p.sum(-1), feasible.double(), atol=1e-6 if dtype == torch.float32 else 1e-12, rtol=0)
        v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ((got, want),) = both("entmax_pullback", want, v, dtype=dtype, alpha=alpha)
        torch.testing.assert_close(got, want, atol=10 * atol, rtol=10 * atol)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores(alpha, dtype):
    greatest = torch.finfo(dtype).max
    far = [[1e16, 0.0, 1e16], [1e30, -1e30, 1.0], [greatest, -greatest, greatest], [0.0, -1e9, -greatest]]
    ((p, want),) = both("entmax", torch.tensor(far, dtype=dtype), dtype=dtype, alpha=alpha)
    torch.testing.assert_close(p, want, atol=2e-6, rtol=0)
    torch.testing.assert_close(p.sum(-1), torch.ones(4, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("alpha", "n"), CASES)
def test_value_and_gradient(alpha, n):
    x = rows(n)
    target = torch.tensor([0, n - 1, 0, n // 2, 0, n // 2, -2])
    d_value = torch.tensor([1.0, -2.0, 0.5, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    (value, want), (state, _) = both("entmax_value", x, target, dtype=torch.float64, alpha=alpha, ignored=-2)
    torch.testing.assert_close(value, want, atol=1e-11, rtol=1e-12)
    x_there, d_there, target_there = x.to(DEVICE), d_value.to(DEVICE), target.to(DEVICE)
    got = kernel_triton.entmax_gradient(x_there, state.to(DEVICE), target_there, d_there, alpha, -2).cpu()
    _, reference_state = reference.entmax_value(x, target, alpha, -2)
    want = reference.entmax_gradient(x, reference_state, target, d_value, alpha, -2)
    torch.testing.assert_close(got, want, atol=1e-11, rtol=0)


def batches(alpha, n):
    """Scores and targets, -2 where a row is ignored, and a tolerance: all rows, some that count, none, and no rows."""
    x = rows(n)[[0, 1, 2, 3, 5, 6]]
    target = torch.tensor([0, n - 1, -2, n // 2, n // 2, -2])
    # an ignored row may hold anything
    x[2] = -math.inf
    yield x.float(), target, 2e-3 if alpha > 2 else 2e-4
    for kept in (slice(None), slice(0, 2), slice(2, 3), slice(0, 0)):
        yield x[kept], target[kept], 1e-11


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(("alpha", "n"), [(a, n) for a, n in CASES if n in (7, 4200)])
def test_total_and_its_gradient(alpha, n, mean):
    """Added up by hand from the rows of the reference."""
    d_total = torch.tensor(-1.7, dtype=torch.float64)
    for part, to, atol in batches(alpha, n):
        dtype = part.dtype
        wide = part.double()
        value, state = reference.entmax_value(wide, to, alpha, -2)
        count = float((to != -2).sum()) if mean else 1.0
        total, own_state, own_count = kernel_triton.entmax_total(part.to(DEVICE), to.to(DEVICE), alpha, -2, mean)
        assert total.dtype == own_count.dtype == dtype
        assert total.shape == own_count.shape == ()
        assert own_count == count
        want = value.sum() / count
        torch.testing.assert_close(total.double().cpu(), want, atol=atol, rtol=atol, equal_nan=True)
        again = reference.entmax_total(wide, to, alpha, -2, mean)
        torch.testing.assert_close(again[0], want, atol=0, rtol=1e-15, equal_nan=True)
        there = part.to(DEVICE), own_state, to.to(DEVICE), d_total.to(DEVICE, dtype), own_count
        got = kernel_triton.entmax_total_gradient(*there, alpha, -2).double().cpu()
        each = torch.full((len(to),), float(d_total) / (count or 1.0), dtype=torch.float64)
        want = reference.entmax_gradient(wide, state, to, each, alpha, -2)
        torch.testing.assert_close(got, want, atol=atol, rtol=0)
        one = torch.tensor(count, dtype=torch.float64)
        again = reference.entmax_total_gradient(wide, state, to, d_total, one, alpha, -2)
        torch.testing.assert_close(again, want, atol=1e-15, rtol=0)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(("alpha", "n"), [(a, n) for a, n in CASES if n in (7, 4200)])
def test_total_and_gradient_at_once(alpha, n, mean):
    for part, to, atol in batches(alpha, n):
        found = kernel_triton.entmax_total_and_gradient(part.to(DEVICE), to.to(DEVICE), alpha, -2, mean)
        wanted = reference.entmax_total_and_gradient(part.double(), to, alpha, -2, mean)
        for got, want in zip(found, wanted, strict=True):
            assert got.dtype == part.dtype
            torch.testing.assert_close(got.double().cpu(), want, atol=atol, rtol=atol, equal_nan=True)


@pytest.mark.parametrize("few", [kernel_triton.FEW, 1000])
def test_many_rows_are_added_up_without_loss(few, monkeypatch):
    """In several turns of the one program that does it, or by torch where they are more than that should do."""
    monkeypatch.setattr(kernel_triton, "FEW", few)
    x = torch.randn(9001, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    target = torch.arange(9001, device=DEVICE) % 2
    target[::3] = -100
    value, state = kernel_triton.entmax_value(x, target, 1.5, -100)
    for mean, count in ((True, 6000), (False, 1)):
        total, own_state, own_count = kernel_triton.entmax_total(x, target, 1.5, -100, mean)
        assert torch.equal(own_state, state)
        assert own_count == count
        # one rounding of float32
        tolerance = 1e-6 if few == 1000 else 6e-8
        want = torch.tensor(math.fsum(value.tolist()) / count)
        torch.testing.assert_close(total.cpu().double(), want.double(), atol=0, rtol=tolerance)


def test_a_total_keeps_what_is_not_finite():
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    target = torch.tensor([0, 1, 2], device=DEVICE)
    x[1, 1] = -math.inf
    total, state, count = kernel_triton.entmax_total(x, target, 1.5, -100, True)
    assert total == math.inf
    x[2, 3] = math.nan
    total, state, count = kernel_triton.entmax_total(x, target, 1.5, -100, True)
    assert total.isnan()
    gradient = kernel_triton.entmax_total_gradient(x, state, target, torch.ones((), device=DEVICE), count, 1.5, -100)
    total, at_once = kernel_triton.entmax_total_and_gradient(x, target, 1.5, -100, True)
    assert total.isnan()
    for found in (gradient, at_once):
        assert found[2].isnan().all()
        assert found[:2].isfinite().all()


@pytest.mark.parametrize("alpha", [1.5, 0.6, 1.0, 1.3, 2.0])
def test_sums_of_a_part_of_each_row(alpha):
    """At thresholds of the whole rows and below, of parts that may be forbidden altogether; longer than a tile."""
    x = rows(1100)[:4]
    _, state = reference.entmax_value(x, torch.zeros(4, dtype=torch.int64), alpha, -100)
    state[1, 1] -= 0.1
    part = x[:, 5:].contiguous()
    part[3] = -math.inf
    for dtype, atol in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        want = reference.entmax_sums(part.to(dtype).double(), state, alpha)
        got = kernel_triton.entmax_sums(part.to(DEVICE, dtype), state.to(DEVICE), alpha).cpu()
        torch.testing.assert_close(got, want, atol=atol, rtol=atol)
        target = torch.tensor([0, -(2**62), 7, 3])
        ones = torch.ones(4, dtype=dtype)
        here = part.to(dtype), state.to(dtype), target, ones
        got = kernel_triton.entmax_part_gradient(*(t.to(DEVICE) for t in here), alpha, -100).cpu()
        want = reference.entmax_part_gradient(part.to(dtype).double(), state, target, ones.double(), alpha, -100)
        torch.testing.assert_close(got.double(), want, atol=atol, rtol=0)


@pytest.mark.parametrize("alpha", [1.5, 1.3, 2.0])
def test_the_support_of_a_part_of_each_row(alpha):
    """Longer than what is read at a time; a part that is forbidden altogether, and a row that is NaN."""
    x = rows(3000)[:5]
    x[4, 7] = math.nan
    _, state = reference.entmax_value(x, torch.zeros(5, dtype=torch.int64), alpha, -100)
    state[1, 1] -= 0.5
    part = x[:, 5:].contiguous()
    part[3] = -math.inf
    for most, (dtype, atol) in itertools.product((1, 20, 3000), ((torch.float64, 1e-12), (torch.float32, 1e-6))):
        given = part.to(dtype), state.to(dtype)
        found, index, p = reference.entmax_support(*given, alpha, most)
        ours = kernel_triton.entmax_support(*(t.to(DEVICE) for t in given), alpha, most)
        assert torch.equal(ours[0].cpu().clamp_max(most + 1), found.clamp_max(most + 1))
        listed = torch.arange(most) < found.clamp_max(most).unsqueeze(1)
        assert torch.equal(ours[1].cpu()[listed], index[listed])
        torch.testing.assert_close(ours[2].cpu()[listed], p[listed], atol=atol, rtol=atol, equal_nan=True)


def test_one_alpha_for_each_row():
    x = rows(65)
    alpha = torch.tensor([1.0, 1.2, 1.5, 2.0, 1.5, 2.5, 10.0], dtype=torch.float64)
    ((p, want),) = both("entmax", x, dtype=torch.float64, alpha=alpha)
    torch.testing.assert_close(p, want, atol=1e-12, rtol=0)
    ((got, want),) = both("entmax_pullback", want, x.nan_to_num(neginf=0.0), dtype=torch.float64, alpha=alpha)
    torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    target = torch.tensor([0, 64, -100, 3, 0, 32, 5])
    (value, want), _ = both("entmax_value", x, target, dtype=torch.float64, alpha=alpha, ignored=-100)
    torch.testing.assert_close(value, want, atol=1e-11, rtol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0])
def test_a_nan_stays_in_its_row(alpha):
    x = rows(65).to(DEVICE)
    x[0, 3], x[6, 4] = math.nan, math.inf
    p = kernel_triton.entmax(x, alpha)
    assert p[0].isnan().all()
    assert p[6].isnan().all()
    assert p[1:6].isfinite().all()
    each = torch.full((7,), alpha, dtype=torch.float64, device=DEVICE)
    each[1] = 4.5 - each[1]
    p = kernel_triton.entmax(x, each)
    value, _ = kernel_triton.entmax_value(x, torch.zeros(7, dtype=torch.int64, device=DEVICE), each, -100)
    for broken in (0, 6):
        assert p[broken].isnan().all()
        assert value[broken].isnan()
    assert p[1:6].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    ((p, want),) = both("entmax", rows(1000)[:1], dtype=dtype, alpha=1.5)
    torch.testing.assert_close(p, want, atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize("target", [9, -1, -2])
def test_a_target_that_is_no_entry_costs_nan(target):
    x = rows(7).to(DEVICE)
    value, _ = kernel_triton.entmax_value(x, torch.full((7,), target, device=DEVICE), 1.5, -100)
    assert value.isnan().all()


def test_long_rows_have_an_alpha_each(monkeypatch):
    """Rows that are streamed: those with α > 2 too, whose bisection goes over several tiles."""
    monkeypatch.setattr(kernel_triton, "SHORT", 16)
    x = rows(520)[[0, 2, 4]]
    alpha = torch.tensor([1.3, 3.0, 2.5], dtype=torch.float64)
    ((p, want),) = both("entmax", x, alpha=alpha)
    torch.testing.assert_close(p, want, atol=2e-5, rtol=0)
    ((got, want),) = both("entmax_pullback", want, x.nan_to_num(neginf=0.0), alpha=alpha)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    target = torch.tensor([0, reference.NOTHING, reference.NOTHING])
    (value, want), _ = both("entmax_value", x, target, alpha=alpha, ignored=-100)
    torch.testing.assert_close(value, want, atol=1e-3, rtol=1e-5)


def test_a_launch_of_a_compiled_kernel_passes_addresses(monkeypatch):
    """The second launch of a kind goes to the launcher of the first; another dtype, alignment or constant does not."""
    compiled_for, launched = [], []

    class Compiled:
        function, packed_metadata = "function", "metadata"

        def run(self, *arguments):
            launched.append(arguments)

    class Kernel:
        fn = "kernel"

        def __getitem__(self, grid):
            return lambda *arguments, num_warps: compiled_for.append(arguments) or Compiled()

    monkeypatch.setattr(numerics, "_compiled", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: "stream", raising=False)
    x = torch.zeros(64)
    for first in (x, x[4:], x[1:], x.double(), x):
        numerics.launch(Kernel(), (2, 3), (first, None, 7, 0.5), ("constant",))
    assert len(compiled_for) == 3
    rest = (2, 3, 1, "stream", "function", "metadata", None, None, None)
    assert launched == [(*rest, address, None, 7, 0.5, "constant") for address in (x[4:].data_ptr(), x.data_ptr())]
    numerics.launch(Kernel(), (2, 3), (x, None, 7, 0.5), ("another",))
    numerics.launch(Kernel(), (2, 0), (x, None, 7, 0.5), ("yet another",))
    assert len(compiled_for) == 4
