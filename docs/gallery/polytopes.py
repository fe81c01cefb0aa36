"""Three polytopes, and the ways through them as the temperature falls: `python docs/gallery/polytopes.py` draws
polytopes.png.

Niculae, Martins, Blondel & Cardie 2018, SparseMAP, https://arxiv.org/abs/1802.04223.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import structmax
from structmax.omega import Entropy, SquaredNorm
from structmax.plots.simplex import CORNERS


def tensor(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@dataclass
class Polytope:
    """A structure whose means fill three dimensions or two."""

    title: str
    structure: structmax.AbstractStructure
    scores: Any
    # from parts to what is on or off, (…, n), and from there to three dimensions, (n, 3)
    switches: Callable[[Any], Tensor]
    axes: Tensor
    # where the eye is, in degrees
    azimuth: float
    elevation: float

    def place(self, parts: Any) -> Tensor:
        """Where a mean of structures is seen: right, up, and towards the eye, (…, 3)."""
        a, e = math.radians(self.azimuth), math.radians(self.elevation)
        right = tensor(-math.sin(a), math.cos(a), 0.0)
        towards = tensor(math.cos(a) * math.cos(e), math.sin(a) * math.cos(e), math.sin(e))
        camera = torch.stack([right, torch.linalg.cross(towards, right), towards], -1)
        return self.switches(parts) @ self.axes @ camera


POLYTOPES = (
    Polytope(
        "one of three",
        structmax.Simplex(),
        tensor(1.1, 0.7, -0.1),
        lambda p: p,
        torch.cat([CORNERS[[1, 0, 2]], torch.zeros(3, 1)], -1),
        azimuth=-90,
        elevation=90,
    ),
    Polytope(
        "three tags, no two on in a row",
        structmax.LinearChain(),
        (tensor([0, 0.9], [0, 0.1], [0, -0.3]), tensor([0, 0], [0, -torch.inf])),
        lambda parts: parts.unary[..., 1],
        tensor([1, 0, 0], [0, 0, 1], [0, 1, 0]),
        azimuth=-25,
        elevation=35,
    ),
    Polytope(
        "two of four",
        structmax.Subset(2),
        tensor(1.3, 1.15, 0.85, 0.0),
        lambda p: p,
        tensor([1, 1, -1], [1, -1, 1], [-1, 1, 1], [-1, -1, -1]) / 2,
        azimuth=52,
        elevation=27,
    ),
)


def edge(one: Tensor, other: Tensor, members: Tensor) -> str | None:
    """How the line between two corners is drawn: not at all, unless some direction makes both of them the best."""
    along = torch.nn.functional.normalize(other - one, dim=0)
    directions = torch.randn(3000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    level = directions - (directions @ along)[:, None] * along
    best = ((members - one) @ level.T).amax(0) < 1e-9
    if not best.any():
        return None
    # Seen by the eye if it is on a side that faces it.
    return "-" if (level[best, 2] > 0).any() else ":"


def draw_one(axes: Axes, polytope: Polytope) -> None:
    structure, scores = polytope.structure, polytope.scores
    count = int(structmax.log_count(scores, structure).exp().round())
    corners = structmax.topk(scores, structure, count).parts
    placed = polytope.place(corners)
    for one, other in combinations(placed, 2):
        if style := edge(one, other, placed):
            axes.plot(*torch.stack([one, other], -1)[:2], color="#8A8A8A", linestyle=style, linewidth=1.2)

    # The few structures that SparseMAP keeps at temperature 1, and the face of which they are the corners.
    sparse = structmax.sparsemap(scores, structure)
    kept = polytope.place(sparse.parts)
    axes.fill(*kept[:, :2].T, color="#F8E3B5", linewidth=8, joinstyle="round", zorder=0)
    axes.scatter(*kept[:, :2].T, s=90, color="C4", zorder=3)

    temperatures = torch.logspace(1.7, -1.3, 151)
    for omega, colour in ((Entropy, "C0"), (SquaredNorm, "C2")):
        points = [structmax.smoothed_marginals(scores, structure, omega(float(t))) for t in temperatures]
        path = torch.stack([polytope.place(point) for point in points])
        now = polytope.place(structmax.smoothed_marginals(scores, structure, omega(1.0)))
        axes.plot(*path[:, :2].T, color=colour, zorder=4)
        axes.plot(*now[:2], "o", color=colour, markersize=7, zorder=5)
    axes.plot(*polytope.place(structmax.argmax(scores, structure))[:2], "*", color="C3", markersize=15, zorder=6)

    middle = placed.mean(0)
    for parts, corner in zip(polytope.switches(corners), placed, strict=True):
        across, up = torch.nn.functional.normalize((corner - middle)[:2], dim=0).tolist()
        name = "".join("●" if on else "○" for on in parts)
        side = "center" if abs(across) < 0.5 else "left" if across > 0 else "right"
        axes.annotate(name, corner[:2], (11 * across, 15 * up), textcoords="offset points", ha=side, va="center")
    axes.set_title(polytope.title, pad=18)
    axes.set_aspect("equal")
    axes.margins(0.17, 0.09)
    axes.axis("off")


def draw() -> Figure:
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, panels = plt.subplots(2, 2, figsize=(6, 6))
    *drawn, words = panels.flat
    for axes, polytope in zip(drawn, POLYTOPES, strict=True):
        draw_one(axes, polytope)
    words.axis("off")
    words.plot([], [], "*", color="C3", markersize=15, label="argmax")
    words.plot([], [], "-o", color="C0", markersize=7, label="marginals")
    words.plot([], [], "-o", color="C2", markersize=7, label="SparseMAP")
    words.plot([], [], "o", color="C4", markersize=9, label="its few structures")
    words.legend(loc="center", title="paths as temperature falls,\ndots where it is 1", alignment="left")
    return figure


if __name__ == "__main__":
    draw().savefig("polytopes.png")
