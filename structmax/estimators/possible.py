"""What the estimators need of a problem in addition to the public questions."""

import torch

from structmax import backends
from structmax.discrete import discrete
from structmax.parts import Tensors
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


def possible(problem: Problem) -> Tensors:
    """False for padding and for forbidden parts, which no structure has: bools in the shape of the scores.

    A structure that defines neither `exists` nor `max_marginals` is taken to have no padding.
    """
    allowed = tuple(~s.isneginf() for s in problem.scores)
    exists = problem.exists()
    if exists is None and problem.answers("max_marginals"):
        flat = problem.at(tuple(torch.zeros_like(s) for s in problem.scores))
        exists = tuple(~m.isneginf() for m in discrete(flat, "max_marginals"))
    return allowed if exists is None else tuple(a & e for a, e in zip(allowed, exists, strict=True))


def lifted(tensors: Tensors, count: int) -> Tensors:
    """A dimension of `count` equal draws behind the batch: (B, count, …)."""
    return tuple(t.unsqueeze(1).expand(t.shape[0], count, *t.shape[1:]) for t in tensors)


def best_of_each(problem: Problem, many: Tensors) -> Tensors:
    """The best structures for scores with a dimension of draws behind the batch: (B, S, …)."""
    rows = tuple(t.reshape(t.shape[0] * t.shape[1], *t.shape[2:]) for t in many)
    best = ZERO.point(problem.in_a_row(many[0].shape[1]).at(rows))
    return tuple(b.reshape(t.shape) for b, t in zip(best, many, strict=True))


def refuse(problem: Problem, estimator: object, needs: tuple[str, ...], others: dict[str, tuple[str, ...]]) -> None:
    """Raises early what would fail during a backward pass, and says which of `others` would work."""
    missing = next((name for name in needs if not problem.answers(name)), None)
    if missing is None:
        return
    structure = type(problem.structure)
    reasons = backends.explain(structure.room, missing, problem.scores[0].device.type)
    why = structure.intractable.get(missing) or "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    able = [name for name, asks in others.items() if all(map(problem.answers, asks))]
    instead = f" Try {' or '.join(able)}." if able else ""
    raise backends.Refusal(
        f"{estimator!r} needs `{missing}`, which {structure.__name__} does not support: {why.rstrip('.')}.{instead}"
    )
