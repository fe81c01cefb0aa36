"""The gradients of many estimators on the triangle: `python docs/gallery/estimators.py` draws estimators.png."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from torch import Tensor

import structmax
from structmax import estimators, omega
from structmax.estimators import AbstractEstimator, AbstractSurrogate
from structmax.plots.simplex import CORNERS

DRAWS = 400
LEVELS = (0, 0.5, 1, 2, 4, 8)
SHADES = ("#FFFFFF", "#FDF0D9", "#FBDFAE", "#F7C978", "#EFB03F", "#E0922A")
# The loss is ‖z − AIM‖². Of the three corners the first, lower left, has the least; of all means of them, AIM itself.
AIM = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
ESTIMATORS: dict[str, AbstractEstimator | AbstractSurrogate] = {
    "exact": estimators.Enumerate(),
    "score function": estimators.ScoreFunction(),
    "self-critical": estimators.ScoreFunction(1, estimators.SelfCritical()),
    "leave one out, 4 draws": estimators.ScoreFunction(4, estimators.LeaveOneOut()),
    "without replacement, 2": estimators.SampleWithoutReplacement(2),
    "sum and sample": estimators.SumAndSample(1),
    "REBAR": estimators.Rebar(),
    "VIMCO, 4 draws": estimators.Vimco(4),
    "ReinMax": estimators.ReinMax(),
    "straight-through": estimators.StraightThrough(),
    "straight-through softmax": estimators.StraightThrough(omega.Entropy()),
    "straight-through SparseMAP": estimators.StraightThrough(omega.SquaredNorm()),
    "straight-through Gumbel": estimators.straight_through_gumbel(),
    "perturb-and-MAP": estimators.PerturbAndMAP(),
    "perturbed, 4 draws": estimators.Perturbed(4),
    "SPIGOT": estimators.Spigot(),
    "SPIGOT-CE": estimators.SpigotCE(),
    "SPIGOT-EG": estimators.SpigotEG(),
    "black-box interpolation": estimators.BlackboxInterpolation(),
    "implicit MLE": estimators.ImplicitMLE(),
    "sparse, 2 best": estimators.SparseTopK(2),
    "SparseMAP": estimators.SparseSupport(),
    "softmax": estimators.Relaxation(omega.Entropy()),
    "Gumbel-softmax": estimators.gumbel_relaxation(),
}


def loss(z: Tensor, _: Tensor) -> Tensor:
    return ((z - AIM) ** 2).sum(-1)


def grid(lines: int) -> Tensor:
    """Points inside the triangle, (points, 3)."""
    inside = [(i, j, lines - i - j) for i in range(lines + 1) for j in range(lines + 1 - i)]
    return (torch.tensor(inside, dtype=torch.float64) + 0.25) / (lines + 3 * 0.25)


def field(p: Tensor, estimator: AbstractEstimator | AbstractSurrogate) -> tuple[Tensor, Tensor]:
    """At scores log p, the mean of the gradient, (points, 3), and how far one draw is from it, (points,)."""
    scores = p.log().expand(DRAWS, *p.shape).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    expected = structmax.expect(loss, scores, structmax.Simplex(), estimator, generator=generator)
    (found,) = torch.autograd.grad(expected.value.sum(), scores)
    return found.mean(0), found.var(0).sum(-1).sqrt()


def draw_one(axes: Axes, name: str, estimator: AbstractEstimator | AbstractSurrogate) -> ContourSet:
    p = grid(7)
    mean, deviation = field(p, estimator)
    length = mean.norm(dim=-1, keepdim=True)
    typical = length.mean()
    x, y = (p @ CORNERS).T
    shade = axes.tricontourf(x, y, deviation / typical, LEVELS, colors=SHADES, extend="max")
    # Arrows longer than the typical one are cut to its length, so that short ones are seen, too.
    arrows = -mean / length.clamp_min(typical) @ CORNERS
    axes.quiver(x, y, *arrows.T, angles="xy", scale_units="xy", scale=6, pivot="mid", width=0.013, headwidth=4)
    axes.plot(*CORNERS[[0, 1, 2, 0]].T, color="#8A8A8A", linewidth=1)
    axes.plot(*(AIM @ CORNERS), "o", color="C1", markersize=6)
    axes.plot(*CORNERS[0], "*", color="C3", markersize=11, clip_on=False)
    axes.set_title(name, loc="center", fontsize=10)
    axes.set(aspect="equal", xlim=(-0.52, 0.52), ylim=(-0.32, 0.6))
    axes.axis("off")
    return shade


def draw() -> Figure:
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, panels = plt.subplots(8, 3, figsize=(6, 13.4))
    for axes, (name, estimator) in zip(panels.flat, ESTIMATORS.items(), strict=True):
        shade = draw_one(axes, name, estimator)
    label = "standard deviation of one draw / mean length of the arrows"
    figure.colorbar(shade, ax=panels, location="bottom", shrink=0.8, aspect=30, pad=0.01, label=label)
    return figure


if __name__ == "__main__":
    draw().savefig("estimators.png")
