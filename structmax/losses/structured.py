"""The losses people know by name: cases of `fenchel_young`, some at scores shifted by a cost, and the risk.

An instance in which no structure exists has no gradient. It costs 0, but +inf where a target has a forbidden part, and
by `crf_loss`, which is −log p(y) everywhere.
"""

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import composed
from structmax.inference.entropy import log_prob
from structmax.inference.log_partition import marginals
from structmax.inference.oracle import Oracle, Tensors, noise_like, plus
from structmax.inference.perturb import Noise, Normal
from structmax.inference.question import inner
from structmax.inference.smoothed import Regulariser
from structmax.losses.fenchel_young import (
    AbstractOmega,
    DistributionEntropy,
    Local,
    SquaredNorm,
    Zero,
    fenchel_young,
    like,
    loss,
    prepared,
    reduced,
    regularised,
)


def _costs(ask: Oracle, target: Tensors, cost: Scores | None) -> Tensors:
    """c with cost(z) = ⟨c, z − y⟩; by default ½ − y: half the parts in which z and y differ."""
    if cost is None:
        return regularised(ask.structure, tuple(0.5 - y for y in target))
    return like("cost", ask.structure, ask.structure.tensors(cost), target)


def _margin(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None,
    omega: AbstractOmega,
    reduction: str,
    backend: str,
) -> Tensor:
    ask, theta, y = prepared(scores, structure, target, backend)
    return reduced(loss(ask, plus(theta, _costs(ask, y, cost)), y, omega), reduction)


@composed
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
    return reduced(-log_prob(scores, structure, target, known=known, backend=backend), reduction)


@composed
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


@composed
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


@composed
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
    return _margin(scores, structure, target, cost, DistributionEntropy(), reduction, backend)


@composed
def sparsemap_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    temperature: float = 1.0,
    *,
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


@composed
def margin_sparsemap_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    cost: Scores | None = None,
    temperature: float = 1.0,
    *,
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


@composed
def smoothed_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    omega: Regulariser,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """DP_Ω(θ) − ⟨θ, y⟩, Ω in every maximum of the recursion: the CRF loss at Entropy(1). Gradient the smoothed one − y.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        omega: `Entropy(gamma)`, `L2(gamma)` or `Tsallis(alpha, gamma)`.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> x, y = torch.tensor([[0.0, 1.0], [1.5, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> structmax.smoothed_loss(x, structmax.MonotoneAlignment(), y, structmax.L2(1.0))
        tensor(0.0625)

    Reference: Mensch & Blondel 2018, https://arxiv.org/abs/1802.03676.
    """
    return fenchel_young(scores, structure, target, Local(omega), reduction=reduction, backend=backend)


@composed
def perturbed_loss(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    samples: int = 1,
    sigma: float = 1.0,
    *,
    noise: Noise = Normal(),  # noqa: B008
    generator: torch.Generator | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """E max⟨θ + σ ε, z⟩ − ⟨θ + σ ε, y⟩ over z in Y, by samples; gradient the mean of the perturbed argmaxes − y.

    It is the perceptron loss under noise: the Fenchel-Young loss of the perturbed maximum, but for the constant Ω(y).
    Every sample is ≥ 0, because the noise counts for the target too.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        samples: how many draws of ε, ≥ 1.
        sigma: σ, how strong the noise is, > 0.
        noise: the distribution of ε: `Normal()`, `Gumbel()`, `Logistic()`.
        generator: source of chance.
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
    check.positive("sigma", sigma)
    ask, theta, y = prepared(scores, structure, target, backend)
    many, targets = (tuple(t.expand(samples, *t.shape) for t in tensors) for tensors in (theta, y))
    perturbed = plus(many, noise_like(noise, many, generator), sigma)
    return reduced(loss(ask, perturbed, targets, Zero()).mean(0), reduction)


@composed
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
    ask, theta, y = prepared(scores, structure, target, backend)
    away = plus(ask.parts(marginals, theta), y, -1.0)
    return reduced(inner(_costs(ask, y, cost), away, structure), reduction)
