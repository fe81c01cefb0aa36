"""The study of latent categories."""

from typing import get_args

import pytest
import torch
from every_day import a_few_every_day

from structmax.recipes import clusters
from structmax.training import RunFolder, run


def test_every_name_has_an_estimator():
    assert set(get_args(clusters.Name)) == set(clusters.ESTIMATORS)


def test_clusters_nobody_was_told_about(tmp_path):
    summary = run(clusters.Recipe, clusters.Config(epochs=10, device="cpu"), tmp_path / "a")
    assert summary["test"]["accuracy"] == 1.0
    assert summary["test"]["v_measure"] == pytest.approx(1.0)
    # the noise of y alone is 0.01
    assert 0.009 < summary["test"]["loss"] < 0.02
    assert summary["test"]["explained"] > 0.98
    (drawing,) = RunFolder(tmp_path / "a").read("structures.json")
    counts = torch.tensor(drawing["weights"])
    # found clusters stand in the order of the true ones
    assert counts.sum() == clusters.HELD_OUT
    assert torch.equal(counts, counts.diag().diag())


@pytest.mark.parametrize("estimator", a_few_every_day(clusters.ESTIMATORS, "marginalise", "sparse_support", "rebar"))
def test_every_estimator_learns(tmp_path, estimator):
    config = clusters.Config(estimator=estimator, epochs=2, points=600, features=20, clusters=4, device="cpu")
    run(clusters.Recipe, config, tmp_path / "a")
    first, last = RunFolder(tmp_path / "a").rows
    assert last["train/loss"] < first["train/loss"]


def test_v_measure():
    assert clusters.v_measure(torch.eye(3)).item() == pytest.approx(1.0)
    assert clusters.v_measure(torch.ones(3, 3)).item() == pytest.approx(0.0, abs=1e-6)
    assert clusters.v_measure(torch.tensor([[5.0]])).item() == 1.0
    # two true clusters found as one: homogeneity log(3/3)… by hand, I = H(found) = h, V = 2 h / (log 3 + h)
    joined = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = -(2 / 3 * torch.tensor(2 / 3).log() + 1 / 3 * torch.tensor(1 / 3).log())
    assert clusters.v_measure(joined).item() == pytest.approx((2 * found / (torch.tensor(3.0).log() + found)).item())
