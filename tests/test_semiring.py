"""Values in semirings of the user's, against the members listed one by one."""

import copy
import gc
import logging
import math
import pickle
import re

import pytest
import torch
from cases import CASES
from hypergraph_cases import Case as Drawn

import structmax
from structmax import backends, rooms
from structmax.recursion import Semiring
from structmax.recursion.semiring import semiring_of
from structmax.testing.case import forbid, same

BACKENDS = ("reference", "numba")
RECURSIONS = [
    name
    for name, case in CASES.items()
    if backends.explain(case.structure.room, "semiring_value", "cpu")["reference"] is None
]


def plus(a, b):
    return a + b


def times(a, b):
    return a * b


def plus_pullback(a, b, c, d):
    return d, d


def times_pullback(a, b, c, d):
    return d * b, d * a


REAL = Semiring(plus, times, 0.0, 1.0, plus_pullback, times_pullback)


def log_plus_pullback(a, b, c, d):
    return torch.where(c == -math.inf, 0.0, d * torch.exp(a - c)), torch.where(
        c == -math.inf, 0.0, d * torch.exp(b - c)
    )


LOG = Semiring(torch.logaddexp, torch.add, -math.inf, 0.0, log_plus_pullback, plus_pullback)


def best_pullback(a, b, c, d):
    return torch.where(a >= b, d, 0.0), torch.where(a >= b, 0.0, d)


BEST = Semiring(torch.maximum, torch.add, -math.inf, 0.0, best_pullback, plus_pullback)


# Matrices [[a, b], [0, c]], whose product does not commute. With c = a = p and b = p v they are an expectation: the
# weight of all members, and the sum of v over their parts, weighted.
def matrix_plus(x, y):
    return x[0] + y[0], x[1] + y[1], x[2] + y[2]


def matrix_times(x, y):
    return x[0] * y[0], x[0] * y[1] + x[1] * y[2], x[2] * y[2]


def matrix_times_pullback(x, y, z, d):
    return (d[0] * y[0] + d[1] * y[1], d[1] * y[2], d[2] * y[2]), (d[0] * x[0], d[1] * x[0], d[1] * x[1] + d[2] * x[2])


MATRIX = Semiring(matrix_plus, matrix_times, (0.0, 0.0, 0.0), (1.0, 0.0, 1.0), plus_pullback, matrix_times_pullback)


def weights_of_members(case, tensors):
    """Π w^y of every member: (batch, M)."""
    y = case.members(tensors)
    return torch.where((y < 0).any(-1), 0.0, (case.vector(tensors).unsqueeze(-2) ** y.clamp_min(0)).prod(-1))


def variants(case):
    scores = case.scores()
    return scores, forbid(scores, 1), tuple(torch.full_like(t, -math.inf) for t in scores)


def gradients(values, tensors):
    """Of a weighted sum of the values, as vectors of parts."""
    total = sum(((k + 1.0) * value).sum() for k, value in enumerate(values))
    return torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)


def of_feasible(value):
    """Without the instances that have no member, whose value has no gradient worth comparing."""
    return value[value.isfinite()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RECURSIONS)
def test_sums_of_products(name, backend):
    case = CASES[name]
    for scores in variants(case):
        weights = tuple(s.exp().requires_grad_() for s in scores)
        value = structmax.semiring_value(case.parts(weights), case.structure, REAL, backend=backend)
        wanted = weights_of_members(case, weights).sum(-1)
        same("value", value, wanted)
        same("log", value.log(), structmax.log_partition(case.parts(scores), case.structure))
        for found, brute in zip(gradients([value], weights), gradients([wanted], weights), strict=True):
            same("gradient", found, brute)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RECURSIONS)
def test_logarithms(name, backend):
    case = CASES[name]
    for scores in variants(case):
        tensors = tuple(s.clone().requires_grad_() for s in scores)
        value = structmax.semiring_value(case.parts(tensors), case.structure, LOG, backend=backend)
        same("value", value, case.scores_of_members(scores).logsumexp(-1))
        mu = case.structure.tensors(structmax.marginals(case.parts(scores), case.structure))
        for found, wanted in zip(gradients([of_feasible(value)], tensors), mu, strict=True):
            same("gradient", found, wanted)


@pytest.mark.parametrize("name", RECURSIONS)
def test_the_best(name):
    case = CASES[name]
    for scores in variants(case):
        tensors = tuple(s.clone().requires_grad_() for s in scores)
        value = structmax.semiring_value(case.parts(tensors), case.structure, BEST, backend="reference")
        same("value", value, case.scores_of_members(scores).amax(-1))
        best = case.structure.tensors(structmax.argmax(case.parts(scores), case.structure))
        for found, wanted in zip(gradients([of_feasible(value)], tensors), best, strict=True):
            same("gradient", found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RECURSIONS)
def test_expectations(name, backend):
    case = CASES[name]
    for seed, scores in enumerate(variants(case)):
        weights, amounts = (
            tuple(t.requires_grad_() for t in ts) for ts in ([s.exp() for s in scores], case.scores(seed + 5))
        )
        products = tuple(w * a for w, a in zip(weights, amounts, strict=True))
        elements = tuple(map(case.parts, (weights, products, weights)))
        values = structmax.semiring_value(elements, case.structure, MATRIX, backend=backend)
        each = weights_of_members(case, weights)
        sums = (case.members(scores).clamp_min(0) * case.vector(amounts).unsqueeze(-2)).sum(-1)
        wanted = each.sum(-1), (each * sums).sum(-1), each.sum(-1)
        for found, brute in zip(values, wanted, strict=True):
            same("value", found, brute)
        if all(bool((w > 0).all()) for w in weights):
            tensors = (*weights, *amounts)
            for found, brute in zip(gradients(values, tensors), gradients(wanted, tensors), strict=True):
                same("gradient", found, brute, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [0, 2, 9, 22])
def test_products_are_in_the_order_of_parts_and_then_of_tails(seed, backend):
    case = Drawn(seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 3, case.size, generator=generator, dtype=torch.float64)
    matrix = torch.zeros(3, case.size, 2, 2, dtype=torch.float64)
    matrix[:, :, 0, 0], matrix[:, :, 0, 1], matrix[:, :, 1, 1] = x
    first, tails, parts = (t.tolist() for t in case.edges)
    engine = rooms.function(structmax.Hypergraph.room, "semiring_value", backend)
    found = engine(*x, semiring=MATRIX.number, width=3, **case.graph)[0]
    for b, goal in enumerate(case.goal.tolist()):
        value = []
        for v in range(len(first) - 1):
            total = torch.zeros(2, 2, dtype=torch.float64)
            for e in range(first[v], first[v + 1]):
                product = torch.eye(2, dtype=torch.float64)
                for factor in [matrix[b, p] for p in parts[e] if p >= 0] + [value[t] for t in tails[e] if t >= 0]:
                    product = product @ factor
                total = total + product
            value.append(total)
        same("value", found[b], torch.stack([value[goal][0, 0], value[goal][0, 1], value[goal][1, 1]]), 1e-12)


# ---------------------------------------------------------------- derivatives and forms

PATHS = structmax.MonotoneAlignment(torch.tensor([3, 2]))


def weights(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(2, 3, 3, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    assert torch.autograd.gradcheck(lambda w: structmax.semiring_value(w, PATHS, REAL, backend=backend), weights())
    three = tuple(weights().detach().roll(k, 1).requires_grad_() for k in range(3))
    assert torch.autograd.gradcheck(lambda *w: structmax.semiring_value(w, PATHS, MATRIX, backend=backend), three)


def test_pullbacks_are_autograds_where_none_are_given():
    bare, w = Semiring(plus, times, 0.0, 1.0), weights()
    found = torch.autograd.grad(structmax.semiring_value(w, PATHS, bare).sum(), w)[0]
    wanted = torch.autograd.grad(structmax.semiring_value(w, PATHS, REAL).sum(), w)[0]
    same("gradient", found, wanted, 1e-12)
    says = re.escape("with backend='numba': the semiring has no pullbacks, and autograd's are those of the reference.")
    with pytest.raises(structmax.Refusal, match=says):
        structmax.semiring_value(w, PATHS, bare, backend="numba").sum().backward()


def test_second_derivatives_and_forward_mode_are_refused():
    w = weights()
    (gradient,) = torch.autograd.grad(structmax.semiring_value(w, PATHS, REAL).sum(), w, create_graph=True)
    with pytest.raises(NotImplementedError, match="`semiring_value` has first derivatives only, in reverse mode"):
        gradient.sum().backward()

    def value(w):
        return structmax.semiring_value(w, PATHS, REAL).sum()

    for function in (value, torch.func.grad(value)):
        with pytest.raises(NotImplementedError, match="`semiring_value` has first derivatives only, in reverse mode"):
            torch.func.jvp(function, (w.detach(),), (w.detach(),))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms(backend):
    w, paths = weights().detach(), structmax.MonotoneAlignment()

    def value(w):
        return structmax.semiring_value(w, paths, REAL, backend=backend)

    wanted = torch.stack([value(each) for each in w])
    same("vmap", torch.vmap(value)(w), wanted, 1e-14)
    slopes = torch.stack([torch.func.grad(value)(each) for each in w])
    same("vmap of grad", torch.vmap(torch.func.grad(value))(w), slopes, 1e-14)


@pytest.mark.thorough
def test_compile():
    w, paths = weights(), structmax.MonotoneAlignment()
    compiled = torch.compile(lambda w: structmax.semiring_value(w, paths, REAL).square().sum(), fullgraph=True)
    compiled(w).backward()
    wanted = torch.autograd.grad(structmax.semiring_value(w, paths, REAL).square().sum(), w)[0]
    same("gradient", w.grad, wanted, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forms(backend):
    def value(w, structure=PATHS):
        return structmax.semiring_value(w, structure, REAL, backend=backend)

    w, wanted = weights(), value(weights())
    with torch.no_grad():
        assert torch.equal(value(w), wanted)
    with torch.inference_mode():
        assert torch.equal(value(w), wanted)
    assert value(torch.rand(0, 3, 3), structmax.MonotoneAlignment()).shape == (0,)
    assert torch.equal(value(w.mT.contiguous().mT), wanted)
    # padding may hold anything, and gets no gradient
    padded = w.detach().clone()
    padded[1, 2] = math.nan
    padded.requires_grad_()
    assert torch.equal(value(padded), wanted)
    (gradient,) = torch.autograd.grad(value(padded).sum(), padded)
    assert not gradient[1, 2].any()
    assert not gradient.isnan().any()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        low = weights(dtype)
        found = value(low)
        assert found.dtype == dtype
        same("dtype", found.double(), value(low.detach().double()), 8 * torch.finfo(dtype).eps)
        assert torch.autograd.grad(found.sum(), low)[0].dtype == dtype


def test_two_batch_dimensions_that_broadcast():
    w, chain = torch.rand(2, 1, 3, 2), structmax.LinearChain()
    one = chain.Parts(w, torch.rand(2, 2))
    more = chain.Parts(torch.rand(1, 3, 3, 2), torch.rand(2, 2))
    values = structmax.semiring_value((one, more, one), chain, MATRIX)
    assert [value.shape for value in values] == [(2, 3)] * 3
    same("value", values[0], structmax.semiring_value(one, chain, REAL).expand(2, 3), 1e-6)


# ---------------------------------------------------------------- what is refused


def test_what_numba_does_not_compile_runs_on_the_reference_and_says_so(caplog):
    odd = Semiring(lambda a, b: torch.hypot(a, b), times, 0.0, 1.0, plus_pullback, times_pullback)
    w = weights()
    with caplog.at_level(logging.INFO, "structmax"):
        value = structmax.semiring_value(w, PATHS, odd)
    assert "Numba does not compile `<lambda>`" in caplog.text
    assert torch.equal(value, structmax.semiring_value(w, PATHS, odd, backend="reference"))
    with pytest.raises(structmax.Refusal, match=r"backend='numba': Numba does not compile `<lambda>`.*hypot"):
        structmax.semiring_value(w, PATHS, odd, backend="numba")


@pytest.mark.parametrize(
    ("semiring", "says"),
    [
        (Semiring(lambda a, b: (a, b), times, 0.0, 1.0), "`<lambda>` should return a number, but compiled it returns"),
        (
            Semiring(lambda a, b: (a[0], 0), matrix_times, (0.0, 0.0), (1.0, 0.0)),
            "`<lambda>` should return a tuple of 2 floats, but compiled it returns Tuple(float64, Literal[int](0))",
        ),
    ],
)
def test_what_returns_no_elements_is_refused(semiring, says):
    scores = (weights(), weights()) if semiring.is_tuple else weights()
    with pytest.raises(structmax.Refusal, match=re.escape(says)):
        structmax.semiring_value(scores, PATHS, semiring, backend="numba")


def test_pullbacks_that_return_no_pair_are_refused():
    wrong = Semiring(plus, times, 0.0, 1.0, lambda a, b, c, d: d, times_pullback)
    says = "`<lambda>` should return two of them, each a number, but compiled it returns float64"
    with pytest.raises(structmax.Refusal, match=says):
        structmax.semiring_value(weights(), PATHS, wrong, backend="numba").sum().backward()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Semiring(1, times, 0.0, 1.0), TypeError, "`plus` should be a function, but is "),
        (lambda: Semiring(plus, None, 0.0, 1.0), TypeError, "`times` should be a function, but is "),
        (lambda: Semiring(plus, times, "0", 1.0), TypeError, "`zero` should be a number or a tuple of numbers"),
        (lambda: Semiring(plus, times, 0.0, ()), TypeError, "`one` should be a number or a tuple of numbers"),
        (lambda: Semiring(plus, times, 0.0, (1.0,)), ValueError, "`zero` and `one` should be of one size, but are 0.0"),
        (
            lambda: Semiring(plus, times, 0.0, 1.0, plus_pullback),
            ValueError,
            "`plus_pullback` and `times_pullback` should be given together, but one is missing.",
        ),
        (
            lambda: structmax.semiring_value(weights(), PATHS, plus),
            TypeError,
            "`semiring` should be a structmax.recursion.Semiring",
        ),
        (
            lambda: structmax.semiring_value(weights(), PATHS, MATRIX),
            ValueError,
            "`scores` should be a tuple of 3, scores for each number of an element",
        ),
        (
            lambda: structmax.semiring_value((weights(), weights()), PATHS, MATRIX),
            ValueError,
            "zero=(0.0, 0.0, 0.0), one=(1.0, 0.0, 1.0)), but has 2.",
        ),
        (
            lambda: structmax.semiring_value(
                (torch.ones(3), torch.ones(4), torch.ones(3)), structmax.Simplex(), MATRIX
            ),
            ValueError,
            "`scores` should have one shape for all numbers of an element, but have [[(1, 3)], [(1, 4)], [(1, 3)]].",
        ),
        (
            lambda: structmax.semiring_value(
                (torch.ones(3, 2), torch.ones(2, 2), torch.ones(2)), structmax.LinearChain(), REAL
            ),
            ValueError,
            "`scores` of LinearChain should be its 2 part tensors, but are 3: a semiring knows neither the sums",
        ),
        (
            lambda: structmax.semiring_value(
                (torch.ones(3, 2), torch.ones(1, 3, 3), torch.ones(1)), structmax.PCFG(), REAL
            ),
            ValueError,
            "`scores` of PCFG should be its 4 part tensors, but are 3",
        ),
        (
            lambda: structmax.semiring_value(torch.ones(3, 3), structmax.SpanningTree(single_root=True), REAL),
            structmax.Refusal,
            "SpanningTree does not support `semiring_value`: spanning trees are counted by a determinant",
        ),
        (
            lambda: structmax.semiring_value(torch.ones(3, 3), structmax.Matching(), REAL),
            structmax.Refusal,
            "Matching does not support `semiring_value`: the partition function of matchings is a permanent",
        ),
    ],
)
def test_errors(make, error, says):
    with pytest.raises(error, match=re.escape(says)):
        make()


# ---------------------------------------------------------------- the object


def test_a_copy_is_equal_and_has_a_number_of_its_own():
    for other in (copy.copy(REAL), pickle.loads(pickle.dumps(REAL))):
        assert other == REAL
        assert other.number != REAL.number
        assert semiring_of(other.number) is other
    assert repr(REAL) == "Semiring(plus, times, zero=0.0, one=1.0)"


def test_a_semiring_that_is_gone_is_missed():
    number = Semiring(plus, times, 0.0, 1.0).number
    gc.collect()
    with pytest.raises(RuntimeError, match=f"the semiring of number {number}, which this call was made for, should"):
        semiring_of(number)


def test_part_tensors_that_add_nothing_may_be_left_out():
    arc, sibling = torch.ones(4, 4), torch.ones(4, 4, 4)
    counting = Semiring(torch.add, torch.mul, zero=0.0, one=1.0)
    structure = structmax.SecondOrderTree(single_root=True)
    assert structmax.semiring_value((arc, sibling), structure, counting) == 7
    assert structmax.semiring_value((arc[None][:0], sibling[None][:0]), structure, counting).shape == (0,)
