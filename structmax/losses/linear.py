"""The entmax loss of a linear layer, without its scores: rows × words numbers are never in memory at once.

The forward pass makes the scores of a block of rows at a time, h Wᵀ + b, and keeps a loss and two numbers of each row.

Where α > 1 most probabilities are 0. The words that have one are few, mostly, and the forward pass lists them. The
gradient of a row's h is then a sum of few rows of W, and that of a word's weights a sum of few rows of h: with the
scores of the forward pass, that is one product of matrices where cross-entropy takes three.

Rows with many such words, and all rows where α ≤ 1, take the long way. From a score and the two numbers of its row the
probability is recovered, so the backward pass goes through the words: it makes the scores of these rows for some words
at a time, their gradient, and from that at once those of h, W and b. Few inputs at α = 1 have a file of their own.

Label smoothing needs no scores: their mean over the words is h · mean(W) + mean(b). Its gradient is added at the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import no_transforms, once
from structmax.calling import ask
from structmax.losses import few_inputs
from structmax.losses.split import IGNORED, Rows, Settings, among, part_gradient, refuse_above_two, solve
from structmax.losses.words import Words, across, alone, is_dtensor, like, slice_of, whole_of
from structmax.mappings.entmax_rules import ROOM

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# A block has this share of the rows where its scores would otherwise be few, yet no more rows than are enough for a
# product to keep a GPU busy.
SHARE, ENOUGH = 16, 1024
# Scores that a GPU makes and reads in less time than it takes to launch the kernels for them.
BUSY = 1 << 24
# As many words of a row are listed as one in ONE_OF of all, and FEW at least: the weights of so few are read one by one
# in less time than two products of matrices take.
ONE_OF, FEW = 256, 16
WHO = "A linear layer with its entmax loss"


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

    def portions(self) -> Iterator[tuple[slice, Tensor]]:
        """Words and their scores, as much memory as those of a block."""
        n, bias = len(self.weight), self.bias
        size = max(1, self.block * n // max(1, len(self.hidden)))
        for start in range(0, n, size):
            words = slice(start, min(start + size, n))
            own = None if bias is None else bias[words]
            yield words, torch.nn.functional.linear(self.hidden, self.weight[words], own)

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


class Lists(NamedTuple):
    """The words of each row that have a probability: how many there are, (B,), and the first of them, (B, most)."""

    found: Tensor
    words: Tensor
    p: Tensor

    @property
    def complete(self) -> Tensor:
        """Whether all of a row's words are listed: (B,)."""
        return self.found <= self.words.shape[1]


def listed(scores: Tensor, rows: Rows, settings: Settings) -> Lists:
    """The words of a block of rows that have a probability."""
    most = max(FEW, scores.shape[1] // ONE_OF)
    fields = {"alpha": settings.alpha, "most": most}
    return Lists(*ask(ROOM, "entmax_support", (scores, rows.state), 1, settings.backend, **fields))


class Gradients:
    """Those of hidden states, weights and bias; None where not wanted. First those by words that are listed, if any."""

    def __init__(self, layer: Layer, wanted: tuple[bool, ...], rows: Rows, lists: Lists | None, d_loss: Tensor) -> None:
        self.layer = layer
        hidden, weight, bias = (
            t if w else None for t, w in zip((layer.hidden, layer.weight, layer.bias), wanted, strict=True)
        )
        if lists is None:
            self.hidden, self.weight, self.bias = (
                None if t is None else torch.zeros_like(t) for t in (hidden, weight, bias)
            )
            return
        row, word, amount = _entries(rows, lists, d_loss, layer.settings)
        order = word.argsort(stable=True)
        self.hidden = self.weight = self.bias = None
        if hidden is not None:
            self.hidden = weighted_sums(layer.weight, word, amount, row, len(hidden))
        row, word, amount = row[order], word[order], amount[order]
        if weight is not None:
            self.weight = weighted_sums(layer.hidden, row, amount, word, len(weight))
        if bias is not None:
            # a table of a single row, in the dtype of sums
            sums = weighted_sums(amount.new_ones(1, 1), torch.zeros_like(row), amount, word, len(bias))
            self.bias = sums.squeeze(1).to(bias.dtype)

    def add(self, which: Tensor | slice, rows: Rows, d_loss: Tensor) -> None:
        """Adds those of some rows, by all their words. No row of these was listed: theirs of h are 0 so far."""
        rows, d_loss = Rows(*(t[which] for t in rows)), d_loss[which]
        layer = replace(self.layer, hidden=_counted(self.layer.hidden[which], rows.target))
        d_hidden = torch.zeros_like(layer.hidden, dtype=layer.wide)
        for words, scores in layer.portions():
            here = rows._replace(target=among(rows.target, words.start, words.stop))
            d_scores = part_gradient(scores, here, d_loss, layer.settings)
            if self.hidden is not None:
                add_product(d_hidden, d_scores, layer.weight[words])
            if self.weight is not None:
                self.weight[words].addmm_(d_scores.T, layer.hidden)
            if self.bias is not None:
                self.bias[words] += d_scores.sum(0)
        if self.hidden is not None:
            self.hidden[which] = d_hidden.to(self.hidden.dtype)

    def whole(self, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        """Those of all words and processes, with what label smoothing adds for cotangents (B,) of the losses."""
        layer, hidden = self.layer, self.hidden
        if hidden is not None:
            hidden = layer.words.sum(hidden)
        smoothing = layer.settings.label_smoothing
        if smoothing > 0:
            spread = smoothing * torch.where(layer.target == IGNORED, 0.0, d_loss).to(layer.wide)
            share = spread / layer.words.total
            if hidden is not None:
                hidden -= torch.outer(spread, layer.mean_word()[0]).to(hidden.dtype)
            if self.weight is not None:
                hidden_states = _counted(layer.hidden, layer.target).to(layer.wide)
                self.weight -= (share @ hidden_states).to(self.weight.dtype)
            if self.bias is not None:
                self.bias -= share.sum().to(self.bias.dtype)
        return hidden, self.weight, self.bias


def _counted(hidden: Tensor, target: Tensor) -> Tensor:
    """Hidden states, zeros in rows that count nothing: these may hold anything, and 0 · NaN is none."""
    return hidden.masked_fill((target == IGNORED).unsqueeze(-1), 0.0)


def _entries(rows: Rows, lists: Lists, d_loss: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Row, word and gradient of each score that has one, in rows whose words are all listed."""
    factor, target = torch.where(rows.target == IGNORED, 0.0, d_loss).to(lists.p.dtype).unsqueeze(1), rows.target
    target, share = target.unsqueeze(1), 1 - settings.label_smoothing
    is_listed = torch.arange(lists.words.shape[1], device=target.device) < lists.found.unsqueeze(1)
    is_target = is_listed & (lists.words == target)
    # The target's share is subtracted before anything is rounded. The last column is that of a target without a
    # probability.
    amounts = factor * torch.cat([torch.where(is_target, lists.p - share, lists.p), torch.full_like(factor, -share)], 1)
    words = torch.cat([lists.words, target], 1)
    taken = torch.cat([is_listed, (target >= 0) & ~is_target.any(1, keepdim=True)], 1)
    row, column = (taken & lists.complete.unsqueeze(1) & (factor != 0)).nonzero(as_tuple=True)
    return row, words[row, column], amounts[row, column]


def weighted_sums(table: Tensor, index: Tensor, weights: Tensor, owner: Tensor, count: int) -> Tensor:
    """Of each of `count` owners the sum of weights · table[index] over its entries, (count, d); owners are sorted."""
    ends = torch.searchsorted(owner, torch.arange(count + 1, device=owner.device))
    return torch.nn.functional.embedding_bag(
        index, table, ends, mode="sum", per_sample_weights=weights.to(table.dtype), include_last_offset=True
    )


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
    """The losses of rows: (B,). `target` is IGNORED where a row counts nothing."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, plan: Plan) -> Tensor:
        settings, ctx.plan = plan.settings, plan
        with torch.autocast(hidden.device.type, enabled=False):
            layer = plan.layer(hidden, weight, bias, target)
            known, lists = [], []
            for rows, scores in layer.blocks():
                known.append(solve(scores, target[rows], plan.words, settings))
                if plan.recorded and settings.alpha > 1:
                    lists.append(listed(scores, known[-1], settings))
            every = Rows(*map(torch.cat, zip(*known, strict=True)))
            ctx.save_for_backward(hidden, weight, bias, target, *every, *map(torch.cat, zip(*lists, strict=True)))
            mean = layer.mean_scores() if settings.label_smoothing > 0 else every.loss
            return settings.smoothed(every, mean).clone()

    @staticmethod
    @once(WHO)
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, target, *known = ctx.saved_tensors
        size = len(Rows._fields)
        rows, layer = Rows(*known[:size]), ctx.plan.layer(hidden, weight, bias, target)
        with torch.autocast(hidden.device.type, enabled=False):
            lists = Lists(*known[size:]) if known[size:] else None
            gradients = Gradients(layer, ctx.needs_input_grad[:3], rows, lists, d_loss)
            if lists is None:
                gradients.add(slice(None), rows, d_loss)
            else:
                left = ~lists.complete & (rows.target != IGNORED) & (d_loss != 0)
                if left.any():
                    gradients.add(left.nonzero().squeeze(1), rows, d_loss)
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

    The forward pass makes the scores of a block of rows at a time. Where α > 1 it lists the few words that have a
    probability, and the backward pass reads their weights alone; otherwise it makes the scores anew. Losses and
    gradients are those of `entmax_loss(linear(hidden, weight, bias), target)`, first derivatives only. Cross-entropy at
    α = 1.

    Args:
        hidden: (…, d) hidden states.
        weight: (n, d), a vector for each word, as in `torch.nn.Linear`.
        target: (…) integer words.
        alpha: a number > 0 and at most 2: above, scores that are made anew would have to be the same to the last bit.
        bias: (n,) or None.
        ignore_index: targets of this value are ignored and get no gradient.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target spread evenly over the words.
        block: rows whose scores are in memory at a time; in the backward pass it is as many scores of some words. By
            default they are about as many numbers as the hidden states, or a sixteenth of all scores, if that is more
            and of no more than 1,024 rows; on a GPU 16 million scores at least; and at α = 1 none at all where inputs
            and words are few.
        group: the processes among which the words are split: weight and bias here are those of this process's words,
            any number of them, in the order of the processes. Hidden states and targets are the same for all, and so
            are the loss and the gradient of the hidden states. A weight that is a DTensor, split along its words, needs
            no group.
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
    no_transforms(WHO)
    check.loss_settings(reduction, label_smoothing)
    check.number("alpha", alpha)
    refuse_above_two(alpha)
    given, hidden, target = hidden, whole_of("hidden", hidden), whole_of("target", target)
    if is_dtensor(weight):
        weight, group = slice_of("weight", weight, 0)
    if is_dtensor(bias):
        assert bias is not None
        bias, _ = slice_of("bias", bias, 0)
    _check_layer(hidden, weight, bias, or_empty=group is not None)
    rows = hidden.shape[:-1].numel()
    words = alone(len(weight)) if group is None else across(group, len(weight), rows, hidden.device)
    settings = Settings(float(alpha), ignore_index, reduction, label_smoothing, backend)
    flat = settings.targets(target, hidden, words.total)
    shape = rows, hidden.shape[-1], words.largest
    size = _default_block(*shape, on_gpu=hidden.is_cuda) if block is None else block
    check.whole("block", size, 1)
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    tensors = (hidden, weight) if bias is None else (hidden, weight, bias)
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    by_row = hidden.reshape(rows, hidden.shape[-1])
    plain = alpha == 1 and label_smoothing == 0 and group is None and block is None
    if plain and few_inputs.fits(hidden, weight, backend):
        biases = weight.new_zeros(len(weight)) if bias is None else bias
        losses = few_inputs.FewInputs.apply(*(t.to(dtype) for t in (by_row, weight, biases)), flat, backend)
    else:
        losses = LinearLoss.apply(by_row, weight, bias, flat, Plan(words, settings, size, dtype, recorded))
    loss = settings.reduced(losses, flat)
    return like(loss.reshape(target.shape) if reduction == "none" else loss, given)


def _default_block(rows: int, size: int, words: int, on_gpu: bool) -> int:
    """Of equal size on all processes, hence by the largest number of words."""
    busy = BUSY // words if on_gpu else 0
    return max(1, rows * size // words, min(ENOUGH, -(-rows // SHARE)), busy)


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
