"""Pictures of the simplex mappings. Needs matplotlib, which the extra `recipes` installs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import structmax

__all__ = ["bars", "mappings_1d", "triangle"]

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Mapping = Callable[[Tensor], Tensor]
LineStyle = str | tuple[float, tuple[float, float]]

# Colours of Okabe & Ito, which people with any colour vision can tell apart; line styles say the same once more.
STYLES: dict[str, tuple[Mapping, str, LineStyle]] = {
    "softmax": (structmax.softmax, "#000000", "-"),
    "entmax 1.25": (functools.partial(structmax.entmax, alpha=1.25), "#56B4E9", (0, (6, 1.5))),
    "entmax 1.5": (structmax.entmax15, "#0072B2", "-"),
    "sparsemax": (structmax.sparsemax, "#D55E00", "-"),
    "normmax 2": (structmax.normmax, "#009E73", (0, (2, 1.2))),
}
INK, QUIET, PALE = "#222222", "#8A8A8A", "#DDDDDD"
# Support of one, two and three entries.
SUPPORTS = ("#E69F00", "#56B4E9", "#F4F4F4")
# Values of one entry, then of one cluster after the other.
ALONE = "#5B7083"
CLUSTERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
# Close enough at the top for fusing, clusters and bounds to show.
SCORES = (0.9, 1.1, 1.0, 0.2, -0.3, 0.65, 0.75, -1.0, 1.05, 0.1)
# The corners of the triangle; scores of three classes are drawn in its plane, where a common shift is invisible.
CORNERS = torch.tensor([[-0.5, -(3**0.5) / 6], [0.5, -(3**0.5) / 6], [0.0, 3**0.5 / 3]], dtype=torch.float64)


def _figure(title: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, color=INK, fontsize=13, x=0.01, ha="left")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, color=INK, fontsize=10.5, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)


def mappings_1d(rivals: Sequence[Sequence[float]] = ((0.0,), (0.5, 0.0)), reach: float = 3.5) -> Figure:
    """The probability of one entry as its score moves, for each mapping.

    Args:
        rivals: for each panel, the scores that stay where they are.
        reach: the moving score runs from −reach to reach.

    Returns:
        The figure.

    Examples:
        >>> from structmax.plots import simplex
        >>> len(simplex.mappings_1d().axes)
        2
    """
    figure, panels = _figure("One score moves, the others stay", 1, len(rivals), (5.2 * len(rivals), 3.7))
    moving = torch.linspace(-reach, reach, 701, dtype=torch.float64)
    for axes, fixed in zip(panels, rivals, strict=True):
        scores = torch.cat([moving[:, None], torch.tensor(fixed, dtype=torch.float64).expand(len(moving), -1)], -1)
        for name, (mapping, colour, style) in STYLES.items():
            p = mapping(scores)[:, 0]
            axes.plot(moving.numpy(), p.numpy(), color=colour, linestyle=style, linewidth=1.9, label=name)
        _plain(axes, f"{len(fixed) + 1} classes: x = (t, {', '.join(f'{score:g}' for score in fixed)})")
        axes.grid(color=PALE, linewidth=0.6)
        axes.set(xlabel="t", xlim=(-reach, reach), ylim=(-0.03, 1.03))
    panels[0].set_ylabel("probability of the first class")
    panels[-1].legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def triangle(reach: float = 1.45, lines: int = 25) -> Figure:
    """The three-class simplex: which scores have which support, and where a grid of scores lands.

    Args:
        reach: half the side of the square of scores that is shown; the triangle has sides of 1.
        lines: how many lines the grid has in each direction.

    Returns:
        The figure. Above, the plane of scores, coloured by the size of the support, with level sets of the largest
        probability; below, the triangle of probabilities with the image of a square grid.

    Examples:
        >>> from structmax.plots import simplex
        >>> len(simplex.triangle().axes)
        8
    """
    names = ("softmax", "entmax 1.5", "sparsemax", "normmax 2")
    figure, panels = _figure("Three classes: the plane of scores, and where it lands", 2, len(names), (12.4, 6.9))
    for column, name in enumerate(names):
        mapping = STYLES[name][0]
        above, below = panels[column], panels[column + len(names)]
        _score_plane(above, mapping, reach)
        _landing(below, mapping, reach, lines)
        above.set_title(name, color=INK, fontsize=11)
        for axes in (above, below):
            axes.set_aspect("equal")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
    panels[0].set_ylabel("scores", color=INK, fontsize=10)
    panels[len(names)].set_ylabel("probabilities", color=INK, fontsize=10)
    _support_legend(figure)
    return figure


def _scores_at(points: Tensor) -> Tensor:
    """Three scores for points (…, 2) of the plane: sparsemax is the nearest point of the triangle."""
    # The corners' offsets are orthogonal with squared length 1/2, so twice the products invert p ↦ Σ p·corner.
    return 2 * points @ CORNERS.T


def _score_plane(axes: Axes, mapping: Mapping, reach: float) -> None:
    from matplotlib.colors import ListedColormap

    ticks = torch.linspace(-reach, reach, 401, dtype=torch.float64)
    plane = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    p = mapping(_scores_at(plane))
    x, support, largest = ticks.numpy(), (p > 0).sum(-1).numpy(), p.amax(-1).numpy()
    axes.pcolormesh(x, x, support, cmap=ListedColormap(SUPPORTS), vmin=0.5, vmax=3.5, alpha=0.75, rasterized=True)
    # Not 0.5: on an edge of the simplex it is a ridge, not a level.
    axes.contour(x, x, largest, levels=[0.4, 0.6, 0.7, 0.8, 0.9, 0.99], colors=INK, linewidths=0.6, alpha=0.75)
    _outline(axes, INK, 1.6)


def _landing(axes: Axes, mapping: Mapping, reach: float, lines: int) -> None:
    steps = torch.linspace(-reach, reach, 301, dtype=torch.float64)
    for level in torch.linspace(-reach, reach, lines, dtype=torch.float64):
        for flip, colour in ((False, "#0072B2"), (True, "#D55E00")):
            line = torch.stack([steps, level.expand_as(steps)], -1)
            landed = mapping(_scores_at(line.flip(-1) if flip else line)) @ CORNERS
            axes.plot(*landed.T.numpy(), color=colour, linewidth=0.8, alpha=0.8)
    _outline(axes, QUIET, 1.0)
    for corner, label in zip(CORNERS, ("1", "2", "3"), strict=True):
        x, y = (corner * 1.16).tolist()
        axes.text(x, y, label, ha="center", va="center", color=INK, fontsize=10)
    axes.set(xlim=(-0.68, 0.68), ylim=(-0.46, 0.74))


def _outline(axes: Axes, colour: str, width: float) -> None:
    axes.plot(*CORNERS[[0, 1, 2, 0]].T.numpy(), color=colour, linewidth=width, zorder=3)


def _support_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown: list[Artist] = [Patch(facecolor=colour, edgecolor=QUIET, alpha=0.75) for colour in SUPPORTS]
    shown += [Line2D([], [], color=INK, linewidth=0.6), Line2D([], [], color=INK, linewidth=1.6)]
    spoken = ["support of 1", "support of 2", "support of 3", "levels of the largest probability", "the simplex itself"]
    figure.legend(shown, spoken, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=9)


def bars(scores: Sequence[float] = SCORES, cap: float = 0.15) -> Figure:
    """One score vector through every mapping. Small rings are exact zeros; one colour is one value.

    Args:
        scores: the scores.
        cap: the upper bound given to csoftmax and csparsemax, drawn as a line.

    Returns:
        The figure.

    Examples:
        >>> from structmax.plots import simplex
        >>> len(simplex.bars((0.0, 1.0, 2.0), cap=0.5).axes)
        12
    """
    x = torch.tensor(scores, dtype=torch.float64)
    half = len(scores) / 2
    shown: list[tuple[str, Tensor, float | None]] = [
        ("scores", x, None),
        *((name, mapping(x), None) for name, (mapping, _, _) in STYLES.items()),
        ("topk_sparsemax, k = 2", structmax.topk_sparsemax(x, 2), None),
        ("fusedmax, lam = 0.1", structmax.fusedmax(x, 0.1), None),
        ("oscarmax, lam = 0.08", structmax.oscarmax(x, 0.08), None),
        (f"csoftmax, upper = {cap:g}", structmax.csoftmax(x, upper=cap), cap),
        (f"csparsemax, upper = {cap:g}", structmax.csparsemax(x, upper=cap), cap),
        (f"budget {half:g}", structmax.budget(x, half), 1.0),
    ]
    figure, panels = _figure("The same scores through every mapping", 3, 4, (12.4, 6.6))
    for axes, (name, values, bound) in zip(panels, shown, strict=True):
        _bars(axes, name, values, bound)
    return figure


def _bars(axes: Axes, name: str, values: Tensor, bound: float | None) -> None:
    places = torch.arange(len(values)).numpy()
    if name == "scores":
        axes.bar(places, values.numpy(), color=QUIET, width=0.72)
        axes.axhline(0.0, color=QUIET, linewidth=0.8)
        _plain(axes, name)
    else:
        axes.bar(places, values.numpy(), color=_colours(values), width=0.72)
        zero = (values == 0).numpy()
        axes.plot(places[zero], values.numpy()[zero], "o", markersize=4, mfc="white", mec=QUIET)
        top = max(float(values.max()), bound or 0.0)
        axes.set_ylim(-0.02 * top, 1.12 * top)
        _plain(axes, f"{name}   ({int(values.count_nonzero())} of {len(values)})")
    if bound is not None:
        axes.axhline(bound, color="#D55E00", linewidth=1.0, linestyle=(0, (4, 2)))
    axes.set_xticks(places, [""] * len(places))
    axes.tick_params(axis="x", length=0)
    axes.locator_params(axis="y", nbins=4)


def _colours(values: Tensor) -> list[str]:
    """One colour for each value that several entries share, grey-blue for values of their own."""
    levels, level = (values * 1e9).round().unique(return_inverse=True)
    shared = level.bincount()[level] > 1
    rank = len(levels) - 1 - level
    return [CLUSTERS[r % len(CLUSTERS)] if s else ALONE for r, s in zip(rank.tolist(), shared.tolist(), strict=True)]
