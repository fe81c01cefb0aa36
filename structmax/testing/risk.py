"""The law of minimum Bayes risk."""

import math

import torch

from structmax.questions.minimum_bayes_risk import minimum_bayes_risk
from structmax.testing.case import Case, same, variants
from structmax.testing.sparse import counted


def law_minimum_bayes_risk(case: Case, backend: str) -> None:
    """It is a feasible member of the least expected distance from a draw; all zeros where nothing is feasible."""
    for name, scores in variants(case).items():
        got = case.flat(minimum_bayes_risk(case.parts(scores), case.structure, backend=backend))
        members, probabilities = case.members(scores), case.probabilities(scores)
        parts = counted(case, None) * members.clamp_min(0.0)
        # the number of parts that one has and the other lacks: (batch, M, M)
        size = parts.sum(-1)
        distance = size.unsqueeze(-1) + size.unsqueeze(-2) - 2 * parts @ parts.mT
        possible = case.scores_of_members(scores) > -math.inf
        risk = (distance @ probabilities.unsqueeze(-1)).squeeze(-1).masked_fill(~possible, math.inf)
        feasible = possible.any(-1)
        same(f"minimum_bayes_risk where infeasible, {name}", got[~feasible], torch.zeros_like(got[~feasible]), 0.0)
        chosen = (got.unsqueeze(-2) == members).all(-1)
        assert bool((chosen.sum(-1) == 1)[feasible].all()), f"minimum_bayes_risk, {name}: not a member"
        own = risk.masked_fill(~chosen, math.inf).amin(-1)
        same(f"risk, {name}", own[feasible], risk.amin(-1)[feasible])
