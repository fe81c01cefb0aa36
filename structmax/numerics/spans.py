"""Spans of binary trees over a sequence: [i, j] from leaf i to leaf j, both included; n leaves have 2n − 1 of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from structmax import check


def real_spans(size: int, lengths: Tensor) -> Tensor:
    """Which of all pairs (…, size, size) are spans of so many leaves."""
    leaf = torch.arange(size, device=lengths.device)
    return (leaf.unsqueeze(-1) <= leaf) & (leaf < lengths[..., None, None])


def decode_spans(parts: Tensor, labelled: bool = False) -> Tensor:
    """Rows (first leaf, last leaf) of parts (…, N, N), parents first and left before right: (…, 2N − 1, 2).

    Of labelled parts (…, N, N, C): (…, 2N − 1, 3), with the label as third. Rows of −1 past the last.
    """
    label = parts.argmax(-1) if labelled else None
    used = (parts > 0).any(-1) if labelled else parts > 0
    N = used.shape[-1]
    # Rows in ascending order of the first leaf, and from the last leaf down: a parent comes before its children.
    used = used.flip(-1).flatten(-2)
    order = used.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., : 2 * N - 1]
    i, j = order // N, N - 1 - order % N
    columns = [i, j] if label is None else [i, j, label.flatten(-2).gather(-1, i * N + j)]
    return torch.stack(columns, -1).masked_fill(~used.gather(-1, order).unsqueeze(-1), -1)


def encode_spans(spans: Tensor, like: Tensor, lengths: Tensor | None, structure: str, labelled: bool = False) -> Tensor:
    """The inverse, of rows in any order: parts in the event shape and dtype of `like`."""
    event = like.shape[-3 if labelled else -2 :]
    check.whole_numbers("spans", spans)
    n = spans.new_tensor(event[0]) if lengths is None else lengths.to(spans.device)
    here = _marks(spans, n, event, structure)
    place = spans[..., 0] * event[0] + spans[..., 1]
    if labelled:
        place = place * event[2] + spans[..., 2]
    # One entry more, for what is padding.
    size = event.numel()
    place = torch.where(here, place, size)
    flat = like.new_zeros(*place.shape[:-1], size + 1).scatter_(-1, place, 1.0)
    return flat[..., :size].unflatten(-1, event)


def _marks(spans: Tensor, leaves: Tensor, event: Sequence[int], structure: str) -> Tensor:
    """Which rows are spans; raises an error for impossible ones, and for too few of them."""
    i, j = spans[..., 0], spans[..., 1]
    valid = (i >= 0) & (i <= j) & (j < leaves.unsqueeze(-1))
    wanted = f"be rows (first leaf, last leaf), with leaves from 0 to {event[0] - 1} and below the lengths"
    if len(event) == 3:
        valid = valid & (spans[..., 2] >= 0) & (spans[..., 2] < event[2])
        wanted = f"be rows (first leaf, last leaf, label), with labels from 0 to {event[2] - 1} and leaves in range"
    none = (spans == -1).all(-1)
    hint = " Rows of −1 are padding."
    here = check.encodable("spans", spans, valid | none, None, wanted, hint, columns=True) & ~none
    count = here.sum(-1)
    if check.readable(count):
        fewer = (count != (2 * leaves - 1).clamp_min(0)) & (count > 0)
        if bool(fewer.any()):
            found = int(count.expand_as(fewer)[fewer][0])
            raise ValueError(
                f"`spans` of a tree over n leaves should be 2n − 1, but are {found} for "
                f"{int(leaves.expand_as(fewer)[fewer][0])} leaves. Try {structure}(lengths) for shorter sequences."
            )
    return here
