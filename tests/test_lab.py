"""The laboratory tells biased from unbiased gradients."""

import pytest
import torch

import structmax


def table(**given):
    cost = torch.tensor([[1.0, -2.0, 3.0, 0.5], [0.5, 1.0, -1.0, 2.0]], dtype=torch.float64)
    scores = torch.tensor([[0.3, -0.2, 0.8, 0.0], [1.0, 0.0, 0.5, -0.5]], dtype=torch.float64)
    estimators = {
        "draws": structmax.estimators.ScoreFunction(2, structmax.estimators.LeaveOneOut()),
        "sum": structmax.estimators.SumAndSample(2),
        "all": structmax.estimators.Enumerate(),
        "straight": structmax.estimators.StraightThrough(),
    }
    f = lambda z, index: (z * cost[index]).sum(-1) ** 2  # noqa: E731
    g = torch.Generator().manual_seed(0)
    return structmax.lab.gradients(f, scores, structmax.Simplex(), estimators, generator=g, **given)


def test_gradients():
    found = table(samples=950)
    rows = {row.name: row for row in found.rows}
    for name in ("draws", "sum"):
        assert rows[name].unbiased
        assert rows[name].bias < 3 * rows[name].chance
        assert rows[name].cosine > 0.9
    assert rows["sum"].variance < rows["draws"].variance
    assert rows["all"].bias < 1e-12
    assert rows["all"].variance < 1e-24
    assert not rows["straight"].unbiased
    assert rows["straight"].bias > 0.5
    assert [row.evaluations for row in found.rows] == [4, 6, 8, 2]
    assert all(row.seconds > 0 for row in found.rows)


def test_questions():
    """Both passes are counted, for each draw of both instances; of a list, how long it is, once for all draws."""
    rows = {row.name: dict(row.questions) for row in table(samples=150).rows}
    assert rows.pop("all") == pytest.approx({"log_partition": 2 / 150})
    assert rows == {
        "draws": {"sample": 2, "log_partition_and_marginals": 2},
        "sum": {"topk": 2, "sample_without_replacement": 2, "log_partition_and_marginals": 2},
        "straight": {"argmax": 2},
    }
    pairs = structmax.estimators.Perturbed(samples=10), structmax.estimators.Relaxation()
    found = structmax.lab.gradients(lambda z, _: z[:, 0] ** 2, torch.zeros(3), structmax.Subset(2), pairs, samples=2)
    perturbed, relaxed = (row.questions for row in found.rows)
    assert perturbed["argmax"] == 10
    # the backward pass
    assert relaxed["marginals_jvp"] == 1


def test_words():
    lines = str(table(samples=2)).splitlines()
    assert lines[0].endswith("2 draws each")
    assert (
        " ".join(lines[1].split()) == "estimator unbiased bias standard error variance cosine evaluations questions ms"
    )
    assert len({len(line) for line in lines[1:]}) == 1
    assert lines[-1].startswith("straight ")


def test_structures_of_several_tensors():
    chain = structmax.LinearChain(torch.tensor([3, 2]))
    scores = torch.randn(2, 3, 2), torch.randn(2, 2)
    found = structmax.lab.gradients(
        lambda z, _: z.unary[:, 0, 0] * z.unary[:, 1, 1],
        scores,
        chain,
        [structmax.estimators.ScoreFunction()],
        samples=400,
    )
    assert found.rows[0].name == "ScoreFunction(samples=1, baseline=None, scale=None)"
    assert found.rows[0].bias < 5 * found.rows[0].chance


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    table(samples=2).plot(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000


def test_samples_have_to_be_two():
    with pytest.raises(ValueError, match="`samples`"):
        table(samples=1)
