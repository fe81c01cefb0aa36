"""Well-known losses: cases of `fenchel_young`, some at scores shifted by a cost, and the risk.

An instance without any structure has no gradient. Its loss is 0, except where a target has a forbidden part and for
`crf_loss`, which is −log p(y) everywhere: there it is +inf.
"""

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.losses.fenchel_young import fenchel_young, loss, reduce, reduced
from structmax.noise import AbstractNoise, Normal, noise_like
from structmax.omega.base import AbstractOmega
from structmax.omega.smooth import Entropy
from structmax.omega.squared_norm import SquaredNorm, regularised
from structmax.omega.zero import Zero
from structmax.parts import Tensors, inner, plus
from structmax.problem import Problem
from structmax.questions.entropy import log_prob_of
from structmax.questions.log_partition import ENTROPY


def _costs(problem: Problem, target: Tensors, cost: Scores | None) -> Tensors:
    """c with cost(z) = ⟨c, z − y⟩; by default ½ − y: half the parts in which z and y differ."""
    if cost is not None:
        return problem.given("cost", cost)
    pairs = zip(target, regularised(problem), strict=True)
    return tuple(0.5 - y if counted else torch.zeros_like(y) for y, counted in pairs)


def _margin(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None,
    omega: AbstractOmega,
    reduction: str,
    backend: str,
) -> Tensor:
    problem = Problem.of(scores, structure, backend, wide=True)
    y = problem.given("target", target)
    shifted = problem.at(plus(problem.scores, _costs(problem, y, cost)))
    return reduced(problem, loss(shifted, y, omega), reduction)


def crf_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    *,
    known: Scores | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """−log p(y) = log Z(θ) − ⟨θ, y⟩, the negative log-likelihood of a conditional random field; gradient marginals − y.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        known: bool tensors shaped like `target`, True where it is known whether the structure has the part; then the
            loss is −log of the probability of all structures that agree with the target there. By default all is known.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> chain = structmax.LinearChain()
        >>> scores = (torch.zeros(3, 2), torch.zeros(2, 2))
        >>> structmax.crf_loss(scores, chain, chain.encode(torch.tensor([0, 1, 1]), scores))  # log 8
        tensor(2.0794)

    Reference: Lafferty, McCallum & Pereira 2001, Conditional random fields.
    """
    problem = Problem.of(scores, structure, backend, wide=True)
    losses = -log_prob_of(problem, target, known)
    return losses.to(problem.dtype) if reduction == "none" else reduce(losses, reduction).to(problem.dtype)


def perceptron_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """max⟨θ, z⟩ − ⟨θ, y⟩ over z in Y, the structured perceptron; gradient argmax − y. 0 iff no other scores more.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.perceptron_loss(torch.tensor([0.0, 1.5]), structmax.Simplex(), torch.tensor([1.0, 0.0]))
        tensor(1.5000)

    Reference: Collins 2002, https://aclanthology.org/W02-1001.
    """
    return fenchel_young(scores, structure, target, Zero(), reduction=reduction, backend=backend)


def svm_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None = None,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """max⟨θ, z⟩ + cost(z) − ⟨θ, y⟩ over z in Y, the structured hinge loss. 0 once y leads every z by its cost.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        cost: c, shaped like the parts: z costs ⟨c, z − y⟩, which is 0 for the target. By default ½ − y, half the parts
            in which z and y differ: the number of wrong labels, heads, spans where all structures have equally many.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.svm_loss(torch.tensor([0.0, 0.2, 0.9]), structmax.Simplex(), torch.tensor([0.0, 0.0, 1.0]))
        tensor(0.3000)

    Reference: Taskar, Guestrin & Koller 2003, Max-margin Markov networks; Tsochantaridis et al. 2005.
    """
    return _margin(scores, structure, target, cost, Zero(), reduction, backend)


def softmax_margin_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None = None,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """log Σ exp(⟨θ, z⟩ + cost(z)) − ⟨θ, y⟩ over z in Y: the likelihood loss with a margin. Convex, above risk and loss.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        cost: c, shaped like the parts: z costs ⟨c, z − y⟩, which is 0 for the target. By default ½ − y, half the parts
            in which z and y differ: the number of wrong labels, heads, spans where all structures have equally many.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.softmax_margin_loss(torch.zeros(2), structmax.Simplex(), torch.tensor([1.0, 0.0]))  # log(1 + e)
        tensor(1.3133)

    Reference: Gimpel & Smith 2010, https://aclanthology.org/N10-1112.
    """
    return _margin(scores, structure, target, cost, Entropy(), reduction, backend)


def sparsemap_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    *,
    temperature: float = 1.0,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """max⟨θ, μ⟩ − t/2 ‖μ_R‖² over conv(Y), + t/2 ‖y_R‖² − ⟨θ, y⟩: the sparsemax loss of a set. Gradient sparsemap − y.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        temperature: t, > 0; R are the parts the structure regularises.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.sparsemap_loss(torch.tensor([0.0, 0.5]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(0.0625)

    Reference: Niculae, Martins, Blondel & Cardie 2018, https://arxiv.org/abs/1802.04223.
    """
    return fenchel_young(scores, structure, target, SquaredNorm(temperature), reduction=reduction, backend=backend)


def margin_sparsemap_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None = None,
    *,
    temperature: float = 1.0,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """`sparsemap_loss` with a cost added to the scores of every structure: ⟨θ, z⟩ + cost(z).

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        cost: c, shaped like the parts: z costs ⟨c, z − y⟩, which is 0 for the target. By default ½ − y, half the parts
            in which z and y differ: the number of wrong labels, heads, spans where all structures have equally many.
        temperature: t, > 0.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.margin_sparsemap_loss(torch.tensor([0.0, 1.5]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(0.0625)

    Reference: Niculae, Martins, Blondel & Cardie 2018, https://arxiv.org/abs/1802.04223.
    """
    return _margin(scores, structure, target, cost, SquaredNorm(temperature), reduction, backend)


def perturbed_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    noise: AbstractNoise = Normal(),  # noqa: B008
    generator: torch.Generator | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """E max⟨θ + t ε, z⟩ − ⟨θ + t ε, y⟩ over z in Y, by samples; gradient the mean of the perturbed argmaxes − y.

    It is the perceptron loss under noise: the Fenchel-Young loss of the perturbed maximum, up to the constant Ω(y).
    Every sample is ≥ 0, because the noise counts for the target too.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        samples: how many draws of ε, ≥ 1.
        temperature: t, how strong the noise is, > 0.
        noise: the distribution of ε: `Normal()`, `Gumbel()`, `Logistic()`.
        generator: random number generator.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> structmax.perturbed_loss(torch.tensor([9.0, 0.0]), structmax.Simplex(), torch.tensor([1.0, 0.0]))
        tensor(0.)

    Reference: Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, https://arxiv.org/abs/2002.08676.
    """
    check.whole("samples", samples, 1)
    check.positive("temperature", temperature)
    problem = Problem.of(scores, structure, backend, wide=True)
    targets = problem.given("target", target)
    many = problem.repeated(samples)
    perturbed = many.at(plus(many.scores, noise_like(noise, many.scores, generator), temperature))
    every = loss(perturbed, tuple(y.repeat(samples, *(1,) * (y.dim() - 1)) for y in targets), Zero())
    return reduced(problem, every.reshape(samples, -1).mean(0), reduction)


def risk(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None = None,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """The expected cost ⟨c, μ(θ) − y⟩ of structures drawn from p(z) ∝ exp⟨θ, z⟩. Bounded by the cost, and not convex.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        cost: c, shaped like the parts: z costs ⟨c, z − y⟩, which is 0 for the target. By default ½ − y, half the parts
            in which z and y differ: the number of wrong labels, heads, spans where all structures have equally many.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none".

    Examples:
        >>> import torch, structmax
        >>> structmax.risk(torch.zeros(4), structmax.Simplex(), torch.tensor([1.0, 0.0, 0.0, 0.0]))
        tensor(0.7500)

    Reference: Smith & Eisner 2006, Minimum risk annealing, https://aclanthology.org/P06-2101.
    """
    problem = Problem.of(scores, structure, backend, wide=True)
    y = problem.given("target", target)
    away = plus(ENTROPY.point(problem), y, -1.0)
    return reduced(problem, inner(_costs(problem, y, cost), away), reduction)
