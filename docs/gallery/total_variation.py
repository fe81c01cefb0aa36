"""Denoising by total variation, and the attention it gives: `python docs/gallery/total_variation.py` draws
total_variation.png.

Niculae & Blondel 2017, A regularized framework for sparse and structured neural attention,
https://arxiv.org/abs/1705.07704.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import structmax

WORDS = ("the", "old", "red", "barn", "was", "sold", "to", "a", "young", "couple")
SCORES = (0.4, 1.0, 1.15, 1.25, -0.1, 0.55, -0.6, 0.1, 0.95, 1.1)
MAPPINGS = {
    "softmax": (structmax.softmax, "C0"),
    "sparsemax": (structmax.sparsemax, "C2"),
    "fusedmax": (lambda x: structmax.fusedmax(x, lam=0.2), "C1"),
    "oscarmax": (lambda x: structmax.oscarmax(x, lam=0.06), "C3"),
}


def denoise(axes: Axes) -> None:
    """A piecewise constant signal with noise, and the argmin of ½‖y − x‖² + lam Σ |y_{i+1} − y_i|."""
    lengths, levels = torch.tensor([30, 20, 35, 25, 40]), torch.tensor([0.0, 2.0, 1.0, -1.0, 0.5])
    signal = levels.double().repeat_interleave(lengths)
    noise = torch.randn(len(signal), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noisy = signal + 0.4 * noise
    axes.plot(noisy, ".", color="#8A8A8A", markersize=5, label="noisy")
    axes.plot(signal, color="C0", linewidth=1.2, linestyle=(0, (3, 1.5)), drawstyle="steps-mid", label="true")
    axes.plot(structmax.prox_tv(noisy, lam=2.0), color="C1", drawstyle="steps-mid", label="prox_tv, lam = 2")
    axes.set(title="A signal without its noise", xlim=(-1, len(signal)), ylim=(-2, 3.6))
    axes.legend(ncols=3, loc="upper right", handlelength=1.4, columnspacing=1.2, borderaxespad=0.0)


def attend(axes: Axes, name: str, p: np.ndarray, colour: str) -> None:
    """One weight for each word. Rings are exact zeros."""
    places = np.arange(len(p))
    axes.bar(places, p, color=colour, width=0.75)
    axes.plot(places[p == 0], p[p == 0], "o", color="white", markeredgecolor="#8A8A8A", markersize=5)
    values = len(np.unique(p[p > 0].round(9)))
    axes.set_title(f"{name}: {values} values")
    axes.set_xticks(places, WORDS, rotation=90)
    axes.tick_params("x", length=0)
    axes.set_ylim(-0.02, 0.44)


def draw() -> Figure:
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure = plt.figure(figsize=(6, 7))
    above, *panels = figure.subplot_mosaic("AA;BC;DE").values()
    denoise(above)
    scores = torch.tensor(SCORES, dtype=torch.float64)
    for axes, (name, (mapping, colour)) in zip(panels, MAPPINGS.items(), strict=True):
        attend(axes, name, mapping(scores).numpy(), colour)
    for axes in panels[:2]:
        axes.set_xticklabels([])
    for axes in panels[1::2]:
        axes.set_yticklabels([])
    return figure


if __name__ == "__main__":
    draw().savefig("total_variation.png")
