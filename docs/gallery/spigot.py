"""The step of SPIGOT beside the straight-through gradient: `python docs/gallery/spigot.py` draws spigot.png.

Figure 1 of Peng, Thomson & Smith 2018, Backpropagating through structured argmax using a SPIGOT,
https://arxiv.org/abs/1805.04658.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import structmax
from structmax.estimators import Spigot, StraightThrough
from structmax.plots.simplex import CORNERS

SCORES = torch.tensor([1.0, 0.2, 0.4], dtype=torch.float64)
# What a loss says of z, chosen to sum to 0: the plane of the triangle shows it whole.
COTANGENTS = {
    "the loss wants another": torch.tensor([0.75, -0.65, -0.1], dtype=torch.float64),
    "the loss wants the same": torch.tensor([-0.4, 0.3, 0.1], dtype=torch.float64),
}


def gradient(estimator: Spigot | StraightThrough, g: Tensor) -> tuple[Tensor, Tensor]:
    """z = argmax(scores), and the gradient that the scores receive for the loss ⟨g, z⟩."""
    scores = SCORES.clone().requires_grad_()
    z = structmax.surrogate(scores, structmax.Simplex(), estimator)
    (found,) = torch.autograd.grad((g * z).sum(), scores)
    return z.detach(), found


def arrow(axes: Axes, start: Tensor, end: Tensor, colour: str, width: float) -> None:
    style = {"arrowstyle": "-|>,head_width=0.35,head_length=0.7", "color": colour, "linewidth": width}
    axes.annotate("", (end @ CORNERS).tolist(), (start @ CORNERS).tolist(), arrowprops={**style, "shrinkA": 0, "shrinkB": 0})


def step(axes: Axes, title: str, g: Tensor) -> None:
    z, straight = gradient(StraightThrough(), g)
    _, projected = gradient(Spigot(step=1.0), g)
    wish, target = z - straight, z - projected
    axes.fill(*CORNERS.T, facecolor="#F4F4F4", edgecolor="#8A8A8A", linewidth=1.5)
    axes.plot(*(torch.stack([wish, target]) @ CORNERS).T, color="#8A8A8A", linestyle=":", zorder=1)
    arrow(axes, z, wish, "C0", 2)
    if not torch.allclose(z, target):
        arrow(axes, z, target, "C2", 3)
    axes.plot(*(z @ CORNERS), "*", color="C3", markersize=17, zorder=4)
    axes.plot(*(wish @ CORNERS), "o", color="C0", markersize=8, zorder=4)
    axes.plot(*(target @ CORNERS), "o", color="C2", markersize=8, zorder=5)
    axes.set(title=title, aspect="equal", xlim=(-0.95, 0.85), ylim=(-0.62, 0.72))
    axes.axis("off")


def draw() -> Figure:
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, panels = plt.subplots(1, 2, figsize=(6, 3.9))
    for axes, (title, g) in zip(panels, COTANGENTS.items(), strict=True):
        step(axes, title, g)
    return figure


if __name__ == "__main__":
    draw().savefig(Path(__file__).with_suffix(".png"))
