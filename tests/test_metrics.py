"""Every metric that a recipe reports is explained, and what is said of metrics is said of some that there are."""

import importlib

import pytest
import torch

from structmax import recipes
from structmax.training import Task

CPU = torch.device("cpu")
IMAGES = {"hidden": 6, "valid_size": 1300}
PARSER = {"size": 8, "word_size": 8, "layers": 1, "train_size": 20}
# settings that between them show every metric, as small as they can be
TINY = [
    ("align", {"train_size": 8, "size": 8, "learn_window": True, "window": 20, "task": "neighbours"}),
    ("align", {"train_size": 8, "size": 8, "task": "forecast"}),
    ("bits", IMAGES | {"bits": 3, "features": 2, "importance_samples": 10}),
    ("clusters", {"points": 100}),
    ("joint", {"train_size": 20, "tree_size": 20, "size": 8, "word_size": 8, "hidden": 8, "pretrain": 0}),
    ("listops", {"train_size": 100, "longest": 12, "size": 8, "curriculum": 0}),
    ("nli", {"train_size": 20, "size": 8}),
    ("parse", PARSER | {"tag_size": 4, "character_size": 4, "hidden_size": 8, "loss": "sparsemap"}),
    ("sentiment", {"train_size": 20, "size": 8, "tree": "sparse_marginalisation"}),
    ("signal", IMAGES | {"symbols": 5, "game_size": 4, "embedding": 3}),
    ("ssvae", IMAGES | {"size": 2, "labelled": 40, "warm_start": 0}),
    ("tag", {"train_size": 20, "size": 6, "word_size": 6, "character_size": 4}),
    ("translate", {"size": 8, "train_size": 20, "longest": 12}),
]

# what the settings above do not measure, but others do
LEFT_OUT = {
    ("align", "neighbours"): {"mse", "dtw"},
    ("align", "forecast"): {"accuracy", "band"},
}


def reported(task: Task) -> set[str]:
    """The metrics of two batches, and of the test."""
    generator = torch.Generator().manual_seed(0)
    trained = [metrics for batch in task.batches(0)[:2] for _, metrics in task.updates(batch, generator)]
    with torch.no_grad():
        return {"loss"}.union(*trained, task.evaluate("test"))


def test_all_recipes_are_asked() -> None:
    assert {name for name, _ in TINY} == set(recipes.names())


@pytest.mark.parametrize(("name", "settings"), TINY, ids=[name for name, _ in TINY])
def test_every_metric_is_explained(name: str, settings: dict) -> None:
    recipe = importlib.import_module(f"structmax.recipes.{name}")
    torch.manual_seed(0)
    task = recipe.Recipe(recipe.Config(device="cpu", batch_size=20, **settings), CPU)
    if settings.items() >= IMAGES.items():
        task.held_out["test"] = task.held_out["test"].at(slice(40))
    metrics, explained = reported(task), set(task.meanings)
    assert not metrics - explained
    # a direction of nothing would be a slip of the pen
    assert set(task.better()) - {"accuracy"} <= explained
    assert explained - metrics == LEFT_OUT.get((name, settings.get("task", "")), set())


def test_a_metric_without_an_explanation_is_found() -> None:
    recipe = importlib.import_module("structmax.recipes.clusters")

    class Silent(recipe.Recipe):
        meanings = {"loss": "of something"}

    assert reported(Silent(recipe.Config(points=100, device="cpu"), CPU)) - set(Silent.meanings) == {
        "explained",
        "accuracy",
        "v_measure",
    }
