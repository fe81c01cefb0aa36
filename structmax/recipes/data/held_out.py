"""Seeds of generated data that no run trains on."""

from structmax.training import RunError, Settings

VALID_SEED, TEST_SEED = 1_000_001, 1_000_002


def training_seed(config: Settings) -> int:
    """The seed of the data to train on: that of the run, if it does not make what is held out.

    Examples:
        >>> from structmax.recipes.data.held_out import training_seed
        >>> from structmax.training import Settings
        >>> training_seed(Settings(seed=3))
        3
    """
    if config.seed in (VALID_SEED, TEST_SEED):
        raise RunError(
            f"`seed` should not be {config.seed}: the data to validate or to test with are made by it. Try another."
        )
    return config.seed
