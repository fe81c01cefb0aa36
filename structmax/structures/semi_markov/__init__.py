"""Segmentations of a sequence into labelled segments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


class SemiMarkovParts(NamedTuple):
    """The parts of a segmentation."""

    # (…, N, W, C): a segment starts at n, has width w + 1 and label c
    segment: Tensor
    # (C, C), (…, C, C) or (…, N − 1, C, C): a segment of label i is followed by one of label j, which starts at n + 1;
    # (…, N − 1, W, C, C): the same for each width w + 1 of the one that follows
    pairwise: Tensor


@dataclass(frozen=True)
class SemiMarkov(AbstractStructure):
    """Segmentations of N positions into segments of at most W positions, each with one of C labels.

    Scores `Parts(segment, pairwise)`: segment (…, N, W, C), where segment[n, w, c] scores a segment that starts at n,
    is w + 1 wide and has label c; pairwise[i, j] from the label of a segment to that of the next, (C, C) for all,
    (…, C, C) for each instance, or (…, N − 1, C, C), where entry n − 1 belongs to the segment that starts at n. With
    (…, N − 1, W, C, C) the width matters too: pairwise[n − 1, w, i, j] scores a segment of label j that starts at n, is
    w + 1 wide and follows one of label i, at W times the cost. A matrix that several positions share counts how often
    each transition is used. Segments that would pass the length are ignored.

    Args:
        lengths: the number of positions of each instance, at most N; integers that broadcast to the batch.

    Examples:
        The segment of width 2 beats two of width 1:

        >>> import torch, structmax
        >>> segment = torch.zeros(3, 2, 2)
        >>> segment[0, 1, 1] = 5.0
        >>> segment[2, 0, 0] = 1.0
        >>> structure = structmax.SemiMarkov()
        >>> best = structmax.argmax((segment, torch.zeros(2, 2)), structure)
        >>> structure.decode(best)
        tensor([[ 0,  2,  1],
                [ 2,  1,  0],
                [-1, -1, -1]])
        >>> structure.labels_per_position(best)
        tensor([1, 1, 0])

    Reference:
        Sarawagi and Cohen 2004, Semi-Markov conditional random fields for information extraction.
    """

    lengths: Tensor | None = None

    Parts: ClassVar[Any] = SemiMarkovParts
    event_dim: ClassVar[int] = 3  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    regularised: ClassVar[tuple[str, ...] | None] = ("segment",)

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or len(scores) != 2:
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a SemiMarkov should be two tensors (segment, pairwise), but are {got}. "
                "Without preferences for transitions, let pairwise be torch.zeros(C, C)."
            )
        segment, pairwise = scores
        if segment.dim() < 3 or 0 in segment.shape[-3:]:
            raise ValueError(
                "`segment` should have shape (…, N, W, C) with N, W, C ≥ 1, for start, width and label, "
                f"but has {tuple(segment.shape)}. Scores for one width are `segment.unsqueeze(-2)`."
            )
        *batch, N, W, C = segment.shape
        shapes = (C, C), (*batch, C, C), (*batch, N - 1, C, C), (*batch, N - 1, W, C, C)
        if tuple(pairwise.shape) not in shapes:
            wanted = ", ".join(map(str, dict.fromkeys(shapes[:3]))) + f" or {shapes[3]}"
            with_start = (*batch, N, C, C), (*batch, N, W, C, C)
            hint = " Did you include a start transition?" if tuple(pairwise.shape) in with_start else ""
            raise ValueError(
                f"`pairwise` should have shape {wanted} to match `segment` {tuple(segment.shape)}, "
                f"but has {tuple(pairwise.shape)}.{hint}"
            )
        check.same_kind("pairwise", pairwise, "segment", segment)
        self.check_fields(batch, segment.shape[-3:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        segment, pairwise = scores
        batch = segment.shape[:-3]
        return segment, pairwise.expand(*batch, *pairwise.shape) if pairwise.dim() == 2 else pairwise

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "positions")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-3])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        segment, pairwise = tensors
        N, W = segment.shape[-3:-1]
        lengths = self.fields(tensors)["lengths"].unsqueeze(-1)
        position = torch.arange(N, device=segment.device)
        last = position.unsqueeze(-1) + torch.arange(W, device=segment.device)
        here, whole = position < lengths, last < lengths.unsqueeze(-1)
        # one matrix, one for each position, or for each position and width
        pairs = (here[..., 1:].any(-1), here[..., 1:], whole[..., 1:, :])[pairwise.dim() - segment.dim() + 1]
        return whole.unsqueeze(-1), pairs[..., None, None]

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        segment, pairwise = tensors
        return False, pairwise.dim() < segment.dim()

    def noise_size(self, scores: Scores) -> int:
        # A number for the last label, then one for each width and for each label before, or one for both.
        return 2 * self.tensors(scores)[0].shape[-3]

    def enumerate(self, scores: Scores) -> SemiMarkovParts:
        tensors = self.tensors(scores)
        N, W, C = tensors[0].shape
        length = N if self.lengths is None else int(self.lengths)
        segmentations = (
            list(zip(widths, labels, strict=True))
            for widths in _compositions(length, W)
            for labels in product(range(C), repeat=len(widths))
        )
        every = check.few("SemiMarkov", segmentations, sum(t.numel() for t in tensors))
        segment, pairwise = (t.new_zeros(len(every), *t.shape) for t in tensors)
        for k, segments in enumerate(every):
            start, before = 0, None
            for width, label in segments:
                segment[k, start, width - 1, label] = 1
                if before is not None:
                    place = (start - 1, width - 1)[: pairwise.dim() - 3]
                    pairwise[(k, *place, before, label)] += 1
                start, before = start + width, label
        return SemiMarkovParts(segment, pairwise)

    def decode(self, parts: Scores) -> Tensor:
        """The segments in order, rows (start, width, label) padded with −1: (…, N, 3) int64."""
        segment = self.tensors(self.fitting(parts))[0]
        N, _, C = segment.shape[-3:]
        cells = segment.flatten(-2)
        starts = (cells > 0).any(-1)
        cell = cells.argmax(-1)
        rows = torch.stack([torch.arange(N, device=cell.device).expand_as(cell), cell // C + 1, cell % C], -1)
        rows = rows.masked_fill(~starts.unsqueeze(-1), -1)
        order = (~starts).long().argsort(dim=-1, stable=True)
        return rows.gather(-2, order.unsqueeze(-1).expand_as(rows))

    def labels_per_position(self, parts: Scores) -> Tensor:
        """The label of the segment each position lies in, −1 past the length: (…, N) int64."""
        segment = self.tensors(self.fitting(parts))[0]
        C = segment.shape[-1]
        cells = segment.flatten(-2)
        position = torch.arange(segment.shape[-3], device=segment.device)
        start = torch.where((cells > 0).any(-1), position, -1).cummax(-1).values
        cell = cells.argmax(-1).gather(-1, start.clamp_min(0))
        inside = (start >= 0) & (position <= start + cell // C)
        return torch.where(inside, cell % C, -1)

    def encode(self, segments: Tensor, scores: Scores) -> SemiMarkovParts:  # type: ignore[override]
        """Parts of segments (…, N, 3) as `decode` returns them, shaped for `scores`, whose values do not matter.

        Segments come in order, each where the one before ends; rows after the one that ends at the length are padding
        and may hold anything.
        """
        segment, pairwise = self.tensors(scores)
        N, W, C = segment.shape[-3:]
        check.whole_numbers("segments", segments)
        start, width, label = segments.unbind(-1)
        length = N if self.lengths is None else self.lengths.to(segments.device).unsqueeze(-1)
        # where each segment has to start: rows from the length on are padding, whatever widths they hold
        begin = torch.nn.functional.pad(width.cumsum(-1).cummax(-1).values[..., :-1], (1, 0))
        fits = (start == begin) & (width >= 1) & (width <= W) & (start + width <= length)
        valid = fits & (label >= 0) & (label < C)
        real = begin < length
        wanted = (
            f"be rows (start, width, label), one after the other up to the length, with widths from 1 to {W} and "
            f"labels from 0 to {C - 1}"
        )
        hint = " Try SemiMarkov(lengths) to tell segments from padding."
        here = check.encodable("segments", segments, valid, real, wanted, hint, columns=True)
        parts = [_marked((start * W + width - 1) * C + label, here, segment.shape[-3:], segment)]
        # From the second segment on there is a transition into it.
        follows = here[..., 1:] & here[..., :-1]
        move = label[..., :-1] * C + label[..., 1:]
        event = pairwise.shape[segment.dim() - 3 :]
        position = start[..., 1:] - 1
        # which matrix: the only one, that of the position, or that of position and width
        matrix = (torch.zeros_like(position), position, position * W + width[..., 1:] - 1)[len(event) - 2]
        parts.append(_marked(matrix * C * C + move, follows, event, pairwise))
        return SemiMarkovParts(*parts)


def _compositions(total: int, most: int) -> Iterator[list[int]]:
    """All ways to write `total` as an ordered sum of numbers from 1 to `most`."""
    if total == 0:
        yield []
    for width in range(1, min(total, most) + 1):
        for rest in _compositions(total - width, most):
            yield [width, *rest]


def _marked(place: Tensor, where: Tensor, event: tuple[int, ...], like: Tensor) -> Tensor:
    """How often each place of a flattened event occurs, at the entries `where`: (…, *event)."""
    size = torch.Size(event).numel()
    # One entry more, for what is nowhere.
    index = torch.where(where, place, size)
    flat = like.new_zeros(*index.shape[:-1], size + 1)
    flat = flat.scatter_add(-1, index, flat.new_ones(()).expand(index.shape))
    return flat[..., :size].unflatten(-1, event) if size else flat[..., :0].reshape(*flat.shape[:-1], *event)
