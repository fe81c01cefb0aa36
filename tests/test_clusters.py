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


def task_of(**settings):
    torch.manual_seed(0)
    given = {"points": 400, "features": 20, "clusters": 4, "batch_size": 100, "given": 0.1, "device": "cpu"}
    return clusters.Recipe(clusters.Config(**given | settings), torch.device("cpu"))


def test_given_categories_train_the_encoder_first():
    task = task_of(way="pretrain", pretrain=2)
    first, later = (torch.cat(list(task.batches(epoch))) for epoch in (1, 2))
    # given points alone, an epoch of them, and all points after that
    assert sorted(first.unique().tolist()) == list(range(400, 440))
    assert sorted(later.tolist()) == list(range(400))
    ((loss, _),) = task.updates(first[:50], torch.Generator())
    data = task.train.at(first[:50] - 400)
    expected = torch.nn.functional.cross_entropy(data.x @ task.model.encoder, data.category)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert task.model.encoder.grad.any()
    assert task.model.decoder.grad is None


def test_given_categories_add_to_the_loss():
    latent, multi_task = (task_of(way=way) for way in ("latent", "multi_task"))
    everything = torch.arange(400)
    ((alone, _),) = latent.updates(everything, torch.Generator())
    ((both, _),) = multi_task.updates(everything, torch.Generator())
    given = latent.train.at(slice(40))
    of_categories = torch.nn.functional.cross_entropy(given.x @ latent.model.encoder, given.category)
    torch.testing.assert_close(both, alone + of_categories)


@pytest.mark.parametrize("way", ["pretrain", "multi_task"])
def test_a_few_given_categories_help(tmp_path, way):
    found = {}
    for name in ("latent", way):
        config = clusters.Config(estimator="straight_through", way=name, clusters=10, epochs=10, device="cpu")
        found[name] = run(clusters.Recipe, config, tmp_path / name)["test"]["accuracy"]
    assert found[way] > found["latent"] + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"way": "pretrain", "pretrain": 20}, "`pretrain` should be less than `epochs`, 20, but is 20"),
        ({"way": "multi_task", "given": 0.0001}, "at least one of 400 points, but is 0.0001"),
    ],
)
def test_there_is_something_to_learn_from(settings, message):
    with pytest.raises(ValueError, match=message):
        task_of(**settings)


def test_v_measure():
    assert clusters.v_measure(torch.eye(3)).item() == pytest.approx(1.0)
    assert clusters.v_measure(torch.ones(3, 3)).item() == pytest.approx(0.0, abs=1e-6)
    assert clusters.v_measure(torch.tensor([[5.0]])).item() == 1.0
    # two true clusters found as one: homogeneity log(3/3)… by hand, I = H(found) = h, V = 2 h / (log 3 + h)
    joined = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = -(2 / 3 * torch.tensor(2 / 3).log() + 1 / 3 * torch.tensor(1 / 3).log())
    assert clusters.v_measure(joined).item() == pytest.approx((2 * found / (torch.tensor(3.0).log() + found)).item())
