"""The page's answers are the library's, and requests that are not acceptable get a sentence."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import structmax
from structmax import estimators, omega
from structmax.explore.answers import SAMPLES, answer
from structmax.explore.gradients import gradients
from structmax.explore.kinds import KINDS
from structmax.explore.request import Asked, Unacceptable, checked
from structmax.explore.sweep import sweep
from structmax.explore.warming import example

SIZES = {
    "dependencies": (("a", "b", "c"), ()),
    "crossing": (("a", "b", "c"), ()),
    "brackets": (("a", "b", "c", "d"), ()),
    "chain": (("a", "b", "c"), ("x", "y")),
    "alignment": (("a", "b", "c"), ("x", "y", "z", "w")),
    "matching": (("a", "b", "c"), ("x", "y")),
    "subset": (("a", "b", "c", "d"), ()),
    "simplex": (("a", "b", "c"), ()),
}
STRUCTURES = {
    "dependencies": structmax.ProjectiveTree(single_root=True),
    "crossing": structmax.SpanningTree(single_root=True),
    "brackets": structmax.BinaryTree(),
    "chain": structmax.LinearChain(),
    "alignment": structmax.MonotoneAlignment(),
    "matching": structmax.SmallMatching(),
    "subset": structmax.Subset(2),
    "simplex": structmax.Simplex(),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def request(kind: str, **more: Any) -> dict[str, Any]:
    rows, columns = SIZES[kind]
    return {"kind": kind, "rows": list(rows), "columns": list(columns), "k": 2, "seed": 3, **more}


def aimed(kind: str, **more: Any) -> Asked:
    """A request that wants the whole of the target that the page begins with, as the page then does."""
    cells = answer(checked(request(kind, **more)))["target"]["cells"]
    return checked(request(kind, **more, wanted=[list(cell) for cell in cells]))


def library(kind: str, grids: list[list[list[float | None]]]) -> Any:
    """The library's scores of the page's grids, cell by cell."""
    first, size = grids[0], len(SIZES[kind][0])
    if kind in ("dependencies", "crossing"):
        full = torch.zeros(size + 1, size + 1, dtype=torch.float64)
        for head, modifier in itertools.product(range(size + 1), range(size)):
            assert (first[head][modifier] is None) == (head == modifier + 1)
            full[head, modifier + 1] = first[head][modifier] or 0.0
        return full
    if kind == "brackets":
        full = torch.zeros(size, size, dtype=torch.float64)
        for i, j in itertools.product(range(size), repeat=2):
            assert (first[i][j] is None) == (i >= j or (i, j) == (0, size - 1))
            full[i, j] = first[i][j] or 0.0
        return full
    tensors = [torch.tensor(grid, dtype=torch.float64) for grid in grids]
    if kind in ("subset", "simplex"):
        return tensors[0].squeeze(-1)
    return structmax.LinearChain.Parts(*tensors) if kind == "chain" else tensors[0]


def tensors(kind: str, scores: Any) -> tuple[Tensor, ...]:
    return STRUCTURES[kind].tensors(scores)


def assert_shown(kind: str, grids: list[list[list[float | None]]], parts: Any) -> None:
    """The grids have what the library has, exactly: also its zeros."""
    shown = tensors(kind, library(kind, grids))
    if kind == "brackets":
        # what every tree has is not on the page
        found = parts.clone()
        found.fill_diagonal_(0.0)
        found[0, -1] = 0.0
        parts = found
    for one, other in zip(shown, tensors(kind, parts), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@every_kind
def test_answers_are_the_librarys(kind: str) -> None:
    found = answer(checked(request(kind, temperature=0.7, alpha=1.3)))
    structure, scores = STRUCTURES[kind], library(kind, [field["scores"] for field in found["fields"]])
    cooled = structure.parts(tuple(t / 0.7 for t in tensors(kind, scores)))
    points = {point["name"]: point for point in found["points"]}
    sparse = structmax.sparsemap(scores, structure, temperature=0.7)
    assert_shown(kind, points["argmax"]["grids"], structmax.argmax(scores, structure))
    assert_shown(kind, points["marginals"]["grids"], structmax.marginals(cooled, structure))
    assert_shown(kind, points["sparsemap"]["grids"], sparse.marginals)
    if kind == "crossing":
        assert points["smoothed"]["grids"] == []
        assert "does not support" in points["smoothed"]["caption"]
    else:
        smoothed = structmax.smoothed_marginals(scores, structure, omega.LocalTsallis(1.3, 0.7))
        assert_shown(kind, points["smoothed"]["grids"], smoothed)
    members = found["sparsemap"]["structures"]
    assert [member["share"] for member in members] == sparse.probabilities.tolist()
    count = len(structure.enumerate(scores)) if kind != "chain" else 2**3
    names = KINDS[kind].member
    assert points["sparsemap"]["caption"].startswith(f"{len(members)} of {count} {names[count > 1]} ha")
    draws = structmax.sample(cooled, structure, (SAMPLES,), generator=torch.Generator().manual_seed(3))
    shares = [member["share"] * SAMPLES for member in found["samples"]["structures"]]
    different = torch.unique(tensors(kind, draws)[0], dim=0, return_counts=True)[1]
    assert shares == sorted(different.tolist(), reverse=True)


@every_kind
def test_members_are_drawn_with_their_parts(kind: str) -> None:
    found = answer(checked(request(kind)))
    best = {member["words"]: member for member in found["sparsemap"]["structures"]}
    means = [[0.0 for _ in row] for row in found["points"][2]["grids"][0]]
    for member in best.values():
        assert (member["svg"] is None) == (kind in ("subset", "simplex"))
        for row, column in member["cells"]:
            means[row][column] += member["share"]
    for shown, summed in zip(found["points"][2]["grids"][0], means, strict=True):
        assert [value or 0.0 for value in shown] == pytest.approx(summed, abs=1e-9)


@every_kind
def test_the_exact_gradient_is_that_of_all_structures(kind: str) -> None:
    asked = aimed(kind, temperature=0.8)
    found = answer(asked)
    structure = STRUCTURES[kind]
    leaves = tuple(t.clone().requires_grad_() for t in asked.scores)
    target = torch.zeros_like(leaves[0]).flatten()
    rows, columns = zip(*found["target"]["cells"], strict=True)
    target[asked.fields[0].at[rows, columns]] = 1.0
    y = target.view_as(leaves[0])

    def loss(z: Any, index: Tensor) -> Tensor:
        # spans that every tree has differ from the target's zeros by a constant
        return 0.5 * ((structure.tensors(z)[0] - y) ** 2).flatten(1).sum(1)

    cooled = structure.parts(tuple(t / 0.8 for t in leaves))
    value = structmax.expect(loss, cooled, structure, estimators.Enumerate()).value
    exact = gradients(asked)["gradients"][0]
    if kind != "brackets":
        assert exact["loss"] == pytest.approx(value.item(), abs=1e-9)
    for field, gradient, shown in zip(asked.fields, torch.autograd.grad(value, leaves), exact["descent"], strict=True):
        torch.testing.assert_close(field.tensor(shown).flatten()[field.places], -gradient.flatten()[field.places])


@every_kind
def test_gradients_are_those_of_the_estimators(kind: str) -> None:
    asked = aimed(kind, temperature=0.8, step=2.5)
    found = {row["name"]: row for row in gradients(asked)["gradients"]}
    y = target_of(asked)
    named = {
        "straight_through": estimators.StraightThrough(),
        "straight_through_marginals": estimators.StraightThrough(omega.Entropy(0.8)),
        "spigot": estimators.Spigot(2.5),
        "interpolation": estimators.BlackboxInterpolation(2.5),
        "implicit_mle": estimators.ImplicitMLE(2.5, temperature=0.8),
        "relaxed_marginals": estimators.Relaxation(omega.Entropy(0.8)),
        "relaxed_sparsemap": estimators.Relaxation(omega.SquaredNorm(0.8)),
    }
    assert set(found) == {"exact", "score_function", "reinmax", *named}
    for name, estimator in named.items():
        leaves = tuple(t.clone().requires_grad_() for t in asked.scores)
        generator = torch.Generator().manual_seed(3)
        z = structmax.surrogate(asked.structure.parts(leaves), asked.structure, estimator, generator=generator)
        loss = 0.5 * ((asked.structure.tensors(z)[0] - y) ** 2).sum()
        assert found[name]["loss"] == pytest.approx(float(loss.detach()), abs=1e-12)
        for field, gradient, shown in zip(
            asked.fields, torch.autograd.grad(loss, leaves), found[name]["descent"], strict=True
        ):
            torch.testing.assert_close(field.tensor(shown).flatten()[field.places], -gradient.flatten()[field.places])


def target_of(asked: Any) -> Tensor:
    """The target's part tensor, from the cells on the page and what every member has."""
    members = asked.structure.enumerate(asked.structure.parts(asked.scores))
    first = asked.structure.tensors(members)[0]
    cells = tuple(tuple(cell) for cell in answer(asked)["target"]["cells"])
    return next(member for member in first if asked.fields[0].cells(member) == cells)


@every_kind
def test_a_wanted_part_is_in_the_best_structure_that_has_it(kind: str) -> None:
    asked = checked(request(kind, wanted=[[0, 1] if kind not in ("subset", "simplex") else [1, 0]]))
    members = asked.structure.tensors(asked.structure.enumerate(asked.structure.parts(asked.scores)))
    values = sum((m * s).flatten(1).sum(1) for m, s in zip(members, asked.scores, strict=True))
    has = torch.tensor([asked.wanted[0] in asked.fields[0].cells(member) for member in members[0]])
    cells = answer(asked)["target"]["cells"]
    # there may be several as good
    found = [i for i, member in enumerate(members[0]) if asked.fields[0].cells(member) == cells]
    assert found
    assert has[found].all()
    torch.testing.assert_close(values[found].max(), values[has].max())


@every_kind
def test_a_structure_that_is_wanted_whole_is_the_target(kind: str) -> None:
    asked = checked(request(kind))
    for member in asked.structure.tensors(asked.structure.enumerate(asked.structure.parts(asked.scores)))[0]:
        cells = asked.fields[0].cells(member)
        wanted = checked(request(kind, wanted=[list(cell) for cell in cells]))
        assert answer(wanted)["target"]["cells"] == cells


@every_kind
def test_a_sweep_counts_what_each_temperature_keeps(kind: str) -> None:
    asked = checked(request(kind, alpha=1.7))
    found = sweep(asked)
    scores, places = asked.structure.parts(asked.scores), asked.fields[0].places

    def above(parts: Any) -> int:
        return int((asked.structure.tensors(parts)[0].flatten()[places] > 0).sum())

    assert found["parts"] == len(places)
    for i in (0, 12, 24):
        t = found["temperatures"][i]
        assert found["above"]["SparseMAP"][i] == above(
            structmax.sparsemap(scores, asked.structure, temperature=t).marginals
        )
        assert found["above"]["Marginals"][i] == above(
            structmax.smoothed_marginals(scores, asked.structure, omega.Entropy(t))
        )
        if kind != "crossing":
            smoothed = structmax.smoothed_marginals(scores, asked.structure, omega.LocalTsallis(1.7, t))
            assert found["above"]["Smoothed recursion"][i] == above(smoothed)
    assert ("Smoothed recursion" in found["above"]) == (kind != "crossing")


@every_kind
def test_examples_are_acceptable_and_have_several_structures(kind: str) -> None:
    found = answer(checked({**example(kind), "k": 2}))
    assert len(found["sparsemap"]["structures"]) > 1
    assert [field["scores"] for field in found["fields"]] == KINDS[kind].example()


@every_kind
def test_the_largest_requests_are_answered(kind: str) -> None:
    rows, columns = KINDS[kind].rows, KINDS[kind].columns
    words = [chr(97 + i) * 24 for i in range(rows.most)]
    across = [chr(65 + i) * 24 for i in range(columns.most)] if columns else []
    for scores in (None, 50.0, 0.0):
        asked = {"kind": kind, "rows": words, "columns": across, "k": 1, "temperature": 10.0}
        if scores is not None:
            shapes = [field.at for field in checked(asked).fields]
            signs = itertools.cycle((scores, -scores))
            asked["scores"] = [[[next(signs) if p >= 0 else None for p in row] for row in at.tolist()] for at in shapes]
        assert answer(checked(asked))["points"]
        assert gradients(checked(asked))["gradients"]
        assert sweep(checked(asked))["above"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "tree"}, "`kind` should be one of dependencies, .* but is 'tree'"),
        ({"kind": None}, "`kind` should be one of"),
        ({"kind": ["chain"]}, "`kind` should be one of"),
        ({"other": 1}, "should have keys among kind, rows, .* but has 'other'"),
        ({"rows": "a b"}, "`rows` should be a list of 1 to 12 words, but is 'a b'"),
        ({"rows": []}, "`rows` should be a list of 1 to 12 words, but has 0"),
        ({"rows": ["a"] * 13}, "but has 13"),
        ({"rows": ["a", 1]}, "words of 1 to 24 letters, but has 1"),
        ({"rows": ["a" * 25]}, "words of 1 to 24 letters, but has 'a"),
        ({"columns": ["x"]}, "`columns` should be a list of 0 to 0 words, but has 1"),
        ({"seed": -1}, "`seed` should be a whole number from 0 to 2147483647, but is -1"),
        ({"seed": 1.0}, "`seed` should be a whole number"),
        ({"seed": True}, "`seed` should be a whole number"),
        ({"temperature": 0}, r"`temperature` should be a number from 0.05 to 10, but is 0"),
        ({"temperature": "1"}, "`temperature` should be a number"),
        ({"temperature": True}, "`temperature` should be a number"),
        ({"temperature": math.nan}, "`temperature` should be a number from 0.05 to 10, but is nan"),
        ({"temperature": 10**400}, "but is 1000.*"),
        ({"alpha": 0.9}, "`alpha` should be a number from 1 to 3"),
        ({"step": 21}, "`step` should be a number from 0.1 to 20"),
        ({"scores": 1}, "`scores` should be null, or a list of 1 grids, but is 1"),
        ({"scores": [[], []]}, "a list of 1 grids"),
        ({"scores": [[]]}, "should have 4 rows here"),
        ({"scores": [[1, 2, 3, 4]]}, "a row of `scores` should have 3 entries here, but is 1"),
        ({"scores": [[[1, 1, 1]] * 4]}, "`scores` should be null where there is no part, but one is 1"),
        ({"scores": [[[1, 1, None]] * 4]}, "a score should be a number from -50 to 50, but is None"),
        ({"scores": [[[51, 1, 1]] * 4]}, "a score should be a number from -50 to 50, but is 51"),
        ({"wanted": 1}, "`wanted` should be a list of at most 144 cells"),
        ({"wanted": [[0, 0]] * 145}, "`wanted` should be a list of at most 144 cells"),
        ({"wanted": [1]}, r"a cell of `wanted` should be \[row, column\], but is 1"),
        ({"wanted": [[0, 3]]}, "`wanted` should be a whole number from 0 to 2, but is 3"),
        ({"wanted": [[1, 0]]}, r"a cell of `wanted` should be a part, but \[1, 0\] is none"),
    ],
    ids=str,
)
def test_what_is_not_acceptable_gets_a_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Unacceptable, match=words) as caught:
        checked({**request("dependencies"), **change})
    assert len(str(caught.value)) < 200


def test_k_is_at_most_the_number_of_items() -> None:
    with pytest.raises(Unacceptable, match="`k` should be a whole number from 1 to 4, but is 5"):
        checked(request("subset") | {"k": 5})


@pytest.mark.parametrize("sent", [None, 1, "x", [], [request("simplex")]], ids=str)
def test_a_request_is_an_object(sent: Any) -> None:
    with pytest.raises(Unacceptable, match="should be an object of JSON"):
        checked(sent)
