"""Sparsemax over the k best structures: a distribution over structures, regularised there and not in their parts.

    p = sparsemax(⟨θ, y_1⟩, …, ⟨θ, y_k⟩)

If the k-th has probability 0, so would have all after it: then it is the sparsemax over all of Y. The gradient is that
of `sparsemax` through the scores of the structures, whose gradients are their parts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.mappings.entmax import sparsemax
from structmax.outline import outline
from structmax.parts import scaled
from structmax.problem import Problem
from structmax.questions.topk import best


class TopKSparseMAP(NamedTuple):
    """A distribution over the k best structures."""

    # Σ p y: fields, shapes and dtype of the scores, differentiable
    marginals: Any
    # the k best, with k in front
    parts: Any
    # (k, batch): the best first, differentiable
    probabilities: Tensor
    # the batch shape: whether more structures would have changed nothing
    exact: Tensor

    def __repr__(self) -> str:
        return outline(self)


def topk_sparsemap(
    scores: Scores, structure: AbstractStructure, k: int, *, temperature: float = 1.0, backend: str = "auto"
) -> TopKSparseMAP:
    """argmax over distributions p on Y of Σ p(y) ⟨θ, y⟩ − temperature/2 ‖p‖², if it has at most k structures.

    `sparsemap` regularises the mean, where structures share parts and their cost; here each structure is on its own,
    so few have a probability above 0 unless many have similar scores.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y; it must support `topk`.
        k: how many of the best structures are considered.
        temperature: a number > 0; fewer structures as it falls.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A `TopKSparseMAP` with `marginals`, `parts`, `probabilities`, and per instance `exact`: whether the k-th best
        has probability 0 or does not exist, so that the answer is that for all of Y.

    Examples:
        >>> import torch, structmax
        >>> found = structmax.topk_sparsemap(torch.tensor([1.0, -0.2, 0.1]), structmax.Bits(), 3)
        >>> found.probabilities
        tensor([0.4333, 0.3333, 0.2333])
        >>> bool(found.exact)
        False

    Reference: Correia, Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent
    variables via sparsity.
    """
    check.positive("temperature", temperature)
    check.whole("k", k, 1)
    problem = Problem.of(scores, structure, backend)
    values, parts = best(problem, k)
    probabilities = sparsemax(values / temperature)
    marginals = tuple(part.sum(1) for part in scaled(probabilities, parts))
    exact = (probabilities[:, -1] == 0) | (values[:, -1] == -torch.inf)
    return TopKSparseMAP(
        problem.named(marginals),
        problem.stacked(parts, k),
        problem.stacked_values(probabilities),
        problem.shaped(exact),
    )
