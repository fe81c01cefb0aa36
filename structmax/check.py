"""Shape, dtype and device checks, and all their wording. `dim` is moved here and nowhere else.

Every message says what should be, what is, and what to try. Nothing here reads a value from a GPU.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Kernels count nodes and parts in int32.
LARGEST_ID = 2**31 - 1


def readable(tensor: Tensor) -> bool:
    """Whether values may be looked at: on the CPU, outside compilation and function transforms."""
    return (
        not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def floating(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"`{name}` should be a torch tensor, but is a {type(tensor).__name__}. Try torch.as_tensor(...)."
        )
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` should be floating point, but has dtype {tensor.dtype}. Try `{name}.float()`.")


def same_device(name: str, tensor: Tensor, scores: Tensor) -> None:
    if tensor.device != scores.device:
        raise ValueError(
            f"`{name}` should be on the device of the scores, {scores.device}, but is on {tensor.device}. "
            f"Try `{name}.to(scores.device)`."
        )


def axis(scores: Tensor, dim: int) -> int:
    """`dim` counted from the end: −1, −2, …"""
    floating("scores", scores)
    rank = scores.dim()
    if rank == 0:
        raise ValueError("`scores` should have at least one dimension, but is a scalar. Try `scores[None]`.")
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise ValueError(
            f"`dim` should be between {-rank} and {rank - 1} for scores of shape {tuple(scores.shape)}, but is {dim!r}."
        )
    if scores.shape[dim] == 0:
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
    """The way back: the last dimension to where `dim` was in a tensor of the same rank."""
    return moved if dim == -1 else moved.movedim(-1, dim)


def boolean(name: str, mask: object, meaning: str = "") -> None:
    """A bool tensor; `meaning` says what True stands for."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"`{name}` should be a bool tensor{meaning}, but is {kind}. Try `{name}.bool()`.")


def whole_numbers(name: str, tensor: object) -> None:
    """A tensor of integers."""
    if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"`{name}` should be an integer tensor, but is {kind}. Try torch.as_tensor({name}).")


def between(name: str, given: Tensor, size: int, what: str) -> None:
    """Integers between 0 and `size`, where values may be looked at."""
    if not readable(given) or not given.numel():
        return
    # A byte could not be compared with a larger size.
    low, high = (int(end) for end in given.long().aminmax())
    if low < 0 or high > size:
        raise ValueError(f"`{name}` should be between 0 and {size}, {what}, but lie between {low} and {high}.")


def _mask(mask: Tensor, scores: Tensor) -> Tensor:
    boolean("mask", mask, ", True where an entry may be used")
    same_device("mask", mask, scores)
    if not broadcasts(mask.shape, scores.shape):
        raise ValueError(
            f"`mask` should broadcast to the scores' shape {tuple(scores.shape)}, but has {tuple(mask.shape)}. "
            "For attention scores (B, H, Q, K) a key mask is `mask[:, None, None, :]`."
        )
    return mask


def mask_like(name: str, mask: object, like: Tensor) -> None:
    """A bool tensor that broadcasts to `like`."""
    boolean(name, mask)
    assert isinstance(mask, Tensor)
    if not broadcasts(mask.shape, like.shape):
        raise ValueError(f"`{name}` should broadcast to shape {tuple(like.shape)}, but has {tuple(mask.shape)}.")


def instances(name: str, given: object, batch: Sequence[int]) -> None:
    """Integers, one for each instance of the batch, or None."""
    if given is None:
        return
    whole_numbers(name, given)
    assert isinstance(given, Tensor)
    if not broadcasts(given.shape, batch):
        raise ValueError(
            f"`{name}` should broadcast to the batch shape {tuple(batch)} of the scores, but has {tuple(given.shape)}."
        )


def lengths(name: str, given: Tensor | None, batch: Sequence[int], size: int, what: str) -> None:
    """Lengths: integers between 0 and `size`, one for each instance of the batch, or None."""
    instances(name, given, batch)
    if given is not None:
        between(name, given, size, f"the number of {what}")


def inside(lengths: Tensor | None, size: int, like: Tensor) -> Tensor | None:
    """True at the first `lengths` of `size` places, one row for each instance; None where there is no padding."""
    if lengths is None:
        return None
    return torch.arange(size, device=like.device) < lengths.to(like.device).unsqueeze(-1)


def encodable(
    name: str, given: Tensor, valid: Tensor, real: Tensor | None, wanted: str, hint: str, *, columns: bool = False
) -> Tensor:
    """Which entries (…, n) of what `encode` is given it should mark: the valid ones that are no padding.

    Padding, where `real` is False, may hold anything. Whatever else is not valid is refused, but for instances of −1
    alone: so `decode` writes that nothing is feasible. With `columns` an entry is a row, the last dimension of `given`.
    """
    here = valid if real is None else valid & real
    if readable(here):
        counts = torch.ones_like(here) if real is None else real.expand_as(here)
        none = (given == -1).all(-1) if columns else given == -1
        wrong = counts & ~valid & ~(none | ~counts).all(-1, keepdim=True)
        if bool(wrong.any()):
            event = given.shape[-1:] if columns else ()
            found = given.expand(*wrong.shape, *event)[wrong][0].tolist()
            raise ValueError(f"`{name}` should {wanted}, but hold {found}.{hint}")
    return here


def hyperedges(head: Tensor, tails: Tensor, part: Tensor | None) -> None:
    """Integer tensors head (E,), tails (E, T) or (E,), part (E,) or (E, K), with tails before heads."""
    for name, tensor in (("head", head), ("tails", tails), ("part", part)):
        if tensor is None:
            continue
        whole_numbers(name, tensor)
        shapes = "(E,)" if name == "head" else "(E,) or (E, …)"
        if tensor.dim() not in ((1,) if name == "head" else (1, 2)) or len(tensor) != len(head) or not len(head):
            raise ValueError(
                f"`{name}` should have shape {shapes} with one row for each of at least one edge, E = {len(head)}, "
                f"but has {tuple(tensor.shape)}."
            )
        ids(name, tensor)
    _in_order(head, tails)


def ids(name: str, given: Tensor) -> None:
    """Numbers of nodes or parts, one row for each edge: at least −1, and small enough for the kernels."""
    given = given.long()
    wrong = (given < -1) | (given >= LARGEST_ID)
    if bool(wrong.any()):
        edge, number = int(wrong.nonzero()[0, 0]), int(given[wrong][0])
        raise ValueError(
            f"`{name}` should be between −1, for none, and {LARGEST_ID - 1}, but edge {edge} has {number}."
        )


def grouped_hyperedges(first: Tensor, tails: Tensor, parts: Tensor) -> None:
    """int32 tensors first (V + 1,), tails (E, T), parts (E, P): edges by head, with tails before heads."""
    edges = len(tails)
    counts = first.diff()
    shaped = first.dim() == 1 and len(first) and tails.dim() == parts.dim() == 2 and len(parts) == edges
    if not shaped or int(first[0]) != 0 or int(first[-1]) != edges or bool((counts < 0).any()):
        raise ValueError(
            f"heads should be nodes between 0 and {len(first) - 2}, with each of the {edges} edges at one of them, "
            f"but the nodes have {counts.tolist()[:10]} edges. Try Hyperedges.of with all nodes counted."
        )
    for name, tensor in (("first", first), ("tails", tails), ("parts", parts)):
        if tensor.dtype != torch.int32:
            raise TypeError(f"`{name}` should be int32, but is {tensor.dtype}. Try Hyperedges.of.")
        ids(name, tensor)
    _in_order(torch.arange(len(counts)).repeat_interleave(counts), tails)


def _in_order(head: Tensor, tails: Tensor) -> None:
    rows = tails.unsqueeze(1) if tails.dim() == 1 else tails
    late = (rows >= head.unsqueeze(1)).any(1)
    if bool(late.any()) or (len(head) and int(head.min()) < 0):
        edge = int(late.nonzero()[0]) if bool(late.any()) else int(head.argmin())
        raise ValueError(
            f"`tails` should come before `head` in the order of the nodes, but edge {edge} builds node "
            f"{int(head[edge])} from {tails[edge].tolist()}. Number the nodes in the order in which they are computed."
        )


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


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


def together(names: str, shape: Sequence[int], other: Sequence[int], hint: str = "") -> None:
    """Shapes that broadcast with one another."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(f"{names} should broadcast with one another, but are {tuple(shape)} and {tuple(other)}.{hint}")


def positive(name: str, value: object, *, above: float = 0.0, or_zero: bool = False, hint: str = "") -> None:
    """A number > `above`, or ≥ 0; for tensors on the CPU, all of them."""

    # Made where it is said: a compiler cannot format a symbol.
    def wanted() -> str:
        return "≥ 0" if or_zero else f"> {above:g}"

    if isinstance(value, Tensor):
        floating(name, value)
        if readable(value) and value.numel() and not bool((value >= 0 if or_zero else value > above).all()):
            raise ValueError(f"`{name}` should be {wanted()} everywhere, but its minimum is {value.min():g}.{hint}")
    elif isinstance(value, bool) or not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
        raise TypeError(f"`{name}` should be a number or a tensor, but is a {type(value).__name__}.")
    elif not (value >= 0 if or_zero else value > above):
        raise ValueError(f"`{name}` should be {wanted()}, but is {value}.{hint}")


def whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or value < low:
        raise ValueError(f"`{name}` should be a whole number ≥ {low}, but is {value!r}.")


def per_row(name: str, value: float | Tensor, moved: Tensor, where: int) -> float | Tensor:
    """A number, or a tensor brought to the batch shape of `moved`, scores whose `dim` was `where` (from the end).

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
                f"of scores (…, H, Q, K), or rows of a matrix. For another layout give it size 1 at `dim`, "
                f"so that it broadcasts to the scores."
            )
        return rows.expand(batch)
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


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        listed = ", ".join(repr(option) for option in allowed)
        raise ValueError(f"`{name}` should be one of {listed}, but is {value!r}.")


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
    """lower ≤ upper and Σ lower ≤ total ≤ Σ upper. Reads values, from a GPU too: bounds nobody can meet are refused."""
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


def hard_target(target: Tensor, x: Tensor, ignore_index: int) -> None:
    """Integer classes, one for each row of x (…, n)."""
    batch = x.shape[:-1]
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"`target` should hold integer classes or probabilities, but has dtype {target.dtype}.")
    same_device("target", target, x)
    if target.shape != batch:
        raise ValueError(
            f"`target` should have shape {tuple(batch)}, the scores without `dim`, but has {tuple(target.shape)}. "
            "Probabilities should be floating point and have the scores' shape."
        )
    if readable(target) and target.numel():
        wrong = (target != ignore_index) & ((target < 0) | (target >= x.shape[-1]))
        if bool(wrong.any()):
            raise ValueError(
                f"`target` should lie between 0 and {x.shape[-1] - 1} or be ignore_index={ignore_index}, "
                f"but holds {int(target[wrong][0])}."
            )


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


def no_nan(name: str, tensor: Tensor) -> None:
    """Reads values, from a GPU too: for those who asked for it."""
    bad = tensor.isnan()
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` should hold no NaN, but holds {int(bad.sum())}, the first at {at}. "
            "Try torch.autograd.set_detect_anomaly(True) to find where it is born."
        )


def zeros_and_ones(name: str, parts: Tensor, counts: bool = False) -> None:
    """Parts that hold zeros and ones, or counts; reads values."""
    allowed = (parts >= 0) & (parts == parts.round()) if counts else (parts == 0) | (parts == 1)
    if not bool(allowed.all()):
        raise ValueError(
            f"`{name}` should be made of {'counts: 0, 1, 2, …' if counts else 'zeros and ones'}, but holds "
            f"{parts[~allowed][0]:g}. `structure.encode` makes parts from labels."
        )
