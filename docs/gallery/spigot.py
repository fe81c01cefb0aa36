"""The step of SPIGOT beside the straight-through gradient: `python docs/gallery/spigot.py` draws spigot.png.

Figure 1 of Peng, Thomson & Smith 2018, Backpropagating through structured argmax using a SPIGOT,
https://arxiv.org/abs/1805.04658.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

import structmax
from structmax.estimators import Spigot, StraightThrough
from structmax.plots.simplex import CORNERS

SCORES = torch.tensor([1.0, 0.2, 0.4], dtype=torch.float64)
# What a loss says of z, chosen to sum to 0: the plane of the triangle shows it whole.
COTANGENTS = {
    "the loss prefers another corner": torch.tensor([0.5, -0.9, 0.4], dtype=torch.float64),
    "the loss prefers z": torch.tensor([-0.4, 0.05, 0.35], dtype=torch.float64),
}


def gradient(estimator: Spigot | StraightThrough, g: Tensor) -> tuple[Tensor, Tensor]:
    """z = argmax(scores), and the gradient that the scores receive for the loss ⟨g, z⟩."""
    scores = SCORES.clone().requires_grad_()
    z = structmax.surrogate(scores, structmax.Simplex(), estimator)
    (found,) = torch.autograd.grad((g * z).sum(), scores)
    return z.detach(), found


def arrow(axes: Axes, start: Tensor, end: Tensor, colour: str, width: float) -> None:
    x, y = (torch.stack([start, end]) @ CORNERS).T
    style = {"arrowstyle": "-|>,head_width=0.35,head_length=0.7", "color": colour, "linewidth": width}
    axes.annotate("", (x[1], y[1]), (x[0], y[0]), arrowprops={**style, "shrinkA": 0, "shrinkB": 5})


def step(axes: Axes, title: str, g: Tensor) -> None:
    z, straight = gradient(StraightThrough(), g)
    _, projected = gradient(Spigot(step=1.0), g)
    wish, target = z - straight, z - projected
    axes.fill(*CORNERS.T, facecolor="#F4F4F4", edgecolor="#8A8A8A", linewidth=1.5)
    axes.plot(*(torch.stack([wish, target]) @ CORNERS).T, color="#8A8A8A", linestyle=":", zorder=1)
    arrow(axes, z, wish, "C0", 2)
    if projected.any():
        arrow(axes, z, target, "C2", 3)
    else:
        axes.text(0, 0, "SPIGOT:\nno gradient", color="C2", ha="center", va="center")
    for point, marker, colour, size in ((z, "*", "C3", 17), (wish, "o", "C0", 8), (target, "o", "C2", 7)):
        axes.plot(*(point @ CORNERS), marker, color=colour, markersize=size, zorder=4)
    axes.set_title(title, loc="center")
    axes.set(aspect="equal", xlim=(-0.78, 0.56), ylim=(-0.72, 0.62))
    axes.axis("off")


def draw() -> Figure:
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, panels = plt.subplots(1, 2, figsize=(6, 3.9))
    for axes, (title, g) in zip(panels, COTANGENTS.items(), strict=True):
        step(axes, title, g)
    key = (
        Line2D([], [], marker="*", markersize=15, linestyle="", color="C3", label="z, the best of three"),
        Line2D([], [], marker="o", markersize=8, color="C0", label="straight-through: z − g"),
        Line2D([], [], linestyle=":", color="#8A8A8A", label="to the nearest in the triangle"),
        Line2D([], [], marker="o", markersize=8, color="C2", label="SPIGOT: Proj(z − g)"),
    )
    figure.legend(handles=key, loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


if __name__ == "__main__":
    draw().savefig("spigot.png")
