"""Draws the newest rows of `results/*-structures.csv`: `python benchmarks/plot.py` writes docs/pictures/speed.png.

A group of bars is a structure at one size, forward and backward of its log-partition; a bar is this library or the
fastest peer, on the CPU or on the GPU. Lower is better, and each line of the grid is ten times the one below.
"""

import csv
from pathlib import Path

import matplotlib
from matplotlib import pyplot

matplotlib.use("Agg")

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "pictures" / "speed.png"
SIZES = ("chain, one matrix/64x128x64", "chain, general/64x128x64", "projective tree/32x40", "binary tree/32x40",
         "spanning tree/32x40", "soft-DTW/32x256x256")  # fmt: skip
OURS = "structmax"
BARS = {
    ("peer", "cpu"): ("fastest peer, CPU", "#c9c9c9"),
    ("peer", "gpu"): ("fastest peer, GPU", "#8f8f8f"),
    ("ours", "cpu"): ("structmax, CPU", "#f2a65a"),
    ("ours", "gpu"): ("structmax, GPU", "#c8553d"),
}


def newest() -> dict[tuple[str, str, str], float]:
    """The last median of each case, by whose it is and where it ran."""
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    for path in sorted((HERE / "results").glob("*-structures.csv")):
        where = "cpu" if path.name.startswith("cpu") else "gpu"
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["task"] == "marginals":
                    whose = "ours" if row["contender"] == OURS else "peer"
                    times.setdefault((row["case"], whose, where), {})[row["contender"]] = float(row["median_ms"])
    return {key: min(each.values()) for key, each in times.items()}


def _spoken(case: str) -> str:
    name, size = case.split("/")
    return f"{name}\n{size.replace('x', ' × ')}"


def main() -> None:
    times = newest()
    cases = [case for case in SIZES if any((case, *bar) in times for bar in BARS)]
    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(BARS)
    for number, (bar, (label, colour)) in enumerate(BARS.items()):
        found = [(at, times[case, *bar]) for at, case in enumerate(cases) if (case, *bar) in times]
        places = [at + (number - (len(BARS) - 1) / 2) * width for at, _ in found]
        drawn = axes.bar(places, [ms for _, ms in found], width, label=label, color=colour)
        axes.bar_label(drawn, [f"{ms:.0f}" if ms >= 10 else f"{ms:.2g}" for _, ms in found], fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds, forward + backward")
    axes.set_xticks(range(len(cases)), [_spoken(case) for case in cases], fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, ncols=2, frameon=False)
    figure.savefig(PICTURE, dpi=150)
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
