"""Asks a trial everything it can be asked."""

import warnings
from collections.abc import Callable

import conftest
import numpy as np
import torch

from fuzzing import estimates, mappings, measures, questions, relaxations, sparse
from fuzzing.structures import MAKERS
from fuzzing.trial import Report, Trial

# A cell no kernel wrote is seen, as in all tests.
torch.empty, torch.empty_like = conftest.poisoned(torch.empty), conftest.poisoned(torch.empty_like)

# Each check, and the functions of a room it needs.
CHECKS: dict[Callable[[Trial], None], tuple[str, ...]] = {
    questions.best: ("argmax",),
    questions.several: ("topk",),
    questions.sums: ("log_partition",),
    questions.maxima: ("max_marginals",),
    questions.draws: ("sample",),
    questions.distinct_draws: ("sample_without_replacement",),
    measures.entropies: ("log_partition", "marginals"),
    measures.log_probabilities: ("log_partition",),
    measures.partial: ("given_log_partition", "given_marginals_jvp"),
    measures.smooth: ("smoothed", "smoothed_and_marginals", "smoothed_log_prob"),
    sparse.sparse: ("sparsemap",),
    sparse.projected: ("project",),
    sparse.losses: ("argmax",),
    estimates.estimators: ("argmax",),
    estimates.distribution: ("log_partition", "marginals"),
}


# What is no structure: how it is drawn, and its checks.
OTHERS: dict[str, tuple[type[Report], tuple[Callable[..., None], ...]]] = {
    "mappings": (mappings.Rows, (mappings.softmaxes, mappings.bounded, mappings.fused)),
    "relaxations": (
        relaxations.Relaxations,
        (relaxations.sinkhorn, relaxations.warping, relaxations.sorting, relaxations.factors),
    ),
}


def trial(seed: int, index: int, only: str | None = None) -> Report:
    """Number `index` of the trials that follow from a seed."""
    rng = np.random.default_rng([seed, index])
    names = [*MAKERS, *OTHERS]
    drawn = names[rng.integers(len(names))]
    name = only or drawn
    torch.manual_seed(int(rng.integers(2**31)))
    if name in OTHERS:
        draw, checks = OTHERS[name]
        asked = draw(name, rng)
    else:
        asked = Trial(name, rng)
        checks = tuple(check for check, needs in CHECKS.items() if asked.answers(*needs))
    for check in checks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked.ask(check.__name__, lambda check=check: check(asked))
    return asked
