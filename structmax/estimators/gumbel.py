"""Relaxed and hard samples of one item, or of k, by Gumbel noise.

argmax(x + G), with G of independent standard Gumbels, is an exact draw from softmax(x). Replacing the argmax by a
mapping relaxes it; `hard` takes the argmax forward and the mapping's gradient backward (straight-through).
"""

import torch
from torch import Tensor

from structmax import check
from structmax.mappings.entmax import entmax
from structmax.numerics.noise import gumbel_like
from structmax.questions.argmax import argmax
from structmax.questions.log_partition import marginals
from structmax.structures.subset import Subset


def gumbel_entmax(
    scores: Tensor,
    alpha: float | Tensor = 1.5,
    temperature: float = 1.0,
    hard: bool = False,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """A relaxed sample entmax((x + G) / temperature), with G standard Gumbel noise.

    Args:
        scores: x, any shape; −inf forbids an entry.
        alpha: as in `entmax`: 1 gives the Gumbel-softmax (Concrete) distribution.
        temperature: a number > 0; the sample tends to a one-hot as it falls.
        hard: return the one-hot argmax(x + G), an exact draw from softmax(x), with the gradient of the relaxed sample.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Shape and dtype of the scores; zeros where no entry may be used.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.gumbel_entmax(torch.zeros(3), hard=True, generator=g).sum()
        tensor(1.)

    Reference: Jang, Gu & Poole 2017, https://arxiv.org/abs/1611.01144; Maddison, Mnih & Teh 2017, https://arxiv.org/abs/1611.00712.
    """
    check.positive("temperature", temperature)
    x = check.back(check.last(scores, dim, mask, lengths), dim)
    perturbed = x + gumbel_like(x, generator)
    soft = entmax(perturbed / temperature, alpha, dim, backend=backend).to(scores.dtype)
    if not hard:
        return soft
    best = perturbed.detach().argmax(dim, keepdim=True)
    usable = (x.detach() > -torch.inf).any(dim, keepdim=True)
    one_hot = torch.zeros_like(soft).scatter(dim, best, usable.to(soft.dtype))
    return one_hot + (soft - soft.detach())


def gumbel_softmax(
    scores: Tensor,
    temperature: float = 1.0,
    hard: bool = False,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """A relaxed sample softmax((x + G) / temperature): `gumbel_entmax` at α = 1. Arguments as there.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.gumbel_softmax(torch.zeros(3), generator=g).sum()
        tensor(1.)
    """
    return gumbel_entmax(
        scores, 1.0, temperature, hard, dim, mask=mask, lengths=lengths, generator=generator, backend=backend
    )


def gumbel_sparsemax(
    scores: Tensor,
    temperature: float = 1.0,
    hard: bool = False,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """A relaxed, sparse sample sparsemax((x + G) / temperature): `gumbel_entmax` at α = 2. Arguments as there.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.gumbel_sparsemax(torch.zeros(3), temperature=0.1, generator=g).sum()
        tensor(1.)
    """
    return gumbel_entmax(
        scores, 2.0, temperature, hard, dim, mask=mask, lengths=lengths, generator=generator, backend=backend
    )


def gumbel_topk(
    scores: Tensor,
    k: int,
    temperature: float = 1.0,
    hard: bool = False,
    *,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """A relaxed draw of k distinct items: marginals of the k-subsets at scores (x + G) / temperature.

    The k largest of x + G are k draws from softmax(x) without replacement (Gumbel-top-k). `hard` returns them, with the
    gradient of the relaxed draw.

    Args:
        scores: x (…, n); −inf forbids an item.
        k: how many items.
        temperature: a number > 0; the draw tends to k ones as it falls.
        hard: return the k-hot argmax of x + G.
        lengths: how many leading items each instance has.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Shape and dtype of the scores, each row summing to k; zeros where fewer than k items may be used.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.gumbel_topk(torch.zeros(5), 2, generator=g).sum()
        tensor(2.)

    Reference: Kool, van Hoof & Welling 2019, https://arxiv.org/abs/1903.06059; Xie & Ermon 2019, https://arxiv.org/abs/1901.10517.
    """
    check.positive("temperature", temperature)
    subsets = Subset(k, lengths=lengths)
    perturbed = scores + gumbel_like(scores, generator).to(scores.dtype)
    soft = marginals(perturbed / temperature, subsets, backend=backend)
    if not hard:
        return soft
    return argmax(perturbed.detach(), subsets, backend=backend) + (soft - soft.detach())
