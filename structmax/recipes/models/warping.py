"""Distances of series that may be warped in time, and the models that are made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data.series import Series

# How many pairs of points are compared at once: a few tensors of as many numbers are in memory.
CELLS = 1 << 23


@dataclass(frozen=True)
class Warping:
    """Dynamic time warping with an Ω: min over alignments μ of ⟨costs, μ⟩ + Ω(μ), of squared differences.

    `Zero()` is DTW itself, `Entropy(t)` soft-DTW and `LocalL2(t)` its sparse sibling. None allows no warp at all: the
    squared Euclidean distance, of series of one length.

    Args:
        omega: the regulariser, or None.
        band: aligned points are at most so many apart (Sakoe and Chiba); None for no limit. Lengths may not differ by
            more.
    """

    omega: structmax.omega.AbstractOmega | None
    band: int | None = None

    def __call__(self, x: Series, y: Series) -> Tensor:
        """Distances of series (…, N, D) and (…, M, D), whose batches broadcast."""
        if self.omega is None:
            return (x.values - y.values).square().sum((-2, -1))
        return -structmax.smoothed(*self._problem(x, y), self.omega)

    def alignment(self, x: Series, y: Series) -> Tensor:
        """The expected alignment, (…, N, M)."""
        return structmax.smoothed_marginals(*self._problem(x, y), self.omega or structmax.omega.Zero())

    def _problem(self, x: Series, y: Series) -> tuple[Tensor, structmax.MonotoneAlignment]:
        """Scores, which are costs below zero, and the alignments that are allowed."""
        band = 0 if self.omega is None else self.band
        structure = structmax.MonotoneAlignment(x.lengths, y.lengths, band=band)
        return -structmax.squared_distance(x.values, y.values), structure

    def table(self, x: Series, y: Series) -> Tensor:
        """Of every x with every y: (X, Y)."""
        longest = x.values.shape[-2] * y.values.shape[-2]
        rows = torch.arange(len(x), device=x.values.device).split(max(1, CELLS // (len(y) * longest)))
        return torch.cat([self(of_one_more_dimension(x.at(chunk)), y) for chunk in rows])


def of_one_more_dimension(x: Series) -> Series:
    """(S, N, D) to (S, 1, N, D), to be compared with several."""
    return Series(x.values.unsqueeze(1), x.lengths.unsqueeze(1), x.labels.unsqueeze(1))


def warped(alignment: Tensor, y: Tensor) -> Tensor:
    """y (…, M, D) on the time of x: at each of its points, the mean of what is aligned with it, (…, N, D)."""
    return alignment @ y / alignment.sum(-1, keepdim=True).clamp_min(1e-12)


class Nearest(nn.Module):
    """Gives a series the class of the nearest that it knows: of a centre for each class, or of all training series.

    Args:
        known: series and their classes.
        learns: whether their values are parameters.
    """

    lengths: Tensor
    labels: Tensor

    def __init__(self, known: Series, learns: bool) -> None:
        super().__init__()
        self.values = nn.Parameter(known.values.clone(), requires_grad=learns)
        self.register_buffer("lengths", known.lengths)
        self.register_buffer("labels", known.labels)

    def known(self) -> Series:
        return Series(self.values, self.lengths, self.labels)


def means(series: Series, classes: int) -> Series:
    """The Euclidean mean of each class, of series of one length."""
    member = nn.functional.one_hot(series.labels, classes).to(series.values)
    values = torch.einsum("sc,snd->cnd", member / member.sum(0), series.values)
    lengths = series.lengths.new_full((classes,), series.values.shape[1])
    return Series(values, lengths, torch.arange(classes, device=values.device))


def learnt_band(omega: structmax.omega.AbstractOmega | None, series: Series, bands: Sequence[int]) -> int:
    """The first of the bands with the most series whose nearest other is of their class."""
    first, second = torch.triu_indices(len(series), len(series), 1, device=series.values.device)
    chunks = torch.arange(len(first), device=first.device).split(max(1, CELLS // series.values.shape[1] ** 2))

    def right(band: int) -> int:
        warping = Warping(omega, band)
        half = torch.cat([warping(series.at(first[chunk]), series.at(second[chunk])) for chunk in chunks])
        table = half.new_full((len(series), len(series)), torch.inf)
        table[first, second], table[second, first] = half, half
        return int((series.labels[table.argmin(-1)] == series.labels).sum())

    best = bands[0], right(bands[0])
    for band in bands[1:]:
        # none can be better
        if best[1] == len(series):
            break
        best = max(best, (band, right(band)), key=lambda found: found[1])
    return best[0]


class Forecaster(nn.Module):
    """The rest of a series from its beginning, by a layer of hidden units.

    Args:
        given: number of points of the beginning.
        wanted: number of points of the rest.
        dimensions: of a point.
        size: number of hidden units.
    """

    def __init__(self, given: int, wanted: int, dimensions: int, size: int) -> None:
        super().__init__()
        self.wanted = wanted
        layers = nn.Linear(given * dimensions, size), nn.Tanh(), nn.Linear(size, wanted * dimensions)
        self.layers = nn.Sequential(*layers)

    def forward(self, beginning: Tensor) -> Tensor:
        """(S, given, D) to (S, wanted, D)."""
        return self.layers(beginning.flatten(1)).unflatten(1, (self.wanted, -1))
