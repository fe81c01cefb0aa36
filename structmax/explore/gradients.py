"""The gradients that estimators give to the scores, for a loss of the chosen structure against a target.

The loss is L(z) = ½ ‖z − y‖²; between 0/1 parts, half the number of those that differ. Its expectation over
p(z) ∝ exp⟨θ/t, z⟩ is linear in the marginals μ, as z² = z:

    E[L(z)] = ½ ⟨1, μ⟩ + ½ ‖y‖² − ⟨y, μ⟩

so that its gradient is exact, whatever the number of structures; the others are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import structmax
from structmax import estimators, omega
from structmax.explore.request import Asked

# More than all scores of a structure together.
BONUS = 1e4


@dataclass(frozen=True)
class Row:
    title: str
    # what it does, in a line
    about: str
    # L(z), differentiable, of scores
    loss: Callable[[Asked, Any, Tensor], Tensor]


def target(asked: Asked, others: Sequence[Tensor] = ()) -> Tensor:
    """The structure that the loss wants, as its first part tensor.

    A wanted part: the best structure that has it. Several: the structure with the fewest other parts, and missing
    ones. None: the first of `others` that is not the best structure.
    """
    if not asked.wanted:
        best = _best(asked, asked.scores)
        return next((other for other in others if not torch.equal(other, best)), best)
    rows, columns = zip(*asked.wanted, strict=True)
    first, *rest = asked.scores
    bonus = torch.zeros_like(first).flatten()
    bonus[asked.fields[0].at[rows, columns]] = BONUS
    if len(asked.wanted) > 1:
        bonus = torch.where(bonus > 0, bonus, -BONUS)
    return _best(asked, (first + bonus.view_as(first), *rest))


def _best(asked: Asked, scores: tuple[Tensor, ...]) -> Tensor:
    """The best structure for these scores, as its first part tensor."""
    return asked.structure.tensors(structmax.argmax(asked.structure.parts(scores), asked.structure))[0]


def _distance(z: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((z - y) ** 2).flatten(-y.dim()).sum(-1)


def _exact(asked: Asked, scores: Any, y: Tensor) -> Tensor:
    found = structmax.smoothed_marginals(scores, asked.structure, omega.Entropy(asked.temperature))
    mean = asked.structure.tensors(found)[0]
    return 0.5 * mean.sum() + 0.5 * (y**2).sum() - (y * mean).sum()


def _surrogate(estimator: Callable[[Asked], Any]) -> Callable[[Asked, Any, Tensor], Tensor]:
    def loss(asked: Asked, scores: Any, y: Tensor) -> Tensor:
        z = structmax.surrogate(scores, asked.structure, estimator(asked), generator=asked.generator())
        return _distance(asked.structure.tensors(z)[0], y)

    return loss


def _of_samples(estimator: Any) -> Callable[[Asked, Any, Tensor], Tensor]:
    def loss(asked: Asked, scores: Any, y: Tensor) -> Tensor:
        cooled = asked.structure.parts(tuple(s / asked.temperature for s in asked.structure.tensors(scores)))

        def objective(z: Any, index: Tensor) -> Tensor:
            return _distance(asked.structure.tensors(z)[0], y)

        found = structmax.expect(objective, cooled, asked.structure, estimator, generator=asked.generator())
        return found.value

    return loss


SAMPLES = 16
ROWS: dict[str, Row] = {
    "exact": Row("Exact", "of the expected loss E[L(z)], over all structures", _exact),
    "score_function": Row(
        "Score function",
        f"unbiased, from {SAMPLES} samples and their losses alone",
        _of_samples(estimators.ScoreFunction(SAMPLES, estimators.LeaveOneOut())),
    ),
    "reinmax": Row("ReinMax", "one sample forward; second order backward", _of_samples(estimators.ReinMax())),
    "straight_through": Row(
        "Straight-through",
        "argmax forward; backward as if it were the scores",
        _surrogate(lambda asked: estimators.StraightThrough()),
    ),
    "straight_through_marginals": Row(
        "Straight-through marginals",
        "argmax forward; backward as if it were the marginals",
        _surrogate(lambda asked: estimators.StraightThrough(omega.Entropy(asked.temperature))),
    ),
    "spigot": Row(
        "SPIGOT",
        "argmax forward; backward from it to a step towards the target, projected onto the polytope",
        _surrogate(lambda asked: estimators.Spigot(asked.step)),
    ),
    "interpolation": Row(
        "Blackbox interpolation",
        "argmax forward; backward the difference to the argmax after a step",
        _surrogate(lambda asked: estimators.BlackboxInterpolation(asked.step)),
    ),
    "implicit_mle": Row(
        "Implicit MLE",
        "the same with noise on the scores",
        _surrogate(lambda asked: estimators.ImplicitMLE(asked.step, temperature=asked.temperature)),
    ),
    "relaxed_marginals": Row(
        "Marginals",
        "the marginals in place of a structure; exact backward",
        _surrogate(lambda asked: estimators.Relaxation(omega.Entropy(asked.temperature))),
    ),
    "relaxed_sparsemap": Row(
        "SparseMAP",
        "SparseMAP in place of a structure; exact backward",
        _surrogate(lambda asked: estimators.Relaxation(omega.SquaredNorm(asked.temperature))),
    ),
}


def gradients(asked: Asked) -> dict[str, Any]:
    """For each estimator its loss, its step of descent −∂L/∂θ in the grids of the page, and its cosine to the exact."""
    y, found, exact = target(asked), [], None
    for name, row in ROWS.items():
        leaves = tuple(scores.clone().requires_grad_() for scores in asked.scores)
        loss = row.loss(asked, asked.structure.parts(leaves), y)
        down = tuple(-gradient for gradient in torch.autograd.grad(loss, leaves))
        flat = torch.cat([part.flatten()[field.places] for part, field in zip(down, asked.fields, strict=True)])
        exact = flat if exact is None else exact
        norms = float(flat.norm()), float(exact.norm())
        found.append(
            {
                "name": name,
                "title": row.title,
                "about": row.about,
                "loss": float(loss.detach()),
                "norm": norms[0],
                # 0 has no direction
                "cosine": float(flat @ exact) / (norms[0] * norms[1]) if all(norms) else None,
                "descent": [field.shown(part) for part, field in zip(down, asked.fields, strict=True)],
            }
        )
    return {"gradients": found}
