"""Second-order trees beyond the laws: against projective trees, the kernel against the recursion, messages, padding."""

import itertools

import pytest
import torch

import structmax
from structmax import ProjectiveTree, SecondOrderTree
from structmax.recursion import kernel_numba as engine
from structmax.recursion.edges import by_recursion
from structmax.structures.second_order_tree import kernel_numba, reference
from structmax.testing import same

ROOTS = pytest.mark.parametrize("single_root", [True, False])
LENGTHS = torch.tensor([9, 5, 0, 1])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def pairs(arc: torch.Tensor, value: float = 0.0) -> torch.Tensor:
    return arc.new_full((*arc.shape, arc.shape[-1]), value)


@ROOTS
@pytest.mark.parametrize(("siblings", "grandparents"), itertools.product([False, True], repeat=2))
def test_without_scores_of_pairs_it_is_a_projective_tree(single_root, siblings, grandparents):
    arc = normal(4, 10, 10).requires_grad_()
    zeros = pairs(arc)
    scores = SecondOrderTree.Parts(arc, zeros if siblings else None, zeros if grandparents else None)
    ours, theirs = (kind(LENGTHS, single_root=single_root) for kind in (SecondOrderTree, ProjectiveTree))
    for question in (structmax.log_partition, structmax.entropy, structmax.log_count):
        same(question.__name__, question(scores, ours), question(arc, theirs))
    same("marginals", structmax.marginals(scores, ours).arc, structmax.marginals(arc, theirs))
    same("argmax", structmax.argmax(scores, ours).arc, structmax.argmax(arc, theirs))
    same("topk", structmax.topk(scores, ours, 4).values, structmax.topk(arc, theirs, 4).values)
    value = torch.autograd.grad(structmax.entropy(scores, ours).sum(), arc)[0]
    same("gradient", value, torch.autograd.grad(structmax.entropy(arc, theirs).sum(), arc)[0])


def test_every_pair_of_a_tree_is_counted_once():
    # 3 governs 1 and 2 on its left, 5 and 6 on its right; 4 hangs on 5
    heads = torch.tensor([3, 3, 0, 5, 3, 3])
    arc = torch.zeros(7, 7)
    parts = SecondOrderTree(single_root=True).encode(heads, (arc, pairs(arc), pairs(arc)))
    assert parts.sibling.nonzero().tolist() == [[3, 2, 1], [3, 5, 6]]
    assert parts.grandparent.nonzero().tolist() == [[0, 3, 1], [0, 3, 2], [0, 3, 5], [0, 3, 6], [3, 5, 4]]
    roots = SecondOrderTree(single_root=False).encode(torch.tensor([0, 0, 2]), (arc[:4, :4], pairs(arc[:4, :4])))
    assert roots.sibling.nonzero().tolist() == [[0, 1, 2]]
    assert roots.grandparent.shape == (0, 0, 0)


def test_siblings_may_decide_against_the_arcs():
    arc = torch.zeros(4, 4)
    arc[2, 3] = 1.0
    sibling, grandparent = pairs(arc), pairs(arc)
    structure = SecondOrderTree(single_root=True)
    sibling[1, 2, 3] = 2.0
    assert structure.decode(structmax.argmax((arc, sibling), structure)).tolist() == [0, 1, 1]
    grandparent[1, 2, 3] = 3.0
    assert structure.decode(structmax.argmax((arc, sibling, grandparent), structure)).tolist() == [0, 1, 2]
    assert structure.decode(structmax.argmax((arc, None, grandparent), structure)).tolist() == [0, 1, 2]


# Linear numbers in the first two, logarithms in the others; some scores are forbidden, some masked.
SCALES = pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e3])


def scores_of(scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    arc, sibling = scale * normal(4, 10, 10), scale * normal(4, 10, 10, 10, seed=1)
    arc[0, 2, 3] = sibling[1, 1, 2, 3] = -torch.inf
    arc[1, 3, 4] = sibling[0, 4, 5, 6] = -1e9
    return arc.to(dtype), sibling.to(dtype), arc.new_empty(4, 0, 0, 0, dtype=dtype)


def both(name: str, *tensors: torch.Tensor, single_root: bool, **extra: torch.Tensor):
    """What the kernel and the compiled code for any recursion answer, as tuples."""
    recursion = by_recursion("SecondOrderTree", reference, name, getattr(engine, name))
    answers = (
        ask(*tensors, lengths=LENGTHS, single_root=single_root, **extra)
        for ask in (getattr(kernel_numba, name), recursion)
    )
    return ((out,) if isinstance(out, torch.Tensor) else out for out in answers)


@ROOTS
@SCALES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_and_recursion_agree(single_root, scale, dtype):
    scores = scores_of(scale, dtype)
    tangent = scores_of(1.0, dtype)
    tangent = tuple(t.nan_to_num(neginf=1.0).clamp(min=-5.0).roll(1, -1) for t in tangent)
    noise = torch.rand(4, 3, 27, generator=torch.Generator().manual_seed(3), dtype=dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    asked = {
        "log_partition": (scores, {}),
        "log_partition_and_marginals": (scores, {}),
        "marginals_jvp": (scores + tangent, {}),
        "sample": (scores, {"noise": noise}),
    }
    for name, (tensors, extra) in asked.items():
        ours, theirs = both(name, *tensors, single_root=single_root, **extra)
        for got, want in zip(ours, theirs, strict=True):
            same(name, got, want, tolerance)
    ours, theirs = (
        [(s.nan_to_num(neginf=-1e30) * t).flatten(1).sum(1) for s, t in zip(scores, parts, strict=True)]
        for parts in both("argmax", *scores, single_root=single_root)
    )
    same("score of argmax", sum(ours), sum(theirs), tolerance)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["arc", "sibling"])
def test_an_instance_with_nan_leaves_the_others_alone(broken, place):
    arc, sibling, _ = scores_of(1.0, torch.float64)
    want = structmax.log_partition((arc, sibling), SecondOrderTree(LENGTHS, single_root=True))
    if place == "arc":
        arc[1, 2, 4] = broken
    else:
        sibling[1, 1, 2, 4] = broken
    structure = SecondOrderTree(LENGTHS, single_root=True)
    value, mu = structmax.log_partition((arc, sibling), structure), structmax.marginals((arc, sibling), structure)
    assert value.isnan().tolist() == [False, True, False, False]
    same("the others", value[~value.isnan()], want[~value.isnan()])
    assert mu.sibling.flatten(1).isnan().any(1).tolist() == [False, True, False, False]


def test_long_sentences_stay_exact_in_float32():
    arc, sibling = normal(2, 61, 61, dtype=torch.float32), normal(2, 61, 61, 61, seed=1, dtype=torch.float32)
    structure = SecondOrderTree(torch.tensor([60, 41]), single_root=False)
    wide, narrow = (
        SecondOrderTree.Parts(*(t.to(dtype) for t in (arc, sibling))) for dtype in (torch.float64, torch.float32)
    )
    want, got = structmax.log_partition(wide, structure), structmax.log_partition(narrow, structure)
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0.0)
    mu = structmax.marginals(wide, structure)
    heads = (torch.arange(61) > 0) & (torch.arange(61) <= structure.lengths[:, None])
    same("one head for each word", mu.arc.sum(1), heads.double(), 1e-12)
    # of its dependents on a side, a head has a pair for all but the first
    assert (mu.sibling.sum(2) <= mu.arc + 1e-12).all()


def test_what_was_not_given_is_empty():
    arc = normal(3, 4, 4)
    structure = SecondOrderTree(single_root=True)
    best = structmax.argmax((arc, None, pairs(arc)), structure)
    assert best.sibling.shape == (3, 0, 0, 0)
    assert best.grandparent.shape == (3, 4, 4, 4)
    again = structmax.log_prob((arc, None, pairs(arc)), structure, best)
    assert torch.equal(again, structmax.log_prob(SecondOrderTree.Parts(arc, None, pairs(arc)), structure, best))
    drawn = structmax.sample((arc, pairs(arc)), structure, (5,))
    assert drawn.sibling.shape == (5, 3, 4, 4, 4)
    assert drawn.grandparent.shape == (5, 3, 0, 0, 0)


def test_which_kernel_answers():
    arc = torch.zeros(2, 4, 4)
    empty = arc.new_empty(2, 0, 0, 0)
    assert kernel_numba.refuses("argmax", (arc, pairs(arc), empty), {}) is None
    assert "grandparents" in kernel_numba.refuses("argmax", (arc, pairs(arc), pairs(arc)), {})
    assert "no siblings" in kernel_numba.refuses("argmax", (arc, empty, empty), {})


@pytest.mark.parametrize(
    ("scores", "error", "said"),
    [
        (torch.zeros(3, 3), TypeError, "but are one tensor. For scores of arcs alone try ProjectiveTree"),
        ((torch.zeros(3, 3),) * 4, TypeError, "but are 4 tensors"),
        ((torch.zeros(3, 4), None), ValueError, r"`arc` should have shape .* but has \(3, 4\)"),
        ((torch.zeros(3, 3), torch.zeros(3, 3)), ValueError, r"`sibling` should have shape \(3, 3, 3\) to match"),
        ((torch.zeros(3, 3), None, torch.zeros(2, 3, 3)), ValueError, "`grandparent` should have shape .* Try None"),
        ((torch.zeros(3, 3), torch.zeros(3, 3, 3).double()), TypeError, r"`sibling` should have the dtype of `arc`"),
    ],
)
def test_messages_about_scores(scores, error, said):
    with pytest.raises(error, match=said):
        structmax.argmax(scores, SecondOrderTree(single_root=True))


def test_messages_about_settings_lengths_and_heads():
    with pytest.raises(TypeError, match="`single_root` should be True"):
        SecondOrderTree(single_root=1)
    with pytest.raises(ValueError, match=r"`lengths`.*number of words without the root"):
        structmax.argmax((torch.zeros(3, 3),), SecondOrderTree(torch.tensor(3), single_root=True))
    with pytest.raises(ValueError, match=r"`heads` should have shape \(…, 2\), one for each word, not \(3,\)"):
        SecondOrderTree(single_root=True).encode(torch.tensor([0, 1, 1]), (torch.zeros(3, 3),))


def test_dependents_first():
    arc, sibling = normal(2, 4, 4), normal(2, 4, 4, 4, seed=1)
    ours = SecondOrderTree.from_dependent_first(arc, sibling)
    assert ours.arc[1, 2, 3] == arc[1, 3, 2]
    assert ours.sibling[1, 1, 2, 3] == sibling[1, 3, 1, 2]
    assert SecondOrderTree.from_dependent_first(arc).sibling is None
