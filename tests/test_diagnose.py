"""`diagnose` looks at values, and explains."""

import math

import pytest
import torch

import structmax
from structmax import Simplex, diagnose


def test_sound_scores_are_true_and_say_so() -> None:
    found = diagnose(torch.tensor([[0.0, 1.5], [-2.0, -math.inf]]), Simplex())
    assert found
    assert not found.problems
    assert str(found) == (
        "scores: shape (2, 2), torch.float32, cpu\nrange: -2 to 1.5, 1 forbidden parts (−inf)\nno problem found"
    )
    assert isinstance(found, structmax.Diagnosis)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        pytest.param(
            torch.tensor([[0.0, math.nan], [math.nan, 1.0]]),
            ("`scores` should hold no NaN", "holds 2, the first at (0, 1)", "set_detect_anomaly"),
            id="nan",
        ),
        pytest.param(
            torch.tensor([[0.0, 1.0], [0.0, math.inf]]),
            ("should be finite or −inf", "1 × +inf, the first at (1, 1)", "Try −inf"),
            id="inf",
        ),
        pytest.param(
            torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]]),
            ("1 of 2 instances", "should have a feasible structure but has none", "(1,)", "Try a looser mask"),
            id="infeasible",
        ),
        pytest.param(
            torch.full((3,), -math.inf), ("1 of 1 instances", "first ()", "Try a looser mask"), id="one-infeasible"
        ),
        pytest.param(
            torch.tensor([0.0, 4e4], dtype=torch.float16),
            ("below 65504, the largest float16", "0 to 40000", "Try bfloat16"),
            id="overflow",
        ),
    ],
)
def test_problems_say_what_where_and_what_to_try(scores: torch.Tensor, words: tuple[str, ...]) -> None:
    found = diagnose(scores)
    assert not found
    for word in words:
        assert word in str(found)
    assert len(found.problems) == 1


def test_nothing_finite_and_nothing_at_all() -> None:
    assert diagnose(torch.full((2, 3), -math.inf)).facts["range"] == "no finite value, 6 forbidden parts (−inf)"
    assert diagnose(torch.zeros(0, 3))


def test_it_refuses_what_the_questions_refuse() -> None:
    with pytest.raises(TypeError, match="floating point"):
        diagnose(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="n ≥ 1"):
        diagnose(torch.zeros(3, 0))


@pytest.mark.thorough
def test_a_structure_whose_sums_are_refused():
    scores = torch.zeros(2, 3, 3)
    assert structmax.diagnose(scores, structmax.Matching())
    scores[1, 0] = -torch.inf
    found = structmax.diagnose(scores, structmax.Matching())
    assert not found
    assert "1 of 2 instances should have a feasible structure" in str(found)


def test_padding_is_no_problem():
    x = torch.tensor([[1.0, torch.nan, torch.inf], [3.0, 4.0, torch.nan]])
    found = structmax.diagnose(x, structmax.Bits(torch.tensor([1, 2])))
    assert found
    assert found.facts["range"] == "1 to 4"


def test_graphs_are_looked_at_too():
    x = structmax.factors.Variables("x", (2,))
    graph = structmax.FactorGraph(structmax.factors.Xor(x))
    scores = torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]])
    found = structmax.diagnose({"x": scores}, graph)
    assert not found
    assert "1 of 2 instances" in str(found)
