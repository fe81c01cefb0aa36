"""Draws the newest rows of `results/*-structures.csv`: `python benchmarks/plot.py` writes docs/pictures/speed.png.

A group of bars is a structure at one size, forward and backward of its log-partition; a bar is this library or the
fastest peer, on the CPU or on the GPU, where it was measured. Shorter is better, and each line of the grid is ten times
the one before.
"""

import csv
from pathlib import Path

import matplotlib
from matplotlib import pyplot

matplotlib.use("Agg")

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "pictures" / "speed.png"
# The cases that a peer can do, and what to call them.
SIZES = {
    "chain, one matrix/64x128x64": "linear chain\n64 × 128, 64 tags",
    "soft-DTW/32x256x256": "time warping\n32 × 256 × 256",
    "projective tree/32x40": "projective tree\n32 × 40 words",
    "binary tree/32x40": "binary tree\n32 × 40 words",
    "spanning tree/32x40": "spanning tree\n32 × 40 words",
}
OURS = "structmax"
# Whose, where, colour.
BARS = {("peer", "cpu"): "#b9bec7", ("ours", "cpu"): "#3b5bdb", ("peer", "gpu"): "#868e96", ("ours", "gpu"): "#0b7285"}


def newest() -> dict[tuple[str, str, str], tuple[float, str]]:
    """The last median of each case and who took it, by whose it is and where it ran."""
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    for path in sorted((HERE / "results").glob("*-structures.csv")):
        where = "cpu" if path.name.startswith("cpu") else "gpu"
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["task"] == "marginals":
                    whose = "ours" if row["contender"] == OURS else "peer"
                    times.setdefault((row["case"], whose, where), {})[row["contender"]] = float(row["median_ms"])
    return {key: min((ms, name) for name, ms in each.items()) for key, each in times.items()}


def main() -> None:
    times = newest()
    cases = [case for case in SIZES if any((case, *bar) in times for bar in BARS)]
    bars = [bar for bar in BARS if any((case, *bar) in times for case in cases)]
    several = len({where for _, where in bars}) > 1
    # Narrow, with large letters: it is read on phones.
    figure, axes = pyplot.subplots(figsize=(5, 0.9 + 0.7 * len(cases)), layout="constrained")
    width = 0.8 / len(bars)
    for number, bar in enumerate(bars):
        found = [(at, *times[case, *bar]) for at, case in enumerate(cases) if (case, *bar) in times]
        places = [at + (number - (len(bars) - 1) / 2) * width for at, _, _ in found]
        drawn = axes.barh(places, [ms for _, ms, _ in found], width, color=BARS[bar])
        where = f", {bar[1].upper()}" if several else ""
        labels = [f"{name} {f'{ms:.0f}' if ms >= 10 else f'{ms:.2g}'}{where}" for _, ms, name in found]
        axes.bar_label(drawn, labels, fontsize=9, padding=3)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    # Room for the words after the longest bar.
    axes.set_xlim(right=20 * max(times[case, *bar][0] for case in cases for bar in bars if (case, *bar) in times))
    axes.set_xlabel("milliseconds, forward + backward")
    axes.set_yticks(range(len(cases)), [SIZES[case] for case in cases])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=150)
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
