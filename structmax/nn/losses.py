"""The Fenchel-Young losses of the simplex as modules. `forward(scores, target)` is the function of the same name."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from structmax.losses import entmax15_loss, entmax_loss, linear_entmax_loss, normmax_loss, sparsemax_loss


class Loss(nn.Module):
    """Keeps a loss's settings; arguments mean what they mean in `torch.nn.CrossEntropyLoss`."""

    function: ClassVar[Callable[..., Tensor]]
    weight: Tensor | None

    def __init__(self, weight: Tensor | None, **settings: Any) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.settings = settings

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return type(self).function(scores, target, weight=self.weight, **self.settings)

    def extra_repr(self) -> str:
        weight = [] if self.weight is None else [f"weight={tuple(self.weight.shape)}"]
        return ", ".join([*(f"{name}={value!r}" for name, value in self.settings.items()), *weight])


class SparsemaxLoss(Loss):
    """`structmax.sparsemax_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.SparsemaxLoss()(torch.tensor([[0.0, 0.5]]), torch.tensor([1]))
        tensor(0.0625)
    """

    function = sparsemax_loss

    def __init__(
        self,
        dim: int = -1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight, dim=dim, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )


class Entmax15Loss(Loss):
    """`structmax.entmax15_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Entmax15Loss()(torch.tensor([[0.0, 2.0]]), torch.tensor([1]))
        tensor(0.)
    """

    function = entmax15_loss

    def __init__(
        self,
        dim: int = -1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight, dim=dim, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )


class EntmaxLoss(Loss):
    """`structmax.entmax_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.EntmaxLoss(alpha=1.0)(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.6931)
    """

    function = entmax_loss

    def __init__(
        self,
        alpha: float = 1.5,
        dim: int = -1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight,
            alpha=alpha,
            dim=dim,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )


class LinearEntmaxLoss(nn.Module):
    """`structmax.linear_entmax_loss` as a module: the weight, perhaps that of an embedding, is given with each call.

    Examples:
        >>> import torch, structmax
        >>> output = torch.nn.Linear(3, 5)
        >>> loss = structmax.nn.LinearEntmaxLoss(alpha=1.5)
        >>> loss(torch.zeros(2, 3), output.weight, torch.tensor([1, 0]), output.bias).shape
        torch.Size([])
    """

    def __init__(
        self,
        alpha: float = 1.5,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        block: int | None = None,
    ) -> None:
        super().__init__()
        self.alpha, self.ignore_index, self.reduction = alpha, ignore_index, reduction
        self.label_smoothing, self.block = label_smoothing, block

    def forward(self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear_entmax_loss(
            hidden,
            weight,
            target,
            self.alpha,
            bias=bias,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            block=self.block,
        )

    def extra_repr(self) -> str:
        names = ("alpha", "ignore_index", "reduction", "label_smoothing", "block")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class NormmaxLoss(Loss):
    """`structmax.normmax_loss` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.NormmaxLoss(alpha=2.0)(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.2929)
    """

    function = normmax_loss

    def __init__(
        self,
        alpha: float = 2.0,
        dim: int = -1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight,
            alpha=alpha,
            dim=dim,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
