"""Rows of scores along a dimension, with what is given for each row or entry. `dim` is moved here and nowhere else."""

import math

import torch
from torch import Tensor

from structmax.check.arguments import (
    between,
    boolean,
    broadcasts,
    choice,
    floating,
    readable,
    same_device,
    whole_numbers,
)


def axis(scores: Tensor, dim: int, *, or_empty: bool = False) -> int:
    """`dim` counted from the end: −1, −2, …"""
    floating("scores", scores)
    rank = scores.dim()
    if rank == 0:
        raise ValueError("`scores` should have at least one dimension, but is a scalar. Try `scores[None]`.")
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise ValueError(
            f"`dim` should be between {-rank} and {rank - 1} for scores of shape {tuple(scores.shape)}, but is {dim!r}."
        )
    if scores.shape[dim] == 0 and not or_empty:
        raise ValueError(
            f"`scores` should have at least one entry along `dim`={dim}, but has shape {tuple(scores.shape)}."
        )
    return dim if dim < 0 else dim - rank


def last(scores: Tensor, dim: int, mask: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Scores with `dim` moved to the end, and −inf where `mask` is False or past `lengths`."""
    where = axis(scores, dim)
    if mask is not None:
        scores = scores.masked_fill(~_mask(mask, scores), -math.inf)
    moved = scores if where == -1 else scores.movedim(where, -1)
    if lengths is not None:
        moved = moved.masked_fill(~prefix(lengths, moved), -math.inf)
    return moved


def back(moved: Tensor, dim: int) -> Tensor:
    """The inverse: the last dimension to where `dim` was in a tensor of the same rank."""
    return moved if dim == -1 else moved.movedim(-1, dim)


def _mask(mask: Tensor, scores: Tensor) -> Tensor:
    boolean("mask", mask, ", True where an entry may be used")
    same_device("mask", mask, scores)
    if not broadcasts(mask.shape, scores.shape):
        raise ValueError(
            f"`mask` should broadcast to the scores' shape {tuple(scores.shape)}, but has {tuple(mask.shape)}. "
            "For attention scores (B, H, Q, K) a key mask is `mask[:, None, None, :]`."
        )
    return mask


def prefix(lengths: Tensor, moved: Tensor) -> Tensor:
    """True at the first `lengths` entries of the last dimension: broadcasts to `moved`."""
    whole_numbers("lengths", lengths)
    batch = moved.shape[:-1]
    if not broadcasts(lengths.shape, batch):
        raise ValueError(
            f"`lengths` should broadcast to the batch shape {tuple(batch)} (the scores without `dim`), "
            f"but has {tuple(lengths.shape)}."
        )
    between("lengths", lengths, moved.shape[-1], "the size of `dim`")
    return torch.arange(moved.shape[-1], device=moved.device) < lengths.to(moved.device).unsqueeze(-1)


def per_row(name: str, value: float | Tensor, moved: Tensor, dim: int) -> float | Tensor:
    """A number, or a tensor brought to the batch shape of `moved`, scores whose `dim` is the last one now.

    A vector runs along the heads of attention scores (…, H, Q, K), or along the rows of a matrix. Any other shape
    broadcasts to the scores with size 1 at `dim`.
    """
    if not isinstance(value, Tensor):
        return float(value)
    # Half-precision scores are computed in float32, and so is what shapes them.
    dtype = torch.promote_types(moved.dtype, torch.float32)
    batch = moved.shape[:-1]
    if value.dim() == 0:
        return value.to(moved.device, dtype).expand(batch)
    same_device(name, value, moved)
    rows = value.to(dtype)
    if value.dim() == 1 and value.shape[0] > 1 and moved.dim() >= 2:
        rows = rows.unsqueeze(-1) if moved.dim() >= 3 else rows
        heads = batch[-2] if moved.dim() >= 3 else batch[-1]
        if value.shape[0] != heads:
            raise ValueError(
                f"`{name}` is a vector of {value.shape[0]} numbers: it should have one for each of the {heads} heads "
                f"of scores (…, H, Q, K), or rows of a matrix. For another layout, give it size 1 at `dim`, "
                f"so that it broadcasts to the scores."
            )
        return rows.expand(batch)
    where = dim if dim < 0 else dim - moved.dim()
    full = (1,) * (moved.dim() - value.dim()) + tuple(value.shape)
    if len(full) != moved.dim() or full[where] != 1 or not broadcasts(full, _restored(moved, where)):
        raise ValueError(
            f"`{name}` should broadcast to the scores' shape {tuple(_restored(moved, where))} with size 1 at "
            f"`dim`={where}, but has shape {tuple(value.shape)}."
        )
    return rows.reshape(full).movedim(where, -1).squeeze(-1).expand(batch)


def _restored(moved: Tensor, where: int) -> tuple[int, ...]:
    shape = list(moved.shape[:-1])
    shape.insert(len(shape) + 1 + where, moved.shape[-1])
    return tuple(shape)


def per_entry(name: str, value: float | Tensor, scores: Tensor) -> Tensor:
    """A number or a tensor, broadcast to the scores."""
    if not isinstance(value, Tensor):
        return torch.full_like(scores, float(value), dtype=torch.promote_types(scores.dtype, torch.float32))
    floating(name, value)
    if value.dim() == 0:
        return value.to(scores.device).expand(scores.shape)
    same_device(name, value, scores)
    if not broadcasts(value.shape, scores.shape):
        raise ValueError(
            f"`{name}` should broadcast to the scores' shape {tuple(scores.shape)}, but has {tuple(value.shape)}."
        )
    return value.expand(scores.shape)


def feasible_bounds(lower: Tensor, upper: Tensor, total: Tensor, *, is_budget: bool) -> None:
    """lower ≤ upper and Σ lower ≤ total ≤ Σ upper. Reads values, also from a GPU."""
    if (
        torch.compiler.is_compiling()
        or type(total) is not Tensor
        or torch._C._functorch.is_functorch_wrapped_tensor(lower)
    ):
        return
    slack = 1e-5 * total.abs() + 1e-6
    crossed, above, below = lower > upper, lower.sum(-1) > total + slack, upper.sum(-1) < total - slack
    if not bool(crossed.any() | above.any() | below.any()):
        return
    if bool(crossed.any()):
        at = tuple(crossed.nonzero()[0].tolist())
        raise ValueError(
            f"`lower` should be ≤ `upper` everywhere, but at {at} (with `dim` last) it is "
            f"{lower[at]:g} > {upper[at]:g}."
        )
    if is_budget:
        at = tuple((above | below).nonzero()[0].tolist())
        raise ValueError(
            f"`budget` should be between 0 and the number of usable entries of each row, {upper[at].sum():g} in row "
            f"{at}, but is {total[at]:g}. Try a smaller budget, or a mask that leaves more entries."
        )
    which, word, bound = (above, "lower", lower) if bool(above.any()) else (below, "upper", upper)
    at = tuple(which.nonzero()[0].tolist())
    relation = "at most" if word == "lower" else "at least"
    raise ValueError(
        f"`{word}` should sum to {relation} {total[at]:g} over the usable entries of each row, but sums to "
        f"{bound[at].sum():g} in row {at}. Try looser bounds, or a mask that leaves more entries."
    )


def loss_settings(reduction: str, label_smoothing: float) -> None:
    choice("reduction", reduction, ("mean", "sum", "none"))
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"`label_smoothing` should be between 0 and 1, but is {label_smoothing}.")


def hard_target(target: Tensor, x: Tensor, ignore_index: int, classes: int | None = None) -> Tensor:
    """Integer classes, one for each row of x (…, n), as int64: as many classes as entries, or as is said."""
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"`target` should hold integer classes or probabilities, but has dtype {target.dtype}.")
    same_device("target", target, x)
    if target.shape != (batch := x.shape[:-1]):
        raise ValueError(
            f"`target` should have shape {tuple(batch)}, the scores without `dim`, but has {tuple(target.shape)}. "
            "Probabilities should be floating point and have the scores' shape."
        )
    # A byte could not be compared with a negative number.
    target = target.long()
    if readable(target) and target.numel():
        n = x.shape[-1] if classes is None else classes
        lowest, highest = map(int, target.aminmax())
        if lowest < 0 or highest >= n:
            wrong = target[(target != ignore_index) & ((target < 0) | (target >= n))]
            if wrong.numel():
                raise ValueError(
                    f"`target` should lie between 0 and {n - 1} or be ignore_index={ignore_index}, "
                    f"but holds {int(wrong[0])}."
                )
    return target


def soft_target(target: Tensor, x: Tensor, dim: int) -> Tensor:
    """Probabilities in the scores' shape, with `dim` moved to the end."""
    same_device("target", target, x)
    moved = target.movedim(dim, -1) if target.dim() == x.dim() else target
    if moved.shape != x.shape:
        raise ValueError(
            f"`target` of probabilities should have the scores' shape {tuple(back(x, dim).shape)}, "
            f"but has {tuple(target.shape)}. Classes should be integers."
        )
    return moved


def class_weights(weight: Tensor, x: Tensor) -> None:
    floating("weight", weight)
    same_device("weight", weight, x)
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"`weight` should have shape {tuple(x.shape[-1:])}, but has {tuple(weight.shape)}.")
