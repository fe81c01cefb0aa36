"""The losses of structures as modules. `forward(scores, structure, target)` is the function of the same name."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structmax.contract import AbstractStructure, Scores
from structmax.losses import (
    crf_loss,
    fenchel_young,
    margin_sparsemap_loss,
    perceptron_loss,
    perturbed_loss,
    softmax_margin_loss,
    sparsemap_loss,
    svm_loss,
)
from structmax.noise import AbstractNoise, Normal
from structmax.omega import AbstractOmega


class StructuredLoss(nn.Module):
    """Keeps a loss's settings."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def loss(self, scores: Scores, structure: AbstractStructure, target: Scores, **more: Any) -> Tensor:
        return type(self).function(scores, structure, target, **self.settings, **more)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())


class PlainLoss(StructuredLoss):
    """A loss of scores and target alone."""

    def forward(self, scores: Scores, structure: AbstractStructure, target: Scores) -> Tensor:
        return self.loss(scores, structure, target)


class MarginLoss(StructuredLoss):
    """A loss in which other structures have a cost, by default half the parts in which they differ from the target."""

    def forward(
        self, scores: Scores, structure: AbstractStructure, target: Scores, cost: Scores | None = None
    ) -> Tensor:
        return self.loss(scores, structure, target, cost=cost)


class CRFLoss(StructuredLoss):
    """`structmax.crf_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> chain, scores = structmax.LinearChain(), (torch.zeros(3, 2), torch.zeros(2, 2))
        >>> structmax.nn.CRFLoss()(scores, chain, chain.encode(torch.tensor([0, 1, 1]), scores))  # log 8
        tensor(2.0794)
    """

    function = crf_loss

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)

    def forward(
        self, scores: Scores, structure: AbstractStructure, target: Scores, known: Scores | None = None
    ) -> Tensor:
        return self.loss(scores, structure, target, known=known)


class PerceptronLoss(PlainLoss):
    """`structmax.perceptron_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.PerceptronLoss()(torch.tensor([0.0, 1.5]), structmax.Simplex(), torch.tensor([1.0, 0.0]))
        tensor(1.5000)
    """

    function = perceptron_loss

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class SVMLoss(MarginLoss):
    """`structmax.svm_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.SVMLoss()(torch.tensor([0.2, 0.9]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(0.3000)
    """

    function = svm_loss

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class SoftmaxMarginLoss(MarginLoss):
    """`structmax.softmax_margin_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.SoftmaxMarginLoss()(torch.zeros(2), structmax.Simplex(), torch.tensor([1.0, 0.0]))
        tensor(1.3133)
    """

    function = softmax_margin_loss

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class SparseMAPLoss(PlainLoss):
    """`structmax.sparsemap_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.SparseMAPLoss()(torch.tensor([0.0, 0.5]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(0.0625)
    """

    function = sparsemap_loss

    def __init__(self, temperature: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)


class MarginSparseMAPLoss(MarginLoss):
    """`structmax.margin_sparsemap_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.MarginSparseMAPLoss()(torch.tensor([0.0, 1.5]), structmax.Simplex(), torch.tensor([0.0, 1.0]))
        tensor(0.0625)
    """

    function = margin_sparsemap_loss

    def __init__(self, temperature: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(temperature=temperature, reduction=reduction)


class FenchelYoungLoss(PlainLoss):
    """`structmax.fenchel_young` as a module.

    Examples:
        >>> import torch, structmax
        >>> x, y = torch.tensor([[0.0, 1.0], [1.5, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> structmax.nn.FenchelYoungLoss(structmax.omega.LocalL2(1.0))(x, structmax.MonotoneAlignment(), y)
        tensor(0.0625)
    """

    function = fenchel_young

    def __init__(self, omega: AbstractOmega, reduction: str = "mean") -> None:
        super().__init__(omega=omega, reduction=reduction)


class PerturbedLoss(StructuredLoss):
    """`structmax.perturbed_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> loss = structmax.nn.PerturbedLoss(samples=3)
        >>> loss(torch.tensor([9.0, 0.0]), structmax.Simplex(), torch.tensor([1.0, 0.0]))
        tensor(0.)
    """

    function = perturbed_loss

    def __init__(
        self,
        samples: int = 1,
        temperature: float = 1.0,
        noise: AbstractNoise = Normal(),  # noqa: B008
        reduction: str = "mean",
    ) -> None:
        super().__init__(samples=samples, temperature=temperature, noise=noise, reduction=reduction)

    def forward(
        self,
        scores: Scores,
        structure: AbstractStructure,
        target: Scores,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return self.loss(scores, structure, target, generator=generator)
