"""No recipe trains on data that it validates or tests with."""

import importlib

import pytest
import torch

from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED
from structmax.training import RunError

# those that generate data, if no files are given
GENERATES = ("align", "joint", "listops", "nli", "parse", "sentiment", "tag", "translate")


@pytest.mark.parametrize("name", GENERATES)
@pytest.mark.parametrize("seed", [VALID_SEED, TEST_SEED])
def test_seeds_of_held_out_data_are_refused(name: str, seed: int) -> None:
    recipe = importlib.import_module(f"structmax.recipes.{name}")
    with pytest.raises(RunError, match=f"`seed` should not be {seed}: .* Try another"):
        recipe.Recipe(recipe.Config(seed=seed), torch.device("cpu"))
