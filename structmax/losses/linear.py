"""The entmax loss of a linear layer, without its scores: rows × words numbers are never in memory at once.

A block of rows is taken at a time: its scores h Wᵀ + b, its losses, the gradient of its scores, and from that at once
the gradients of h, W and b. What stays of a block is its part of these, so memory does not grow with rows × words.

For a mean or a sum this happens in the forward pass, since the rows' cotangents are known but for a factor. For losses
of single rows they are not: the forward pass keeps two numbers per row, and the backward pass makes the scores again.

Where α > 1 most probabilities are 0, and so are most gradients of scores: the two products of the backward pass are
made for the words that any row of the block gives a probability, or has as its target.

Label smoothing needs no scores: their mean over the words is h · mean(W) + mean(b). Its gradient is added at the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import once
from structmax.losses.split import IGNORED, Rows, Settings, gradient, refuse_above_two, solve
from structmax.losses.words import Words, across, alone, is_dtensor, like, slice_of, whole_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Tensors = tuple[Tensor | None, ...]
# A block has this share of the rows where its scores would otherwise be few, yet no more rows than are enough: the
# gradient of the weights is read and written once for each block, and products of that many rows take as long.
SHARE, ENOUGH = 16, 1024
# Words that are gathered at a time, where few have a gradient.
FEW = 4096


@dataclass(frozen=True)
class Layer:
    """A linear layer and a loss. Tensors are those that are multiplied: under autocast, in its dtype."""

    # (B, d), (n, d), (n,) and (B,)
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor
    words: Words
    settings: Settings
    block: int

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums."""
        return torch.promote_types(self.hidden.dtype, torch.float32)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their scores."""
        for start in range(0, max(1, len(self.hidden)), self.block):
            rows = slice(start, start + self.block)
            yield rows, torch.nn.functional.linear(self.hidden[rows], self.weight, self.bias)

    def mean_word(self) -> tuple[Tensor, Tensor]:
        """The means over all words of W, (d,), and of b: ()."""
        total = self.weight.new_zeros(self.weight.shape[1] + 1, dtype=self.wide)
        total[:-1] = self.weight.sum(0, dtype=self.wide)
        if self.bias is not None:
            total[-1] = self.bias.sum(dtype=self.wide)
        total = self.words.sum(total) / self.words.total
        return total[:-1], total[-1]

    def mean_scores(self) -> Tensor:
        """Of each row, over all words: (B,)."""
        weight, bias = self.mean_word()
        return self.hidden.to(self.wide) @ weight + bias


class Gradients:
    """Those of hidden states, weights and bias, to which blocks of rows are added; None where not wanted."""

    def __init__(self, layer: Layer, wanted: tuple[bool, ...]) -> None:
        self.layer = layer
        of_hidden, of_weight, of_bias = wanted
        self.hidden = torch.empty_like(layer.hidden) if of_hidden else None
        self.weight = torch.zeros_like(layer.weight, dtype=layer.wide) if of_weight else None
        self.bias = layer.weight.new_zeros(len(layer.weight), dtype=layer.wide) if of_bias else None

    def add(self, rows: slice, d_scores: Tensor) -> None:
        hidden, weight = self.layer.hidden[rows], self.layer.weight
        used = self._used(d_scores)
        if used is None:
            if self.hidden is not None:
                torch.mm(d_scores, weight, out=self.hidden[rows])
            if self.weight is not None:
                add_product(self.weight, d_scores.T, hidden)
        else:
            d_hidden = torch.zeros_like(hidden, dtype=self.layer.wide)
            for few in used.split(FEW):
                d_few, weight_few = d_scores[:, few], weight[few]
                if self.hidden is not None:
                    add_product(d_hidden, d_few, weight_few)
                if self.weight is not None:
                    d_weight_few = torch.zeros_like(weight_few, dtype=self.layer.wide)
                    add_product(d_weight_few, d_few.T, hidden)
                    self.weight.index_add_(0, few, d_weight_few)
            if self.hidden is not None:
                self.hidden[rows] = d_hidden
        if self.bias is not None:
            self.bias += d_scores.sum(0, dtype=self.layer.wide)

    def _used(self, d_scores: Tensor) -> Tensor | None:
        """The words that have a gradient in any of these rows; None where it is most of them, or softmax."""
        if self.layer.settings.alpha <= 1:
            return None
        used = d_scores.any(0).nonzero().squeeze(1)
        return used if 2 * len(used) <= d_scores.shape[1] else None

    def whole(self, d_loss: Tensor, factor: Tensor | None = None) -> Tensors:
        """Those of all blocks and processes, with what label smoothing adds, times a factor.

        `d_loss` (B,) has been in the blocks already, and the factor has not: half precision has no room for it there.
        """
        layer = self.layer
        if self.hidden is not None:
            layer.words.sum(self.hidden)
        smoothing = layer.settings.label_smoothing
        if smoothing > 0:
            spread = smoothing * torch.where(layer.target == IGNORED, 0.0, d_loss).to(layer.wide)
            share = spread / layer.words.total
            if self.hidden is not None:
                self.hidden -= torch.outer(spread, layer.mean_word()[0]).to(self.hidden.dtype)
            if self.weight is not None:
                self.weight -= share @ layer.hidden.to(layer.wide)
            if self.bias is not None:
                self.bias -= share.sum()
        every = self.hidden, self.weight, self.bias
        if factor is not None:
            for gradient in every:
                if gradient is not None:
                    gradient *= factor
        return every


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b; the sum is float32 or wider, also of factors in half precision."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


@dataclass(frozen=True)
class Plan:
    """How a layer's loss is computed."""

    words: Words
    settings: Settings
    block: int
    # that of products, which autocast may have chosen
    dtype: torch.dtype
    # whether autograd records the loss
    recorded: bool

    def layer(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Layer:
        narrow = None if bias is None else bias.to(self.dtype)
        tensors = hidden.to(self.dtype), weight.to(self.dtype), narrow, target
        return Layer(*tensors, self.words, self.settings, self.block)


class LinearLoss(Function):
    """The losses of rows, or their sum or mean. `target` is IGNORED where a row counts nothing."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, plan: Plan) -> Tensor:
        settings, ctx.plan = plan.settings, plan
        ctx.at_once = plan.recorded and settings.reduction != "none"
        with torch.autocast(hidden.device.type, enabled=False):
            layer = plan.layer(hidden, weight, bias, target)
            gradients = Gradients(layer, ctx.needs_input_grad[:3] if ctx.at_once else (False,) * 3)
            ones = torch.ones_like(target, dtype=layer.wide)
            known = []
            for rows, scores in layer.blocks():
                known.append(solve(scores, target[rows], plan.words, settings))
                if ctx.at_once:
                    gradients.add(rows, gradient(scores, known[-1], ones[rows], plan.words, settings))
            every = Rows(*map(torch.cat, zip(*known, strict=True)))
            if ctx.at_once:
                count = (target != IGNORED).sum().clamp_min(1).to(layer.wide)
                kept = gradients.whole(ones, 1 / count if settings.reduction == "mean" else None)
                ctx.save_for_backward(*map(_in_dtype_of, kept, (hidden, weight, bias)))
            else:
                ctx.save_for_backward(hidden, weight, bias, target, *every)
            mean = layer.mean_scores() if settings.label_smoothing > 0 else every.loss
            return settings.reduced(settings.smoothed(every, mean), target).clone()

    @staticmethod
    @once("A linear layer with its entmax loss")
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Any, ...]:
        if ctx.at_once:
            return *(None if kept is None else kept * d_loss for kept in ctx.saved_tensors), None, None
        hidden, weight, bias, target, *known = ctx.saved_tensors
        layer = ctx.plan.layer(hidden, weight, bias, target)
        gradients = Gradients(layer, ctx.needs_input_grad[:3])
        for rows, scores in layer.blocks():
            these = Rows(*(tensor[rows] for tensor in known))
            gradients.add(rows, gradient(scores, these, d_loss[rows], layer.words, layer.settings))
        return *map(_in_dtype_of, gradients.whole(d_loss), (hidden, weight, bias)), None, None


def _in_dtype_of(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if gradient is None or like is None else gradient.to(like.dtype)


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    block: int | None = None,
    group: "ProcessGroup | None" = None,
    backend: str = "auto",
) -> Tensor:
    """`entmax_loss` of a linear layer, `hidden @ weight.T + bias`, whose scores are never all in memory.

    Scores are made for a block of rows at a time, and the gradients of hidden states, weights and bias are made of them
    at once. Losses and gradients are those of `entmax_loss(linear(hidden, weight, bias), target)`, first derivatives
    only. Cross-entropy at α = 1.

    Args:
        hidden: (…, d) hidden states.
        weight: (n, d), a vector for each word, as in `torch.nn.Linear`.
        target: (…) integer words.
        alpha: a number > 0.
        bias: (n,) or None.
        ignore_index: targets of this value are ignored and get no gradient.
        reduction: "mean", "sum" or "none". For "none" the backward pass makes the scores once more.
        label_smoothing: share of the target spread evenly over the words.
        block: rows whose scores are in memory at a time. By default their scores are about as large as the hidden
            states, or a sixteenth of all scores, if that is more and of no more than 1,024 rows.
        group: the processes among which the words are split: weight and bias here are those of this process's words,
            any number of them, in the order of the processes. Hidden states and targets are the same for all, and so
            are the loss and the gradient of the hidden states. `alpha` is at most 2. A weight that is a DTensor, split
            along its words, needs no group.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the targets' shape for "none": float32 or wider.

    Examples:
        >>> import torch, structmax
        >>> hidden, weight = torch.ones(2, 3), torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
        >>> structmax.linear_entmax_loss(hidden, weight, torch.tensor([1, 0]), reduction="none")
        tensor([0., 3.])

    Reference: Blondel, Martins & Niculae 2020, https://arxiv.org/abs/1901.02324.
    """
    check.loss_settings(reduction, label_smoothing)
    check.number("alpha", alpha)
    given, hidden, target = hidden, whole_of("hidden", hidden), whole_of("target", target)
    if is_dtensor(weight):
        weight, group = slice_of("weight", weight, 0)
    if is_dtensor(bias):
        assert bias is not None
        bias, _ = slice_of("bias", bias, 0)
    _check_layer(hidden, weight, bias, or_empty=group is not None)
    rows = hidden.shape[:-1].numel()
    words = alone(len(weight)) if group is None else across(group, len(weight), rows, hidden.device)
    if group is not None:
        refuse_above_two(alpha)
    settings = Settings(float(alpha), ignore_index, reduction, label_smoothing, backend)
    flat = settings.targets(target, hidden, words.total)
    size = _default_block(rows, hidden.shape[-1], words.largest) if block is None else block
    check.whole("block", size, 1)
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    tensors = (hidden, weight) if bias is None else (hidden, weight, bias)
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    plan = Plan(words, settings, size, dtype, recorded)
    loss = LinearLoss.apply(hidden.reshape(rows, hidden.shape[-1]), weight, bias, flat, plan)
    return like(loss.reshape(target.shape) if reduction == "none" else loss, given)


def _default_block(rows: int, size: int, words: int) -> int:
    """Of equal size on all processes, hence by the largest number of words."""
    return max(1, rows * size // words, min(ENOUGH, -(-rows // SHARE)))


def _check_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None, or_empty: bool) -> None:
    """(…, d), (n, d) and (n,), of one dtype unless autocast will see to it."""
    check.floating("hidden", hidden)
    check.floating("weight", weight)
    if hidden.dim() == 0 or weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"`hidden` and `weight` should have shapes (…, d) and (n, d), but have {tuple(hidden.shape)} and "
            f"{tuple(weight.shape)}. `torch.nn.Linear` keeps its weight in this layout."
        )
    if len(weight) == 0 and not or_empty:
        raise ValueError("`weight` should have at least one word, but has none.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"`bias` should have shape {tuple(weight.shape[:1])}, but has {tuple(bias.shape)}.")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        check.same_device(name, tensor, hidden)
        if tensor.dtype != hidden.dtype and not torch.is_autocast_enabled(hidden.device.type):
            raise TypeError(
                f"`{name}` should have the dtype of `hidden`, {hidden.dtype}, but has {tensor.dtype}. "
                "Try torch.autocast, which chooses one for both."
            )
