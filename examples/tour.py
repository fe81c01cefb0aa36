"""A tour of structmax: prints and draws what the mappings do. `make tour` runs it.

Everything is computed in float64, so that each kernel is compiled once; a second tour finds it compiled. Pictures, and
a page of them, go to `demo/`.
"""

from __future__ import annotations

import base64
import html
import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor, nn

import structmax
from structmax.plots import simplex

DTYPE = torch.float64
MAPPINGS: dict[str, Callable[..., Tensor]] = {
    "softmax": structmax.softmax,
    "entmax15": structmax.entmax15,
    "sparsemax": structmax.sparsemax,
}


# ---------------------------------------------------------------- what is printed: with rich where it is installed

try:
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    CONSOLE: Any = Console()
except ImportError:
    CONSOLE = None


def heading(text: str) -> None:
    if CONSOLE:
        CONSOLE.print()
        CONSOLE.rule(f"[bold]{text}", align="left")
    else:
        print(f"\n── {text}")


def say(text: str) -> None:
    if CONSOLE:
        CONSOLE.print(text, markup=False)
    else:
        print(text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if CONSOLE:
        drawn = Table(*head, header_style="bold", box=None, pad_edge=False)
        for row in rows:
            drawn.add_row(*row)
        CONSOLE.print(drawn)
        return
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def steps_of(count: int, what: str) -> Iterable[int]:
    return track(range(count), description=what, console=CONSOLE) if CONSOLE else range(count)


def digits(values: Tensor) -> str:
    return " ".join("  · " if value == 0 else f"{value:.2f}" for value in values.tolist())


# ---------------------------------------------------------------- the stations


@dataclass(frozen=True)
class Picture:
    name: str
    caption: str
    figure: Figure


def same_scores() -> Picture:
    heading("The same scores through every mapping")
    x = torch.tensor([0.9, 1.1, 1.0, 0.2, -0.3, 0.7, -1.0, 1.0], dtype=DTYPE)
    points = {
        "softmax": structmax.softmax(x),
        "entmax, alpha = 1.25": structmax.entmax(x, 1.25),
        "entmax15": structmax.entmax15(x),
        "sparsemax": structmax.sparsemax(x),
        "entmax, alpha = 4": structmax.entmax(x, 4.0),
        "normmax": structmax.normmax(x),
        "topk_sparsemax, k = 2": structmax.topk_sparsemax(x, 2),
        "fusedmax, lam = 0.1": structmax.fusedmax(x, 0.1),
        "oscarmax, lam = 0.1": structmax.oscarmax(x, 0.1),
        "csoftmax, upper = 0.2": structmax.csoftmax(x, upper=0.2),
        "csparsemax, upper = 0.2": structmax.csparsemax(x, upper=0.2),
        "budget 2": structmax.budget(x, 2.0),
    }
    rows = [["scores", " ".join(f"{score:.1f}".rjust(4) for score in x.tolist()), ""]]
    rows += [[name, digits(p), str(int(p.count_nonzero()))] for name, p in points.items()]
    table(("mapping", "probabilities ( · is exactly 0)", "support"), rows)
    caption = "Rings are exact zeros. Blue bars have exactly one value: fused neighbours, clusters, met bounds."
    return Picture("bars", caption, simplex.bars())


def masks() -> None:
    heading("Masks, lengths, and rows in which everything is masked")
    x = torch.tensor([[0.5, 1.0, 0.8, 2.0]], dtype=DTYPE).expand(3, -1)
    p = structmax.sparsemax(x, lengths=torch.tensor([4, 3, 0]))
    table(("length", "sparsemax"), [[str(n), digits(row)] for n, row in zip((4, 3, 0), p, strict=True)])
    say("A row without a usable entry is zeros, with zero gradient: never NaN.")


def two_geometries() -> list[Picture]:
    moving = "Probability of one class as its score moves. Sparse mappings reach 0 and 1 at a finite score."
    plane = (
        "Above: the plane of scores of three classes. Softmax never leaves the white region; the others give exact "
        "zeros. Below: where a square grid of scores lands."
    )
    return [Picture("one-score", moving, simplex.mappings_1d()), Picture("triangle", plane, simplex.triangle())]


def learned_alpha(steps: int) -> Picture:
    heading("A learnable alpha for each head")
    teacher = torch.tensor([1.05, 1.5, 2.0], dtype=DTYPE)
    scores = 2 * torch.randn(16, 3, 8, 16, generator=torch.Generator().manual_seed(0), dtype=DTYPE)
    wanted = structmax.entmax(scores, teacher)
    attention = structmax.nn.Entmax(nn.Parameter(torch.full((3,), 1.3, dtype=DTYPE)))
    optimiser = torch.optim.Adam(attention.parameters(), lr=0.03)
    path = []
    for _ in steps_of(steps, "alpha"):
        path.append(attention.alpha.detach().clone())
        loss = (attention(scores) - wanted).square().sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    final = attention.alpha.tolist()
    rows = [[str(head), f"{a:.2f}", "1.30", f"{b:.3f}"] for head, (a, b) in enumerate(zip(teacher, final, strict=True))]
    table(("head", "teacher", "start", "learned"), rows)
    return Picture("alpha", "Each head's alpha moves, by gradient, to the dashed one.", _alpha_figure(path, teacher))


def _alpha_figure(path: list[Tensor], teacher: Tensor) -> Figure:
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    colours = ("#000000", "#0072B2", "#D55E00")
    for head, (line, goal) in enumerate(zip(torch.stack(path, -1), teacher.tolist(), strict=True)):
        axes.plot(line.numpy(), color=colours[head], linewidth=1.9)
        axes.axhline(goal, color=colours[head], linewidth=0.9, linestyle=(0, (4, 3)))
        axes.text(len(path), goal + 0.02, f"head {head}", color=colours[head], ha="right", va="bottom", fontsize=9)
    axes.set_title("Learning alpha by gradient", loc="left", fontsize=10.5)
    axes.set(xlabel="step", ylabel="alpha", ylim=(0.9, 2.2))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


class Reader(nn.Module):
    """Scores each item by its key and returns the attended value."""

    def __init__(self, mapping: Callable[..., Tensor]) -> None:
        super().__init__()
        self.mapping = mapping
        self.score = nn.Sequential(nn.Linear(8, 32, dtype=DTYPE), nn.ReLU(), nn.Linear(32, 1, dtype=DTYPE))

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.mapping(self.score(keys).squeeze(-1))
        return (weights.unsqueeze(-1) * values).sum(-2), weights


def sequences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys (B, 16, 8), values (B, 16, 4), which three items count (B, 16), and the mean of their values (B, 4)."""
    chosen = torch.rand(count, 16, generator=generator, dtype=DTYPE).topk(3, -1).indices
    counts = torch.zeros(count, 16, dtype=torch.bool).scatter(-1, chosen, True)
    keys = torch.randn(count, 16, 8, generator=generator, dtype=DTYPE)
    keys[..., 0] += 4.0 * counts
    values = torch.randn(count, 16, 4, generator=generator, dtype=DTYPE)
    return keys, values, counts, (counts.unsqueeze(-1) * values).sum(-2) / 3


def sparse_attention(steps: int) -> Picture:
    heading("Sparse attention, trained: find the 3 items of 16 that count, and average them")
    test = sequences(512, torch.Generator().manual_seed(1))
    shown, rows = {}, []
    for name, mapping in MAPPINGS.items():
        torch.manual_seed(0)
        reader = Reader(mapping)
        optimiser = torch.optim.Adam(reader.parameters(), lr=0.01)
        chance = torch.Generator().manual_seed(2)
        for _ in steps_of(steps, name):
            keys, values, _, wanted = sequences(128, chance)
            loss = (reader(keys, values)[0] - wanted).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        keys, values, counts, wanted = test
        with torch.no_grad():
            answer, weights = reader(keys, values)
        astray = weights.masked_fill(counts, 0.0).sum(-1).mean()
        support = weights.count_nonzero(-1).double().mean()
        rows.append([name, f"{(answer - wanted).square().mean():.4f}", f"{support:.1f}", f"{astray:.3f}"])
        shown[name] = weights[:10]
    table(("attention", "test error", "items used", "weight on items that do not count"), rows)
    caption = "Ten test sequences. Rings mark the three items that count; white is exactly zero."
    return Picture("attention", caption, _attention_figure(shown, test[2][:10]))


def _attention_figure(shown: dict[str, Tensor], counts: Tensor) -> Figure:
    figure = Figure(figsize=(12.4, 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True)
    # Starts well below white, which is left to exact zeros.
    blues = LinearSegmentedColormap.from_list("blues", ["#D3E3F3", "#08306B"])
    for axes, (name, weights) in zip(panels, shown.items(), strict=True):
        image = axes.imshow(weights.masked_fill(weights == 0, torch.nan).numpy(), cmap=blues, vmin=0, vmax=0.5)
        row, item = counts.nonzero().T.numpy()
        axes.plot(item, row, "o", markersize=11, markerfacecolor="none", markeredgecolor="#D55E00", markeredgewidth=1.3)
        axes.set_title(f"{name}: {weights.count_nonzero(-1).double().mean():.1f} items used", loc="left", fontsize=10.5)
        axes.set(xlabel="item", xticks=range(0, 16, 5), yticks=[])
        axes.spines[:].set_color("#BBBBBB")
    panels[0].set_ylabel("sequence")
    figure.colorbar(image, ax=panels, label="weight", shrink=0.85)
    return figure


def questions() -> None:
    heading("Questions to a structure")
    scores, one = torch.tensor([0.2, 1.5, 0.3], dtype=DTYPE), structmax.Simplex()
    parts, values = structmax.topk(scores, one, 2)
    p = structmax.Distribution(scores, one)
    draws = p.sample((1000,), generator=torch.Generator().manual_seed(0))
    rows = [
        ["argmax", str(one.decode(structmax.argmax(scores, one)).item())],
        ["topk, k = 2", f"{one.decode(parts).tolist()} with scores {values.tolist()}"],
        ["log_partition", f"{structmax.log_partition(scores, one):.4f}"],
        ["marginals", digits(structmax.marginals(scores, one))],
        ["mean of 1000 samples", digits(draws.mean(0))],
        ["entropy", f"{p.entropy():.4f} nats"],
    ]
    table(("question", "answer"), rows)
    heading("What runs, and why not something faster")
    table(("question", "backend"), [[name, answer] for name, answer in structmax.which(scores, one).items()])


def trouble() -> None:
    heading("When something is wrong with the scores")
    scores = torch.tensor([[0.0, 1.0, -torch.inf], [-torch.inf] * 3, [torch.inf, 0.0, 0.0]], dtype=DTYPE)
    say(str(structmax.diagnose(scores)))


# ---------------------------------------------------------------- the page

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>structmax: a tour</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 70rem; margin: 2rem auto }}
body {{ padding: 0 1rem }} h1 {{ font-weight: 600 }} figure {{ margin: 2.5rem 0 }} img {{ max-width: 100% }}
figcaption {{ color: #555; max-width: 46rem }}
</style></head><body><h1>structmax: a tour</h1>
<p>Scores in; a discrete, sparse or soft structure out; the right gradient back.</p>
{figures}
</body></html>
"""


def write_page(pictures: Sequence[Picture], folder: Path) -> Path:
    """The pictures as PNG files, and one page that holds them all."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for picture in pictures:
        stream = io.BytesIO()
        picture.figure.savefig(stream, format="png", dpi=110)
        (folder / f"{picture.name}.png").write_bytes(stream.getvalue())
        data = base64.b64encode(stream.getvalue()).decode()
        caption = html.escape(picture.caption)
        image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
        figures.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    page = folder / "index.html"
    page.write_text(PAGE.format(figures="\n".join(figures)), encoding="utf-8")
    return page


def main(folder: Path, steps: int = 160) -> Path:
    """Walks the tour; returns the page it wrote."""
    start = time.perf_counter()
    pictures = [same_scores()]
    masks()
    pictures += [*two_geometries(), learned_alpha(steps // 2), sparse_attention(steps)]
    questions()
    trouble()
    page = write_page(pictures, folder)
    heading(f"Done in {time.perf_counter() - start:.0f} s")
    say(f"The pictures, on one page: {os.path.relpath(page)}")
    return page


if __name__ == "__main__":
    # The tensors here are tiny: sharing them among threads costs more than it gives.
    torch.set_num_threads(1)
    main(Path(__file__).resolve().parent.parent / "demo")
