"""The Triton engine for recursions against the reference in float64: on a GPU, or under Triton's interpreter."""

import gc
import math
import runpy
from pathlib import Path

import pytest
import torch
from hypergraph_cases import Case

pytest.importorskip("triton")

import structmax
from structmax.recursion import Hyperedges, kernel_triton, reference, reference_walks
from structmax.recursion.kernel_triton import tables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NOISE = torch.rand(3, 5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TANGENT = torch.randn(3, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
# the question, what it takes after the scores, and its other arguments
QUESTIONS = [
    ("log_partition", (), {}),
    ("log_partition_and_marginals", (), {}),
    ("marginals_jvp", ("tangent",), {}),
    ("argmax", (), {}),
    ("max_marginals", (), {}),
    ("topk", (), {"k": 3}),
    ("sample", ("noise",), {}),
    ("given_log_partition", ("required",), {}),
    ("given_log_partition_and_marginals", ("required",), {}),
    ("given_marginals_jvp", ("required", "tangent"), {}),
    *(
        (name, tensors, {"alpha": alpha, "gamma": gamma} | ({"k": 3} if name == "smoothed_topk" else {}))
        for name, tensors in (
            ("smoothed_and_marginals", ()),
            ("smoothed_marginals_jvp", ("tangent",)),
            ("smoothed_sample", ("noise",)),
            ("smoothed_topk", ()),
            ("smoothed_log_prob", ("y",)),
            ("smoothed_log_prob_pullback", ("y", "d_value")),
        )
        for alpha, gamma in ((1.0, 0.4), (1.3, 2.0), (2.0, 0.7))
    ),
]
NAMES = ["-".join(map(str, (name, *numbers.values()))) for name, _, numbers in QUESTIONS]
each_question = pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)


def ask(module, case, question, device="cpu", x=None):
    name, tensors, numbers = question
    x = case.x if x is None else x
    # every other part of a best member, if no member has it twice; a tangent that holds anything where one is forbidden
    once = torch.stack([case.table(b)[0].amax(0) for b in range(3)]) == 1
    required = ((reference.argmax(case.x, **case.graph) > 0) & once).to(x.dtype)
    required[:, ::2] = 0
    tangent = TANGENT[:, : case.size].masked_fill(case.x == -math.inf, math.nan)
    given = {
        "noise": NOISE,
        "tangent": tangent if module is kernel_triton else tangent.nan_to_num(),
        "required": required,
    }
    if "y" in tensors:
        # walks, of which the last instance's is none
        given["y"] = reference_walks.smoothed_sample(case.x, noise=NOISE[:, :1], **numbers, **case.graph)[:, 0]
        given["y"][2, 0] += 1
        given["d_value"] = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    graph = case.graph | {"goal": case.goal.to(device)}
    out = getattr(module, name)(x.to(device), **{t: given[t].to(device, x.dtype) for t in tensors}, **numbers, **graph)
    return [t.cpu() for t in ((out,) if isinstance(out, torch.Tensor) else out)]


def expected(case, question):
    return ask(reference_walks if "sample" in question[0] else reference, case, question)


@pytest.fixture
def small_tiles(monkeypatch):
    """So that tiny graphs have several launches, tiles of rows, of edges and of instances, and programs of walks."""
    for name, value in {"TILE": 4, "WIDE": 2, "NARROW": 2, "PROGRAMS": 2, "THIN": 1}.items():
        monkeypatch.setattr(tables, name, value)
    for name, value in {"LANES": 4, "WALKS": 2, "CELLS": 2}.items():
        monkeypatch.setattr(kernel_triton, name, value)


def agree(case, question, tolerance=1e-10):
    for found, wanted in zip(ask(kernel_triton, case, question, DEVICE), expected(case, question), strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@each_question
def test_agrees_with_torch(question):
    agree(Case(10), question)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 4, 14, 22])
@each_question
def test_agrees_with_torch_in_small_tiles(question, seed, small_tiles):
    agree(Case(seed), question)


@pytest.mark.parametrize("question", [QUESTIONS[2], QUESTIONS[5], QUESTIONS[6]], ids=lambda q: q[0])
def test_tiles_have_borders(question, small_tiles):
    agree(Case(4), question)


@pytest.mark.parametrize("broken", [math.nan, pytest.param(math.inf, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("question", [QUESTIONS[i] for i in (1, 3, 4, 5, 6, 8, 12, 19, 21)], ids=lambda q: q[0])
def test_broken_scores_stay_in_their_instance(question, broken):
    case = Case(18)
    clean = ask(kernel_triton, case, question, DEVICE)
    # the last node is no tail: its parts are padding for the instance with an earlier goal
    own = case.edges.parts[case.edges.first[-2] :, 1].long()
    x = case.x.clone()
    x[1, own], x[0, own[0]] = broken, broken
    for found, wanted in zip(ask(kernel_triton, case, question, DEVICE, x), clean, strict=True):
        assert bool(found[0].isnan().all())
        assert torch.equal(found[1:], wanted[1:])


@pytest.mark.parametrize("question", QUESTIONS[1:4], ids=lambda q: q[0])
def test_single_precision(question):
    case = Case(4)
    wanted = expected(case, question)
    found = ask(kernel_triton, case, question, DEVICE, case.x.float())
    for f, w in zip(found, wanted, strict=True):
        assert f.dtype == torch.float32
        torch.testing.assert_close(f.double(), w, rtol=1e-5, atol=1e-5)


def test_values_far_from_zero_keep_their_digits():
    """A path takes one of two edges at each step: in single precision a sum of scores of 1000 has no more of them."""
    head, parts = torch.arange(1, 6).repeat_interleave(2), torch.arange(10)
    head, tails, parts = (
        torch.cat(pair)
        for pair in ((torch.tensor([0]), head), (torch.tensor([-1]), head - 1), (torch.tensor([-1]), parts))
    )
    edges = Hyperedges.of(head, tails, parts, 6)
    x = 1000 + torch.randn(2, 10, generator=torch.Generator().manual_seed(0))
    graph = {"goal": torch.tensor([5, 4], device=DEVICE), **edges._asdict()}
    _, marginals = kernel_triton.log_partition_and_marginals(x.to(DEVICE), **graph)
    wanted = x.double().reshape(2, 5, 2).softmax(-1)
    wanted[1, 4] = 0
    torch.testing.assert_close(marginals.cpu().double(), wanted.flatten(1), rtol=0, atol=1e-6)


def test_masks_that_are_numbers():
    """Sums of −1e30 have no digits left: probabilities are still those of a distribution."""
    edges = Hyperedges.of(torch.tensor([0, 0, 1]), torch.tensor([-1, -1, 0]), torch.tensor([0, 1, 2]), 2)
    x = torch.tensor([[0.5, 0.5, -1e30], [torch.finfo(torch.float32).min] * 2 + [0.0], [-1e30, 0.0, -math.inf]])
    graph = {"goal": torch.ones(3, dtype=torch.int64, device=DEVICE), **edges._asdict()}
    value, marginals = kernel_triton.log_partition_and_marginals(x.to(DEVICE), **graph)
    torch.testing.assert_close(value.cpu(), torch.tensor([-1e30, torch.finfo(torch.float32).min, -math.inf]))
    torch.testing.assert_close(marginals.cpu(), torch.tensor([[0.5, 0.5, 1.0], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]))


def test_no_instances():
    case = Case(4)
    case.x, case.goal = case.x[:0], case.goal[:0]
    graph = case.graph | {"goal": case.goal.to(DEVICE)}
    for name, fields in (("log_partition", {}), ("argmax", {}), ("topk", {"k": 2}), ("sample", {"noise": NOISE[:0]})):
        out = getattr(kernel_triton, name)(case.x.to(DEVICE), **fields, **graph)
        assert all(len(t) == 0 for t in ((out,) if isinstance(out, torch.Tensor) else out))


def test_too_little_noise_is_refused():
    case = Case(18)
    with pytest.raises(ValueError, match="a number for each decision"):
        kernel_triton.sample(case.x.to(DEVICE), torch.zeros(3, 1, 1, dtype=torch.float64, device=DEVICE), **case.graph)


def test_foldings_of_ones_own():
    """The recursion of examples/rna.py, with gradients."""
    example = runpy.run_path(str(Path(__file__).resolve().parent.parent / "examples" / "rna.py"))
    rows = torch.tensor(list(example["foldings"](5, 1)))
    structure = structmax.Hypergraph(rows[:, 0], rows[:, 2:], rows[:, 1])
    x = torch.randn(2, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    answers = []
    for backend, device in (("triton", DEVICE), ("reference", "cpu")):
        leaf = x.to(device).requires_grad_()
        entropy = structmax.entropy(leaf, structure, backend=backend)
        answers.append((entropy.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(entropy.sum(), leaf))))
    for found, wanted in zip(*answers, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            lambda x, s: structmax.smoothed(x, s, structmax.omega.LocalTsallis(2.5), backend="triton"),
            "`alpha` should be",
        ),
        (lambda x, s: structmax.topk(x, s, 33, backend="triton"), "`k` should be at most 32 there, but is 33."),
    ],
)
def test_what_it_does_not_take_is_refused(ask, says):
    lattice = structmax.Lattice(torch.tensor([[0, 1], [0, 1]]), source=0, sink=1)
    with pytest.raises(structmax.Refusal, match=f"with backend=.triton.: {says}"):
        ask(torch.zeros(1, 2, device=DEVICE), lattice)


def test_lists_longer_than_a_tile(small_tiles):
    """What one tile of candidates has found stands among those of the next; nodes without edges have no list."""
    head = torch.tensor([0, 0, 0, *[2] * 30])
    tails = torch.tensor([-1, -1, -1, *[0] * 29, 1])
    edges = Hyperedges.of(head, tails, torch.arange(33), 3)
    x = torch.randn(3, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    graph = {"goal": torch.tensor([2, 1, 2]), **edges._asdict()}
    (only,) = tables.tables_of(edges, 33, torch.device(DEVICE)).up.launches(3, 5, 5)[1:]
    assert not only.whole
    values, parts = kernel_triton.topk(x.to(DEVICE), k=5, **graph | {"goal": graph["goal"].to(DEVICE)})
    torch.testing.assert_close(values.cpu(), reference.topk(x, k=5, **graph)[0])
    scored = (parts.cpu() * x.unsqueeze(1)).sum(-1)
    torch.testing.assert_close(scored[::2], values.cpu()[::2])
    assert len(parts[0].unique(dim=0)) == 5
    assert not bool(parts[1].any())


# ---------------------------------------------------------------- launches and tables


def test_a_chain_is_one_launch():
    (only,) = tables.launches([(8, 8)] * 1000, 64)
    assert (only.start, only.stop, only.programs) == (0, 1000, 1)
    assert only.groups * only.instances >= 64


def test_a_level_with_work_for_the_machine_is_a_launch_of_its_own():
    found = tables.launches([(4, 2), (4, 2), (5000, 100), (4, 2)], 64)
    assert [(it.start, it.stop) for it in found] == [(0, 2), (2, 3), (3, 4)]
    assert found[1].programs * found[1].rows >= 5000
    assert all(it.rows * it.edges * it.instances <= tables.TILE for it in found)


def test_levels_of_other_shapes_are_other_launches():
    """A tile as high as the one and as wide as the other would make each of many tiles."""
    found = tables.launches([(5000, 1)] * 3 + [(30, 100)] * 20, 32)
    assert [(it.start, it.stop) for it in found] == [(0, 3), (3, 23)]


def test_lists_of_the_best_have_tiles_of_their_own():
    """A tile has room for the best of the ones before, and one program no more instances than it must."""
    found = tables.launches([(20, 60)] * 9, 8, 3)
    assert [(it.start, it.stop, it.groups, it.whole) for it in found] == [(0, 9, 8, True)]
    (wide,) = tables.launches([(1, 10**6)], 8, 32)
    assert wide.edges >= 64
    assert not wide.whole


def test_tables_live_as_long_as_the_edges():
    case = Case(4)
    device = torch.device("cpu")
    assert tables.tables_of(case.edges, case.size, device) is tables.tables_of(case.edges, case.size, device)
    before = len(tables._known)
    del case
    gc.collect()
    assert len(tables._known) == before - 1


def test_levels_and_choices_are_those_of_the_graph():
    case = Case(1)
    found = tables.tables_of(case.edges, case.size, torch.device("cpu"))
    first, tails = case.edges.first.tolist(), case.edges.tails.tolist()
    bounds = found.up.levels.tolist()
    level = {p: i for i, (start, stop) in enumerate(bounds) for p in range(start, stop)}
    place = found.place.tolist()
    for v in range(len(first) - 1):
        below = [level[place[t]] for e in range(first[v], first[v + 1]) for t in tails[e] if t >= 0]
        assert level[place[v]] == max(below, default=-1) + 1
    assert found.decisions.tolist() == structmax.recursion.edges.most_decisions(case.edges)
