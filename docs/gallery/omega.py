"""Ω and max_Ω for two classes: `python docs/gallery/omega.py` draws omega.png.

Figure 1 of Niculae & Blondel 2017, https://arxiv.org/abs/1705.07704, of Mensch & Blondel 2018,
https://arxiv.org/abs/1802.03676, and of Blondel, Martins & Niculae 2020, https://arxiv.org/abs/1901.02324.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

import structmax
from structmax.omega import Entropy, LocalL2, LocalTsallis, Zero

REGULARISERS = {
    "Ω = 0": (Zero(), "C3", (0, (4, 1.5))),
    "negative entropy": (Entropy(), "C0", "-"),
    "Tsallis, α = 1.5": (LocalTsallis(1.5), "C1", "-"),
    "squared norm (Gini)": (LocalL2(), "C2", "-"),
}
SHOWN = 2.9


def draw() -> Figure:
    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, ((left, value), (point, loss)) = plt.subplots(2, 2, figsize=(6, 5.6))
    # Odd, so that 0 is among them. Far enough for softmax to reach 0 and 1.
    x = torch.linspace(-15, 15, 3001, dtype=torch.float64)
    scores = torch.stack([x, torch.zeros_like(x)], -1).requires_grad_()
    first = torch.tensor([1.0, 0.0], dtype=torch.float64).expand_as(scores)
    simplex = structmax.Simplex()

    for name, (omega, colour, style) in REGULARISERS.items():
        best = structmax.smoothed(scores, simplex, omega)
        (p,) = torch.autograd.grad(best.sum(), scores)
        # Where the maximum is attained, max_Ω(x) = ⟨x, p⟩ − Ω(p).
        cost = (scores * p).sum(-1) - best
        losses = structmax.fenchel_young(scores, simplex, first, omega, reduction="none")
        curves = ((left, p[:, 0], cost), (value, x, best), (point, x, p[:, 0]), (loss, x, losses))
        for axes, across, up in curves:
            axes.plot(across.detach(), up.detach(), color=colour, linestyle=style, label=name)

    left.set(title="Ω(p, 1 − p)", xlabel="p")
    value.set(title="max$_Ω$(x, 0)", xlabel="x", xlim=(-SHOWN, SHOWN), ylim=(-0.15, SHOWN))
    point.set(title="its gradient: p", xlabel="x", xlim=(-SHOWN, SHOWN))
    loss.set(title="loss if the first is right", xlabel="x", xlim=(-SHOWN, SHOWN), ylim=(-0.15, SHOWN))
    for axes in (left, value, point, loss):
        axes.grid()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


if __name__ == "__main__":
    draw().savefig("omega.png")
