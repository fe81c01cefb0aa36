"""Labelled time series: those of files, and generated ones whose warps are known.

Files are those of the UCR and UEA archives, as text, told apart by their first line: `.ts`, which begins with comments
(#) and headers (@) and has series of one or several dimensions, `1.2,0.9:3.4,3.1:label`; or a series in each line, its
class first, then its values, with tabs, spaces or commas between them (`.tsv`, `.txt`). There, NaN after the last value
pads series that are shorter than others.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from structmax.recipes.data import text
from structmax.training.errors import DataError, RunError

# Of generated series: where a prototype has its three bumps, how wide they are, and the slope below them.
BUMPS, WIDTH, SLOPE = (0.2, 0.5, 0.8), 0.05, 0.5
# The signs of the first two bumps tell the class; the third has the sign of their product.
SIGNS = ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))
# A speed is exp(SPREAD · normal) at each of so many places, and changes smoothly between them.
PLACES, SPREAD = 6, 0.8
NOISE, SHORTEST, LONGEST = 0.1, 40, 50


@dataclass(frozen=True)
class Series:
    """Series of D numbers at each point, padded with 0 to the longest."""

    # (S, N, D)
    values: Tensor
    # (S,)
    lengths: Tensor
    # (S,): the numbers of their classes
    labels: Tensor
    # (S, N): the time that each point shows, from 0 to 1, where it is known
    times: Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Tensor | slice) -> "Series":
        times = None if self.times is None else self.times[rows]
        return Series(self.values[rows], self.lengths[rows], self.labels[rows], times)

    def stretched(self, length: int) -> "Series":
        """All of one length, by linear interpolation."""
        place = torch.linspace(0, 1, length, device=self.values.device) * (self.lengths - 1).unsqueeze(-1)
        before = place.long()
        after, share = (before + 1).minimum((self.lengths - 1).unsqueeze(-1)), (place - before).unsqueeze(-1)

        def interpolated(values: Tensor) -> Tensor:
            first, second = (
                values.gather(1, at.unsqueeze(-1).expand(-1, -1, values.shape[-1])) for at in (before, after)
            )
            return first.lerp(second, share.to(values.dtype))

        times = None if self.times is None else interpolated(self.times.unsqueeze(-1)).squeeze(-1)
        return replace(
            self, values=interpolated(self.values), lengths=torch.full_like(self.lengths, length), times=times
        )


def collected(rows: Sequence[tuple[str, Tensor]], classes: Sequence[str], device: torch.device) -> Series:
    """Series on a device, from the classes and values (n, D) of each."""
    lengths = torch.tensor([len(values) for _, values in rows], device=device)
    labels = torch.tensor([classes.index(label) for label, _ in rows], device=device)
    return Series(pad_sequence([values for _, values in rows], batch_first=True).to(device), lengths, labels)


def splits(files: dict[str, str], device: torch.device) -> tuple[dict[str, Series], list[str]]:
    """The series of each file that is given, by the name of its split, and the names of their classes.

    "train" is one of them, and has all classes.
    """
    read_rows = {name: read(file) for name, file in files.items() if file}
    classes = sorted({label for label, _ in read_rows["train"]}, key=lambda label: (len(label), label))
    size = read_rows["train"][0][1].shape[1]
    for name, rows in read_rows.items():
        for label, values in rows:
            if label not in classes:
                raise RunError(
                    f"{files[name]} should have classes that {files['train']} has series of, but has {label!r}."
                )
            if values.shape[1] != size:
                raise RunError(
                    f"{files[name]} should have series of as many dimensions as {files['train']}, {size}, "
                    f"but has some of {values.shape[1]}."
                )
    return {name: collected(rows, classes, device) for name, rows in read_rows.items()}, classes


# ---------------------------------------------------------------- files


def read(path: str | Path) -> list[tuple[str, Tensor]]:
    """The class of each series of a file and its values, (n, D)."""
    lines = ((number, line.strip()) for number, line in text.lines(path, "time series") if line.strip())
    first = next(lines, None)
    if first is None:
        raise DataError(path, None, "should have time series, but is empty")
    with_headers = first[1].startswith(("#", "@"))
    found = list(_with_headers(path, first, lines) if with_headers else _in_rows(path, first, lines))
    if not found:
        raise DataError(path, None, "should have series after the line @data, but has none")
    size = found[0][1][1].shape[1]
    for number, (_, values) in found:
        if values.shape[1] != size:
            reason = f"should have {size} dimensions as the first series has, but has {values.shape[1]}"
            raise DataError(path, number, reason)
    return [row for _, row in found]


Lines = Iterator[tuple[int, str]]
Row = tuple[int, tuple[str, Tensor]]


def _with_headers(path: str | Path, first: tuple[int, str], lines: Lines) -> Iterator[Row]:
    """Lines `1.2,0.9:3.4,3.1:label` after the headers and @data."""
    classes: list[str] = []
    number, line = first
    while line.lower() != "@data":
        name, *words = line.split()
        if name.lower() == "@classlabel" and words[:1] and words[0].lower() == "true":
            classes = words[1:]
        if name.lower() == "@timestamps" and words[:1] and words[0].lower() == "true":
            raise DataError(path, number, "should have values alone, but has time stamps, which are not read")
        if not line.startswith(("#", "@")):
            raise DataError(
                path, number, "should be a comment (#), a header (@) or @data, which comes before the series"
            )
        number, line = next(lines, (None, None))  # type: ignore[assignment]
        if line is None:
            raise DataError(path, None, "should have a line @data before its series, but has none")
    if not classes:
        raise DataError(path, None, "should have a header `@classLabel true` with the names of the classes")
    for number, line in lines:
        *dimensions, label = line.split(":")
        if not dimensions or label.strip() not in classes:
            wanted = f"should end in a colon and one of the classes {' '.join(classes)}"
            raise DataError(path, number, f"{wanted}, but ends in {label.strip()[:20]!r}")
        columns = [_numbers(path, number, dimension.split(",")) for dimension in dimensions]
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            reason = f"should have as many values in each dimension, but has {' and '.join(map(str, sorted(lengths)))}"
            raise DataError(path, number, reason)
        yield number, (label.strip(), torch.tensor(columns).T.contiguous())


def _in_rows(path: str | Path, first: tuple[int, str], lines: Lines) -> Iterator[Row]:
    """Lines of a class and values."""
    for number, line in (first, *lines):
        # an empty place between two commas or two tabs is a value that is missing
        label, *values = re.split(r" *[,\t] *" if re.search(r"[,\t]", line) else r" +", line.strip())
        while values and values[-1].lower() == "nan":
            values.pop()
        if not values:
            raise DataError(path, number, "should be a class and the values of a series, but has no values")
        yield number, (_name(label), torch.tensor(_numbers(path, number, values)).unsqueeze(-1))


def _numbers(path: str | Path, line: int, words: Sequence[str]) -> list[float]:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        missing = any(word.strip() == "?" for word in words)
        reason = "but some are missing (?)" if missing else "but some are not"
        raise DataError(path, line, f"should have a number for each value, {reason}") from None
    if not all(math.isfinite(number) for number in numbers):
        raise DataError(path, line, "should have a number for each value, but has NaN or infinite ones")
    return numbers


def _name(label: str) -> str:
    """Of a class: 1.0000000e+00 is 1."""
    try:
        number = float(label)
    except ValueError:
        return label
    return str(int(number)) if number.is_integer() else repr(number)


# ---------------------------------------------------------------- generated


def generate(count: int, seed: int, device: torch.device) -> Series:
    """Prototypes of four classes, each seen through a time of its own, with noise.

    Point i of a series shows its prototype at a time τ_i, where τ grows from 0 to 1 at a speed that changes. Two series
    of a class should be aligned where they show the same time.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator)
    labels = torch.arange(count) % len(SIGNS)
    speeds = torch.nn.functional.interpolate(
        SPREAD * torch.randn(count, 1, PLACES, generator=generator), LONGEST - 1, mode="linear", align_corners=True
    ).squeeze(1)
    inside = text.within(lengths - 1, LONGEST - 1)
    passed = (speeds.exp() * inside).cumsum(-1)
    times = torch.nn.functional.pad(passed / passed[:, -1:], (1, 0))
    signs = torch.tensor(SIGNS)[labels]
    signs = torch.cat([signs, signs.prod(-1, keepdim=True)], -1)
    bumps = torch.exp(-(((times.unsqueeze(-1) - torch.tensor(BUMPS)) / WIDTH) ** 2) / 2)
    height = 1 + NOISE * torch.randn(count, 1, generator=generator)
    values = height * ((bumps * signs.unsqueeze(1)).sum(-1) + SLOPE * times)
    values = values + NOISE * torch.randn(count, LONGEST, generator=generator)
    values = values * text.within(lengths, LONGEST)
    return Series(values.unsqueeze(-1).to(device), lengths.to(device), labels.to(device), times.to(device))
