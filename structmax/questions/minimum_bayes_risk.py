"""The structure at the least expected distance from a draw: what to return where every part counts, not the whole.

The distance of y and y′ is the number of parts that one has and the other lacks, Σ over i of y_i + y′_i − 2 y_i y′_i.
For a draw y′ of mean μ it is Σ over i of y_i + μ_i − 2 y_i μ_i on average, least where ⟨μ − ½, y⟩ is largest: an
`argmax`.
"""

from typing import Any

import torch

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.omega.base import AbstractOmega, point_of
from structmax.omega.squared_norm import regularised
from structmax.omega.zero import Zero
from structmax.problem import Problem
from structmax.questions.log_partition import ENTROPY
from structmax.questions.smoothed import checked

ZERO = Zero()


def minimum_bayes_risk(
    scores: Scores,
    structure: AbstractStructure,
    *,
    over: tuple[str, ...] | None = None,
    threshold: float = 0.5,
    omega: AbstractOmega = ENTROPY,
    backend: str = "auto",
) -> Any:
    """The structure that agrees with a draw from p(y) ∝ exp⟨θ, y⟩ in most parts, on average. Its gradient is zero.

    It maximises ⟨μ − threshold, y⟩ over y in Y, where μ are the `marginals`. At ½ this minimises the expected number of
    parts that y has and the draw lacks, or the other way round. If all structures have equally many parts, any
    threshold gives the same: the most expected parts in common. Otherwise a lower one asks for more parts, for recall,
    and a higher one for fewer, for precision.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y; it needs `marginals` and `argmax`.
        over: the names of the part tensors that count; by default what the structure says, such as the labels of a
            chain, from which transitions follow.
        threshold: how probable a part has to be to be worth having.
        omega: whose point is taken as μ, as `smoothed_marginals` returns it: `SquaredNorm()` needs no more than an
            `argmax`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Parts with fields, shapes and dtype of the scores: 0 and 1, or counts of parts that may be used several times,
        each use of which is worth μ − threshold. Never a forbidden part; all zeros where nothing is feasible.

    Examples:
        The best path takes label 0 twice. Paths with label 1 at the end are worse one by one, but not together:

        >>> import torch, structmax
        >>> scores = structmax.LinearChain.Parts(torch.zeros(2, 2), torch.tensor([[0.5, 0.0], [-torch.inf, 0.3]]))
        >>> chain = structmax.LinearChain()
        >>> chain.decode(structmax.argmax(scores, chain))
        tensor([0, 0])
        >>> chain.decode(structmax.minimum_bayes_risk(scores, chain))
        tensor([0, 1])

    Reference:
        Goodman 1996, Parsing algorithms and metrics; Kumar and Byrne 2004, Minimum Bayes-risk decoding for statistical
        machine translation.
    """
    check.positive("threshold", threshold, or_zero=True)
    problem = Problem.of(scores, structure, backend, wide=True)
    counted = regularised(problem, over, "over")
    theta = tuple(s.detach() for s in problem.scores)
    means = point_of(checked(omega), problem.at(theta))
    worth = (mu - threshold if counts else torch.zeros_like(mu) for mu, counts in zip(means, counted, strict=True))
    # What is forbidden has mean 0, and would be cheap.
    allowed = tuple(w.masked_fill(s.isneginf(), -torch.inf) for w, s in zip(worth, theta, strict=True))
    return problem.named(ZERO.point(problem.at(allowed)))
