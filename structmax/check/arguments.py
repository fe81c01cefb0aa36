"""Shape, dtype, device and range of single arguments, and the fields of structures."""

import inspect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
# Numbers in a list of all members, as many as fill half a gigabyte in float32.
MOST = 1 << 27
NUMBERS = int, float, torch.SymInt, torch.SymFloat


def readable(tensor: Tensor) -> bool:
    """Whether values may be read at no cost: those on the CPU."""
    return tensor.device.type == "cpu" and has_values(tensor)


def has_values(tensor: Tensor) -> bool:
    """Whether there are values to read: outside compilation and function transforms."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def called(value: object) -> str:
    """What something is, for an error that expected something else."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def a_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` should be a torch tensor, but is {called(value)}. Try torch.as_tensor(...).")


def floating(name: str, tensor: object) -> None:
    a_tensor(name, tensor)
    assert isinstance(tensor, Tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` should be floating point, but has dtype {tensor.dtype}. Try `{name}.float()`.")


def same_device(name: str, tensor: Tensor, scores: Tensor) -> None:
    if tensor.device != scores.device:
        raise ValueError(
            f"`{name}` should be on the device of the scores, {scores.device}, but is on {tensor.device}. "
            f"Try `{name}.to(scores.device)`."
        )


def same_kind(name: str, tensor: Tensor, first: str, scores: Tensor) -> None:
    """On the device of the first part tensor, and with its dtype."""
    same_device(name, tensor, scores)
    if tensor.dtype != scores.dtype:
        raise TypeError(
            f"`{name}` should have the dtype of `{first}`, {scores.dtype}, but has {tensor.dtype}. "
            f"Try `{name}.to({first}.dtype)`."
        )


def boolean(name: str, mask: object, meaning: str = "") -> None:
    """A bool tensor; `meaning` says what True stands for."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else called(mask)
        cast = f"`{name}.bool()`" if isinstance(mask, Tensor) else "torch.as_tensor(…)"
        # torch's masks that are added to scores: cast to bool, they would say the opposite
        added = (
            f"; `{name} == 0`, if it holds 0 and −inf" if isinstance(mask, Tensor) and mask.is_floating_point() else ""
        )
        raise TypeError(f"`{name}` should be a bool tensor{meaning}, but is {kind}. Try {cast}{added}.")


def whole_numbers(name: str, tensor: object) -> None:
    """A tensor of integers."""
    if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool:
        kind = tensor.dtype if isinstance(tensor, Tensor) else called(tensor)
        cast = f"{name}.long()" if isinstance(tensor, Tensor) else f"torch.as_tensor({name})"
        raise TypeError(f"`{name}` should be an integer tensor, but is {kind}. Try {cast}.")


def between(name: str, given: Tensor, size: int, what: str) -> None:
    """Integers between 0 and `size`, where values may be read."""
    if not readable(given) or not given.numel():
        return
    # A byte could not be compared with a larger size.
    low, high = (int(end) for end in given.long().aminmax())
    if low < 0 or high > size:
        raise ValueError(f"`{name}` should be between 0 and {size}, {what}, but lie between {low} and {high}.")


def mask_like(name: str, mask: object, like: Tensor, hint: str = "") -> None:
    """A bool tensor that broadcasts to `like`."""
    boolean(name, mask)
    assert isinstance(mask, Tensor)
    if not broadcasts(mask.shape, like.shape):
        raise ValueError(f"`{name}` should broadcast to shape {tuple(like.shape)}, but has {tuple(mask.shape)}.{hint}")


def instance(name: str, value: object, kind: Any, wanted: str, hint: str = "") -> None:
    """An object of this class, or of one of these classes."""
    if not isinstance(value, kind):
        other = type(value).__name__ if isinstance(value, Tensor | tuple | list | dict) else repr(value)
        shown = value.__name__ + " itself" if isinstance(value, type) else other
        raise TypeError(f"`{name}` should be {wanted}, but is {shown}.{hint}")


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


def few(kind: str, members: Iterable[T], parts: int) -> list[T]:
    """The members of a structure of this kind, with so many parts each: a list that does not fill the memory."""
    most = MOST // max(parts, 1)
    listed = list(itertools.islice(members, most + 1))
    if len(listed) > most:
        raise ValueError(
            f"The members of {kind} should be few enough to be listed, at most {MOST:.1e} numbers in all, but are more "
            f"than {most:,}, with {parts} parts each. Try `topk` or `sample` for some of them."
        )
    return listed


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


def together(names: str, shape: Sequence[int], other: Sequence[int], hint: str = "") -> None:
    """Shapes that broadcast with one another."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(f"{names} should broadcast with one another, but are {tuple(shape)} and {tuple(other)}.{hint}")


def batches(what: str, names: Any, shapes: Sequence[tuple[int, ...]]) -> torch.Size:
    """The shape that batches broadcast to."""
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        found = ", ".join(f"{name} {tuple(b)}" for name, b in zip(names, shapes, strict=True))
        raise ValueError(f"{what} should broadcast, but are {found}.") from None


def positive(name: str, value: object, *, above: float = 0.0, or_zero: bool = False, hint: str = "") -> None:
    """A number > `above`, or ≥ 0; for tensors on the CPU, all of them."""

    # Formatted only where it is raised: a compiler cannot format a symbol.
    def wanted() -> str:
        return "≥ 0" if or_zero else f"> {above:g}"

    if isinstance(value, Tensor):
        floating(name, value)
        if readable(value) and value.numel() and not bool((value >= 0 if or_zero else value > above).all()):
            raise ValueError(f"`{name}` should be {wanted()} everywhere, but its minimum is {value.min():g}.{hint}")
    elif isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(f"`{name}` should be a number or a tensor, but is a {type(value).__name__}.")
    elif not (value >= 0 if or_zero else value > above):
        raise ValueError(f"`{name}` should be {wanted()}, but is {value}.{hint}")


def number(name: str, value: object) -> None:
    """A plain number > 0, where a tensor would seem to get a gradient and does not."""
    if isinstance(value, Tensor):
        raise TypeError(f"`{name}` should be a number, but is a tensor. It gets no gradient. Try `float({name})`.")
    positive(name, value)


def whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or value < low:
        raise ValueError(f"`{name}` should be a whole number ≥ {low}, but is {value!r}.")


def unreserved(kind: str, fields: Iterable[str], reserved: Sequence[str]) -> None:
    """Fields of a structure, which its functions get as keywords, in addition to those of a question."""
    taken = next((name for name in fields if name in reserved), None)
    if taken is not None:
        listed = ", ".join(f"`{name}`" for name in reserved)
        raise ValueError(
            f"The field `{taken}` of {kind} should have another name, such as `own_{taken}`: "
            f"functions get {listed} from the questions."
        )


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        listed = ", ".join(repr(option) for option in allowed)
        raise ValueError(f"`{name}` should be one of {listed}, but is {value!r}.")


def generator(given: object) -> None:
    """A random number generator, or None for torch's own."""
    if given is not None and not isinstance(given, torch.Generator):
        hint = f" Try torch.Generator().manual_seed({given})." if isinstance(given, int) else ""
        raise TypeError(f"`generator` should be a torch.Generator or None, but is {called(given)}.{hint}")


def takes(name: str, function: object, arguments: Sequence[str]) -> None:
    """A function that can be called with these arguments."""
    called_as = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise TypeError(f"`{name}` should be a function, called as {called_as}, but is {called(function)}.")
    # a compiler cannot look at signatures
    if torch.compiler.is_compiling():
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # some that are written in C have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"`{name}` is called as {called_as}, but takes {signature}: {error}.") from None


def no_nan(name: str, tensor: Tensor) -> None:
    """Reads values, also from a GPU: only called on request."""
    bad = tensor.isnan()
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` should hold no NaN, but holds {int(bad.sum())}, the first at {at}. "
            "Try torch.autograd.set_detect_anomaly(True) to find the operation that makes it."
        )


def parts_like(name: str, parts: Tensor, shape: Sequence[int]) -> None:
    """Parts that broadcast to the shape of the scores."""
    if not broadcasts(parts.shape, shape):
        raise ValueError(
            f"`{name}` should have the scores' shape {tuple(shape)}, but has {tuple(parts.shape)}. "
            "`structure.encode` makes parts from labels."
        )


def samples(name: str, parts: Tensor, scores: Tensor) -> None:
    """Parts that broadcast with the scores."""
    if not (broadcasts(parts.shape, scores.shape) or broadcasts(scores.shape, parts.shape)):
        raise ValueError(
            f"`{name}` should have the scores' shape {tuple(scores.shape)} after any sample dimensions, "
            f"but has {tuple(parts.shape)}. `structure.encode` makes parts from labels."
        )


def zeros_and_ones(name: str, parts: Tensor, counts: bool = False) -> None:
    """Parts that are zeros and ones, or counts; reads values."""
    allowed = (parts >= 0) & (parts == parts.round()) if counts else (parts == 0) | (parts == 1)
    if not bool(allowed.all()):
        raise ValueError(
            f"`{name}` should be made of {'counts: 0, 1, 2, …' if counts else 'zeros and ones'}, but holds "
            f"{parts[~allowed][0]:g}. `structure.encode` makes parts from labels."
        )
