"""Learning curves of one run or several. Needs matplotlib, which the extra `recipes` installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from structmax.plots import series

__all__ = ["draw"]

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, QUIET, PALE = "#222222", "#8A8A8A", "#E4E4E4"
COLUMNS = 3


def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]], settings: Mapping[str, str] | None = None) -> Figure:
    """Learning curves: a panel for each metric, a colour for each run; training is dashed, all else solid.

    Runs after the tenth are grey.

    Args:
        runs: the rows of each run's `metrics.jsonl`, by the run's name. Keys are "split/metric", or "step", "epoch"
            and "seconds"; a row may leave some out.
        settings: of each run, if runs of a setting should be drawn as one line, the mean of these seeds, in a band
            from their lowest to their highest.

    Returns:
        The figure.

    Examples:
        >>> from structmax.plots import curves
        >>> rows = [{"step": i, "epoch": i / 2, "train/loss": 1 / i, "valid/loss": 2 / i} for i in (1, 2, 3)]
        >>> len(curves.draw({"mine": rows}).axes)
        1
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    metrics = series.by_metric(runs)
    if settings is not None:
        metrics = series.over_seeds(metrics, settings)
    names = list(runs) if settings is None else list(dict.fromkeys(settings.values()))
    colours = {name: series.colour(i) for i, name in enumerate(names)}
    columns = max(1, min(COLUMNS, len(metrics)))
    height = max(1, -(-len(metrics) // columns))
    figure = Figure(figsize=(4.2 * columns, 2.9 * height + 0.4), layout="constrained")
    if not metrics:
        figure.text(0.5, 0.5, "no metrics yet", color=QUIET, ha="center", va="center")
        return figure
    panels = list(figure.subplots(height, columns, squeeze=False).flat)
    for axes, (metric, lines) in zip(panels, metrics.items(), strict=False):
        for line in lines:
            style = "--" if line.split == "train" else "-"
            # A lone point is no line, so it gets a dot.
            marker = "o" if len(line.at) == 1 else None
            colour = colours[line.run]
            axes.plot(line.at, line.values, style, color=colour, marker=marker, markersize=4, linewidth=1.6)
            if line.low and line.split != "train":
                axes.fill_between(line.at, line.low, line.high, color=colour, alpha=0.14, linewidth=0)
        axes.set_title(_plain(metric), color=INK, fontsize=10.5, loc="left", parse_math=False)
        axes.set_xlabel(series.axis(runs), color=QUIET, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(QUIET)
        axes.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)
        axes.grid(color=PALE, linewidth=0.6)
    for axes in panels[len(metrics) :]:
        axes.remove()
    splits = {line.split: None for lines in metrics.values() for line in lines if line.split}
    others = len(colours) - len(series.COLOURS)
    entries = dict(list(colours.items())[: len(series.COLOURS)]) | (
        {f"{others} others": series.REST} if others > 0 else {}
    )
    shown = [Line2D([], [], color=colour, linewidth=2.4) for colour in entries.values()]
    shown += [Line2D([], [], color=INK, linestyle="--" if split == "train" else "-") for split in splits]
    names = [*entries, *splits]
    places = [str(place) for place in range(len(names))]
    legend = figure.legend(
        shown, places, loc="outside lower center", ncols=min(4, len(shown)), frameon=False, fontsize=9
    )
    # afterwards, since a legend leaves out names that begin with _
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=_plain(name), parse_math=False)
    return figure


def _plain(name: str) -> str:
    """A user's name for a run, on one line: no font has other control characters, or halves of a letter."""
    return "".join(letter if letter.isprintable() else "�" for letter in name)
