"""The entmax loss of rows whose words are split over processes: no process sees the scores of another.

What a process needs to know of the others is the threshold of each row, τ, at which the probabilities of all words sum
to 1. Each solves its own words first, by the kernels of one process. A part of a row has a lower threshold than the
row, so the largest of these thresholds is a start from below (one all-reduce). From there Newton's method rises to the
row's own, as in structures/simplex/README.md, and its step needs three sums over the words: one all-reduce of three
numbers per row for each step. All processes get the same sums, to the last bit, and so stop at the same step.

At α = 1 the first step is exact. The gradient p − target needs no further exchange: p comes from the row's state.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import no_transforms, once
from structmax.calling import ask
from structmax.losses.words import Words, across, is_dtensor, like, slice_of, whole_of
from structmax.mappings.entmax_rules import NOTHING, ROOM

# The target of a row that counts nothing: no class, and not that of a row without a target.
IGNORED = NOTHING - 1
# Far more than Newton's method takes.
STEPS = 100
WHO = "The loss of a vocabulary that is split over processes"


@dataclass(frozen=True)
class Settings:
    """Of a loss over words; each means what it means in `entmax_loss`."""

    alpha: float
    ignore_index: int
    reduction: str
    label_smoothing: float
    backend: str

    def targets(self, target: Tensor, x: Tensor, classes: int) -> Tensor:
        """Integer targets for the rows of x (…, n), flattened, IGNORED where a row counts nothing."""
        if target.is_floating_point():
            raise TypeError(
                f"`target` should hold integer classes here, but has dtype {target.dtype}. "
                "Probabilities are for `structmax.entmax_loss` in one process."
            )
        target = check.hard_target(target, x, self.ignore_index, classes).reshape(-1)
        return torch.where(target == self.ignore_index, IGNORED, target)

    def smoothed(self, rows: "Rows", mean: Tensor) -> Tensor:
        """The loss of each row with the share of the target that is spread: `mean` is that of its scores."""
        if self.label_smoothing == 0:
            return rows.loss
        # The loss of class c is this row's plus x[target] − x[c].
        spread = self.label_smoothing * (rows.chosen - mean)
        return torch.where(rows.target == IGNORED, 0.0, rows.loss + spread).to(rows.loss.dtype)

    def reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        """The losses of rows, of which IGNORED ones are 0; their sum; or their mean over the others."""
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / (target != IGNORED).sum()


class Rows(NamedTuple):
    """What is known of each row of a block of scores, (B,) each but the state."""

    # Ω*(x) − x[target], 0 where it is ignored
    loss: Tensor
    # x[target], 0 where it is ignored
    chosen: Tensor
    # from which the probabilities are recovered: (B, 2)
    state: Tensor
    # the target among the words here; NOTHING where another process has it
    target: Tensor


def solve(x: Tensor, target: Tensor, words: Words, settings: Settings) -> Rows:
    """Loss and state of each row, of scores (B, n) and targets (B,), which count all words or are IGNORED."""
    used, alpha, backend = target != IGNORED, settings.alpha, settings.backend
    if words.group is None:
        loss, state = ask(ROOM, "entmax_value", (x, target), 1, backend, alpha=alpha, ignored=IGNORED)
        chosen = x.gather(-1, torch.where(used, target, 0).unsqueeze(-1)).squeeze(-1).to(loss.dtype)
        # where nothing is feasible the target has no gradient either
        target = torch.where(used & (x.amax(-1) == -math.inf), NOTHING, target)
        return Rows(loss, torch.where(used, chosen, 0.0), state, target)
    peak, start = words.maximum(_own_bounds(x, alpha, backend)).unbind(1)
    broken, feasible = peak == math.inf, peak > -math.inf
    sound = feasible & ~broken
    origin, tau = torch.where(sound, peak, 0.0), torch.where(sound, start - peak, 0.0)
    here = among(torch.where(sound, target, torch.where(used, NOTHING, IGNORED)), words.start, words.start + words.size)
    gap = (_at(x, here).double() - torch.where(here >= 0, origin, 0.0)).unsqueeze(-1)
    tau, ahead, gap = _threshold(x, origin, tau, gap, alpha, words)
    wide = torch.promote_types(x.dtype, torch.float32)
    state = torch.stack([origin, tau], -1).masked_fill(broken.unsqueeze(-1), math.nan)
    loss = torch.where(feasible, (ahead - gap).clamp_min(0), math.inf).masked_fill(broken, math.nan)
    loss = torch.where(used, loss, 0.0)
    return Rows(loss.to(wide), torch.where(used, gap + origin, 0.0).to(wide), state.to(wide), here)


def _own_bounds(x: Tensor, alpha: float, backend: str) -> Tensor:
    """Of the words here: the largest score and the threshold, (B, 2). No words, none feasible: −inf; NaN: +inf."""
    if x.shape[1] == 0:
        return torch.full((len(x), 2), -math.inf, dtype=torch.float64, device=x.device)
    nothing = torch.full((len(x),), NOTHING, device=x.device)
    value, state = ask(ROOM, "entmax_value", (x, nothing), 1, backend, alpha=alpha, ignored=IGNORED)
    peak, tau = state.double().unbind(1)
    bounds = torch.where((value == -math.inf).unsqueeze(-1), -math.inf, torch.stack([peak, peak + tau], -1))
    return bounds.masked_fill(bounds.isnan(), math.inf)


def among(target: Tensor, start: int, stop: int) -> Tensor:
    """Targets counted from the first of some words; NOTHING where they are others."""
    own = target - start
    return torch.where(target < 0, target, torch.where((own >= 0) & (target < stop), own, NOTHING))


def _at(x: Tensor, index: Tensor) -> Tensor:
    """x[index] of each row, 0 where the index is negative."""
    if x.shape[1] == 0:
        return x.new_zeros(len(x))
    return torch.where(index >= 0, x.gather(-1, index.clamp_min(0).unsqueeze(-1)).squeeze(-1), 0.0)


def _threshold(
    x: Tensor, origin: Tensor, tau: Tensor, gap: Tensor, alpha: float, words: Words
) -> tuple[Tensor, Tensor, Tensor]:
    """τ, Ω*(x) and the target's score, all less the origin, by Newton's method from a τ below the row's own.

    Ω* is the minimum over τ of τ + (Σp − 1)/α + (1 − 1/α) Σ p (x − τ): where the last step was short, its value before
    that step is off by the square of the step.
    """
    e, tolerance = alpha - 1, 1e-13 if x.dtype == torch.float64 else 4e-7
    chosen, ahead = gap, gap
    for step in range(STEPS):
        (sums,) = ask(ROOM, "entmax_sums", (x, torch.stack([origin, tau], -1)), 1, "auto", alpha=alpha)
        # the target's score travels with the first sums
        sums = words.sum(sums if step else torch.cat([sums, gap], -1))
        mass, slope, scores = sums.unbind(-1)[:3]
        chosen = chosen if step else sums[:, 3]
        if alpha == 1:
            tau = tau + torch.where(mass > 0, mass, 1.0).log()
            return tau, tau, chosen
        ahead = tau + (mass - 1) / alpha + (e / alpha) * (scores - tau * mass)
        move = torch.where(slope > 0, (mass - mass ** (1 - e)) / (e * slope), 0.0)
        tau = tau + move
        if not bool((move.abs() > tolerance).any()):
            break
    return tau, ahead, chosen


def part_gradient(x: Tensor, rows: Rows, d_loss: Tensor, settings: Settings) -> Tensor:
    """d_loss · (p − (1 − label_smoothing) e_target) of some words, (B, n), among which the targets are counted."""
    if x.numel() == 0:
        return torch.zeros_like(x)
    tensors = x, rows.state, rows.target, d_loss.to(rows.state.dtype)
    (d_x,) = ask(ROOM, "entmax_part_gradient", tensors, 1, "auto", alpha=settings.alpha, ignored=IGNORED)
    if settings.label_smoothing > 0:
        less = torch.where(rows.target >= 0, settings.label_smoothing * d_loss, 0.0).to(d_x.dtype)
        d_x.scatter_add_(-1, rows.target.clamp_min(0).unsqueeze(-1), less.unsqueeze(-1))
    return d_x


class SplitLoss(Function):
    """The loss of each row: (B,). `target` is IGNORED where a row counts nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, words: Words, settings: Settings) -> Tensor:
        rows = solve(x, target, words, settings)
        ctx.save_for_backward(x, *rows)
        ctx.words, ctx.settings = words, settings
        mean = rows.loss
        if settings.label_smoothing > 0:
            mean = words.sum(x.sum(-1, dtype=torch.float64)) / words.total
        return settings.smoothed(rows, mean).clone()

    @staticmethod
    @once(WHO)
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Any, ...]:
        x, *known = ctx.saved_tensors
        rows = Rows(*known)
        d_x = part_gradient(x, rows, d_loss, ctx.settings)
        if ctx.settings.label_smoothing > 0:
            share = (ctx.settings.label_smoothing / ctx.words.total) * d_loss
            d_x -= torch.where(rows.target == IGNORED, 0.0, share).to(d_x.dtype).unsqueeze(-1)
        return d_x, None, None, None


def split_loss(scores: Tensor, target: Tensor, dim: int, group: Any, settings: Settings) -> Tensor:
    """`entmax_loss` of scores whose classes along `dim` are split over the processes of a group or of a DTensor."""
    no_transforms(WHO)
    refuse_above_two(settings.alpha)
    where = check.axis(scores, dim, or_empty=True)
    given, target = scores, whole_of("target", target)
    if is_dtensor(scores):
        scores, group = slice_of("scores", scores, where)
    x = scores if where == -1 else scores.movedim(where, -1)
    words = across(group, x.shape[-1], x.shape[:-1].numel(), x.device)
    flat = settings.targets(target, x, words.total)
    losses = SplitLoss.apply(x.reshape(len(flat), x.shape[-1]), flat, words, settings)
    loss = settings.reduced(losses, flat).to(scores.dtype)
    return like(loss.reshape(target.shape) if settings.reduction == "none" else loss, given)


def refuse_above_two(alpha: float) -> None:
    if alpha > 2:
        raise ValueError(
            f"`alpha` should be at most 2 where words are split over processes or scores made anew, but is {alpha}: "
            "above 2 probabilities change at any rate with their scores. Try `structmax.entmax_loss` in one process."
        )
