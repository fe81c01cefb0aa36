"""The learning rate over a run, as a factor of its highest."""

import math

from structmax.training.task import Settings

DECAYS = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: (1.0 + math.cos(math.pi * progress)) / 2.0,
}


def factor(config: Settings, step: int, steps: float, seconds: float) -> float:
    """From 1 / warm_up to 1 in `warm_up` steps, then down to 0 at the end, which is the last step or the last second.

    Args:
        config: of the run.
        step: how many came before this one.
        steps: of the whole run, as far as is known.
        seconds: since it began.

    Examples:
        >>> config = Settings(schedule="linear", warm_up=2)
        >>> [factor(config, step, 6, seconds=0.0) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < config.warm_up:
        return (step + 1) / config.warm_up
    progress = (step - config.warm_up) / max(steps - config.warm_up, 1)
    if config.minutes:
        progress = max(progress, seconds / (60 * config.minutes))
    return DECAYS[config.schedule](min(progress, 1.0))
