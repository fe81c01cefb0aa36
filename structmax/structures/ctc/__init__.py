"""Strings of frames that collapse to given labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


@dataclass(frozen=True)
class CTC(AbstractStructure):
    """Strings of T symbols, one for each frame, that collapse to the labels (connectionist temporal classification).

    A string collapses by merging what repeats and then dropping blanks: with blank 0, 0 1 1 0 1 2 becomes 1 1 2. Scores
    (…, T, V) of each symbol at each frame. Where they are log-probabilities, `log_partition` is the log-probability of
    the labels, and minus it the CTC loss. With too few frames for the labels, nothing is feasible.

    Args:
        labels: (…, L) int64, what the string says, without blanks; padded with anything beyond `label_lengths`. The
            dimensions before L broadcast to the batch.
        lengths: the number of frames of each instance, at most T; integers that broadcast to the batch.
        label_lengths: the number of labels of each instance, at most L.
        blank: the number of the symbol that stands for nothing.

    Examples:
        Three frames that say 1 1, which takes a blank in between:

        >>> import torch, structmax
        >>> structure = structmax.CTC(torch.tensor([1, 1]))
        >>> best = structmax.argmax(torch.zeros(3, 2), structure)
        >>> structure.decode(best)
        tensor([1, 0, 1])

    Reference:
        Graves et al. 2006, Connectionist temporal classification: labelling unsegmented sequence data with recurrent
        neural networks.
    """

    labels: Tensor
    lengths: Tensor | None = None
    label_lengths: Tensor | None = None
    blank: int = field(default=0, kw_only=True)

    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("labels", "lengths", "label_lengths")

    def field_batch_dim(self, name: str) -> int:
        return super().field_batch_dim(name) - (name == "labels")

    def check(self, scores: Scores) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 2 or 0 in scores.shape[-2:]:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                "`scores` of a CTC should have shape (…, T, V) with T, V ≥ 1, for frames and symbols, "
                f"but are {shape}. Batch first: scores (T, B, V) are `scores.transpose(0, 1)`."
            )
        *batch, T, V = scores.shape
        check.whole("blank", self.blank, 0)
        if self.blank >= V:
            raise ValueError(f"`blank` should be one of the {V} symbols, 0 … {V - 1}, but is {self.blank}.")
        labels = self.labels
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
            kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
            raise TypeError(
                f"`labels` should be an int64 tensor (…, L), but is {kind}. Try torch.as_tensor(labels).long()."
            )
        if labels.dim() < 1 or not check.broadcasts(labels.shape[:-1], batch):
            raise ValueError(
                f"`labels` should have shape (…, L), where … broadcasts to the batch shape {tuple(batch)} "
                f"of the scores, but has {tuple(labels.shape)}."
            )
        self.check_fields(batch, (T, V))

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "frames"), "label_lengths": (fields["labels"].shape[-1], "labels")}

    @classmethod
    def check_values(cls, event: Sequence[int], fields: Mapping[str, Any]) -> None:
        super().check_values(event, fields)
        labels, counts, blank, symbols = fields["labels"], fields["label_lengths"], fields["blank"], event[1]
        if not check.readable(labels) or not (counts is None or check.readable(counts)):
            return
        wrong = (labels < 0) | (labels >= symbols) | (labels == blank)
        if counts is not None:
            wrong = wrong & (torch.arange(labels.shape[-1]) < counts.unsqueeze(-1))
        if bool(wrong.any()):
            found = int(labels.expand_as(wrong)[wrong][0])
            raise ValueError(
                f"`labels` should be symbols from 0 to {symbols - 1} other than the blank, {blank}, "
                f"but hold {found}. Try `label_lengths` to tell labels from padding."
            )

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {
            "labels": self.expanded("labels", tensors),
            "label_lengths": self.expanded("label_lengths", tensors, default=self.labels.shape[-1]),
            "lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-2]),
            "blank": self.blank,
        }

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,), fields = tensors, self.fields(tensors)
        labels, counts, lengths = fields["labels"], fields["label_lengths"], fields["lengths"]
        place = torch.arange(labels.shape[-1], device=x.device)
        there = place < counts.unsqueeze(-1)
        # A label that repeats the one before takes a blank in between.
        again = torch.nn.functional.pad(labels[..., 1:] == labels[..., :-1], (1, 0))[..., : labels.shape[-1]] & there
        first = place + again.cumsum(-1)
        spare = (lengths - counts - again.sum(-1)).unsqueeze(-1)
        frame = torch.arange(x.shape[-2], device=x.device).unsqueeze(-1)
        # (…, T, L): label l stands somewhere from its first possible frame on, as many frames as there are to spare
        after = frame - first.unsqueeze(-2)
        said = (after >= 0) & (after <= spare.unsqueeze(-2)) & there.unsqueeze(-2)
        symbols = torch.where(there, labels, 0).unsqueeze(-2).expand(said.shape)
        used = torch.zeros(*said.shape[:-1], x.shape[-1], dtype=torch.int32, device=x.device)
        used = used.scatter_add(-1, symbols, said.to(torch.int32)) > 0
        between = ((after == -1) & again.unsqueeze(-2) & (spare == 0).unsqueeze(-2)).any(-1)
        blank = ((spare > 0) & (frame.squeeze(-1) < lengths.unsqueeze(-1))) | between
        return (used | (blank.unsqueeze(-1) & (torch.arange(x.shape[-1], device=x.device) == self.blank)),)

    def noise_size(self, scores: Scores) -> int:
        # A number for the state of each frame.
        return self.tensors(scores)[0].shape[-2]

    def enumerate(self, scores: Scores) -> Tensor:
        (tensor,) = self.tensors(scores)
        T, V = tensor.shape
        length = T if self.lengths is None else int(self.lengths)
        count = self.labels.shape[-1] if self.label_lengths is None else int(self.label_lengths)
        wanted = self.labels[:count].tolist()
        every = (s for s in product(range(V), repeat=length) if self._collapsed(s) == wanted)
        strings = check.few("CTC", every, tensor.numel())
        members = tensor.new_zeros(len(strings), T, V)
        for k, string in enumerate(strings):
            for t, symbol in enumerate(string):
                members[k, t, symbol] = 1
        return members

    def _collapsed(self, string: tuple[int, ...]) -> list[int]:
        return [symbol for symbol, _ in groupby(string) if symbol != self.blank]

    def decode(self, parts: Scores) -> Tensor:
        """The symbol of each frame, −1 past the length: (…, T) int64."""
        (tensor,) = self.tensors(self.fitting(parts))
        return torch.where((tensor > 0).any(-1), tensor.argmax(-1), -1)

    def encode(self, symbols: Tensor, V: int) -> Tensor:  # type: ignore[override]
        """Parts (…, T, V) of the symbols of frames (…, T), which may hold anything past the lengths."""
        check.whole_numbers("symbols", symbols)
        real = check.inside(self.lengths, symbols.shape[-1], symbols)
        wanted = f"lie between 0 and {V - 1} at every frame that counts"
        hint = " Try CTC(labels, lengths) to tell frames from padding."
        here = check.encodable("symbols", symbols, (symbols >= 0) & (symbols < V), real, wanted, hint).unsqueeze(-1)
        return (here & (torch.arange(V, device=symbols.device) == symbols.unsqueeze(-1))).to(torch.get_default_dtype())
