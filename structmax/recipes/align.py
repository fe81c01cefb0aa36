"""Time series that may be warped: what do differentiable alignments find, and what are they good for?

Two series of a class show the same at different speeds. Dynamic time warping aligns them before it compares them:
hard, soft or sparse, by the Ω of the minimum over alignments. With it a class has a centre (`--task centroids`: a
barycentre, by gradient steps through the alignments), a series has neighbours (`--task neighbours`: there is nothing to
train, unless `--learn-window`), and a network that forecasts the rest of a series learns what will come rather than
exactly when (`--task forecast`). Without files, series are generated whose alignments are known: `warp_error` says how
far off those that are found are.

Reference: Sakoe & Chiba 1978, Dynamic programming algorithm optimization for spoken word recognition; Cuturi & Blondel
2017, Soft-DTW: a differentiable loss function for time-series; Mensch & Blondel 2018, Differentiable dynamic
programming for structured prediction and attention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from structmax import omega
from structmax.recipes.data import series, text
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.data.series import Series
from structmax.recipes.models.warping import CELLS, Forecaster, Nearest, Warping, learnt_band, means, warped
from structmax.training import RunError, Settings, Task, option

# how many series are held out, for each of two splits
HELD_OUT = 200
# Alignments are drawn with at most so many points, of so many pixels: three stand side by side.
DRAWN_POINTS, CELL = 40, 7
# How many classes are drawn, or forecasts.
DRAWN = 6


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A study of one distance."""

    least = Settings.least | {"temperature": 1e-6, "window": 0, "given": 0, "size": 1, "train_size": 4}
    most = Settings.most | {"window": 100, "given": 1}
    task: Literal["centroids", "neighbours", "forecast"] = option(
        "centroids",
        "compare a series with a centre of each class, or with all training series; or predict how it goes on",
    )
    distance: Literal["soft_dtw", "smoothed_l2", "dtw", "euclidean"] = option(
        "soft_dtw", "of two series: over all alignments, over a few, by the best one, or without a warp"
    )
    temperature: float = option(0.1, "for soft_dtw and smoothed_l2: how much the minimum over alignments is smoothed")
    window: int = option(100, "percent of the longest series by which aligned points may lie apart")
    learn_window: bool = option(
        False, "for neighbours: of the windows up to this one, take the best in leave-one-out on the training series"
    )
    given: float = option(0.6, "for forecast: the share of a series that is known")
    size: int = option(64, "for forecast: number of hidden units")
    train_size: int = option(100, "number of series to generate for training, if no files are given")
    train_file: str = option("", "series to train on: .ts, .tsv or text of the UCR archive")
    valid_file: str = option(
        "",
        "series that choose the best checkpoint, likewise; without it the training series do, each compared with the "
        "others, and forecast holds out every fifth of them",
    )
    test_file: str = option("", "series to test on, likewise")
    epochs: int = option(40, "passes over the training data")
    batch_size: int = option(32, "number of instances in a step, over all processes together")
    learning_rate: float = option(0.02, "highest learning rate of the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learn_window and (self.task != "neighbours" or self.distance == "euclidean"):
            raise ValueError(
                "`learn_window` should be given with task neighbours and a distance that warps, but these are "
                f"{self.task} and {self.distance}. Try `window` for a window of your own."
            )


def omegas(temperature: float) -> dict[str, omega.AbstractOmega]:
    """Those of the distances that align."""
    return {"soft_dtw": omega.Entropy(temperature), "smoothed_l2": omega.LocalL2(temperature), "dtw": omega.Zero()}


def splits(config: Config, device: torch.device) -> tuple[dict[str, Series], list[str]]:
    """Series to train on, to test and perhaps to validate with, and the names of the classes."""
    files = {"train": config.train_file, "valid": config.valid_file, "test": config.test_file}
    if not any(files.values()):
        seeds = {
            "train": (config.train_size, training_seed(config)),
            "valid": (HELD_OUT, VALID_SEED),
            "test": (HELD_OUT, TEST_SEED),
        }
        found = {name: series.generate(*numbers, device) for name, numbers in seeds.items()}
        return found, [str(number) for number in range(len(series.SIGNS))]
    if not (config.train_file and config.test_file):
        missing = "--test-file" if config.train_file else "--train-file"
        raise RunError(f"There should be files to train on and to test, or none, but {missing} is missing.")
    found, classes = series.splits(files, device)
    fewest = {"forecast": 5, "neighbours": 2}.get(config.task, 1)
    if "valid" not in found and len(found["train"]) < fewest:
        raise RunError(
            f"Without --valid-file there should be at least {fewest} series to train on, but {config.train_file} has "
            f"{len(found['train'])}."
        )
    if config.task == "forecast" and "valid" not in found:
        number = torch.arange(len(found["train"]), device=device) % 5
        found["valid"], found["train"] = found["train"].at(number == 4), found["train"].at(number != 4)
    return found, classes


def bands(window: int, data: dict[str, Series]) -> list[int]:
    """How far aligned points may lie apart, from 0 to `window` percent of the longest series, narrow bands first."""
    lengths = torch.cat([part.lengths for part in data.values()])
    shortest, longest = int(lengths.min()), int(lengths.max())
    found = sorted({percent * longest // 100 for percent in range(window + 1)})
    # a narrower one could not align the shortest with the longest
    allowed = [band for band in found if band >= longest - shortest]
    if not allowed:
        raise RunError(
            f"`window` should allow to align series of {shortest} and of {longest} points, but lets aligned points be "
            f"at most {found[-1]} apart. Try --window 100."
        )
    return allowed


class Recipe(Task[Config]):
    model: Nearest | Forecaster
    best = "fit"
    shown = ("loss",)
    meanings = {
        "loss": "what training minimises: the distance from a series to the centre of its class, or from a forecast to "
        "what came",
        "fit": "minus the mean distance from a series to the nearest centre or neighbour of its own class, 0 if none "
        "has one, or from a forecast to what came",
        "accuracy": "share of series whose nearest centre or neighbour is of their class",
        "mse": "mean squared error of the values of a forecast",
        "dtw": "squared errors of a forecast along its best alignment with what came, summed, on average",
        "warp_error": "how far the points that are aligned in two series of a class are from showing the same time, in "
        "percent of the whole, on average",
        "band": "number of points by which aligned points may lie apart, as learnt",
    }
    lower = ("loss", "mse", "dtw", "warp_error")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        data, self.classes = splits(config, device)
        longest = data["train"].values.shape[1]
        if config.task == "forecast" and longest < 2:
            raise RunError(
                f"Series to forecast should have at least 2 points, but those of {config.train_file} have 1."
            )
        stretched = {name: part.stretched(longest) for name, part in data.items()}
        # a network reads so many points, and differences need as many
        if config.task == "forecast" or config.distance == "euclidean":
            data = stretched
        self.train, self.means = data["train"], means(stretched["train"], len(self.classes))
        allowed = bands(config.window, data)
        of_distance = omegas(config.temperature).get(config.distance)
        self.band = learnt_band(of_distance, self.train, allowed) if config.learn_window else allowed[-1]
        self.warping = Warping(of_distance, self.band)
        # each compared with the others, as leave-one-out does
        self.without_itself = "valid" not in data and config.task == "neighbours"
        self.held_out = {"valid": data.get("valid", self.train), "test": data["test"]}
        self.given = min(max(1, round(config.given * longest)), longest - 1)
        if config.task == "forecast":
            self.model = Forecaster(self.given, longest - self.given, self.means.values.shape[-1], config.size)
        elif config.task == "neighbours":
            self.model = Nearest(self.train, learns=False)
        else:
            # the mean is the Euclidean centre already
            self.model = Nearest(self.means, learns=config.distance != "euclidean")
        self.model.to(device)
        # what does not learn is judged once
        self.judged: dict[str, dict[str, float]] = {}

    @property
    def learns(self) -> bool:
        return any(parameter.requires_grad for parameter in self.model.parameters())

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return torch.randperm(len(self.train), generator=self.shuffling(epoch)).split(self.config.batch_size)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        if not self.learns:
            return
        batch = self.train.at(indices.to(self.device))
        if isinstance(self.model, Forecaster):
            found, wanted = self.forecast(batch)
        else:
            # all classes at once: each series with the centre of its own
            found, wanted = self.model.known().at(batch.labels), batch
        yield self.warping(found, wanted).mean(), {}

    def forecast(self, whole: Series) -> tuple[Series, Series]:
        """How each goes on after its beginning, as foretold and as it did."""
        beginning, rest = whole.values.split([self.given, whole.values.shape[1] - self.given], 1)
        wanted = Series(rest, torch.full_like(whole.lengths, rest.shape[1]), whole.labels)
        # autocast makes it narrower
        return replace(wanted, values=self.model(beginning).to(rest.dtype)), wanted

    def evaluate(self, split: str) -> dict[str, float]:
        if split not in self.judged or self.learns:
            data = self.held_out[split]
            found = self._forecasts(data) if self.config.task == "forecast" else self._classified(data, split)[0]
            self.judged[split] = found | self._warp_error(data)
        return self.judged[split]

    def _forecasts(self, data: Series) -> dict[str, float]:
        measured = []
        for rows in torch.arange(len(data), device=self.device).split(max(1, CELLS // data.values.shape[1] ** 2)):
            found, wanted = self.forecast(data.at(rows))
            errors = (found.values - wanted.values).square().mean((-2, -1))
            measured.append(torch.stack([-self.warping(found, wanted), errors, Warping(omega.Zero())(found, wanted)]))
        fit, mse, dtw = torch.cat(measured, -1).mean(-1).tolist()
        return {"fit": fit, "mse": mse, "dtw": dtw}

    def _classified(self, data: Series, split: str) -> tuple[dict[str, float], Tensor]:
        """How good the nearest is, and of which class, (S,)."""
        assert isinstance(self.model, Nearest)
        known = self.model.known()
        table = self.warping.table(data, known)
        if split == "valid" and self.without_itself:
            table.fill_diagonal_(torch.inf)
        classes = known.labels[table.argmin(-1)]
        own = table.where(known.labels == data.labels.unsqueeze(-1), torch.inf).amin(-1)
        accuracy = (classes == data.labels).float().mean().item()
        # a series may be the only one of its class, and so may all
        own = own[own.isfinite()]
        metrics = {"fit": -own.mean().item() if len(own) else 0.0, "accuracy": accuracy}
        if self.config.learn_window:
            metrics["band"] = float(self.band)
        return metrics, classes

    def _warp_error(self, data: Series) -> dict[str, float]:
        """Of alignments of each series with the next of its class."""
        if data.times is None:
            return {}
        first, second = pairs(data)
        x, y = data.at(first), data.at(second)
        found = warped(self.warping.alignment(x, y), data.times[second].unsqueeze(-1)).squeeze(-1)
        inside = text.within(x.lengths, found.shape[-1])
        return {"warp_error": 100 * (found - data.times[first]).abs()[inside].mean().item()}

    # ---------------------------------------------------------------- pictures

    def drawings(self) -> list[dict[str, Any]]:
        data = self.held_out["valid"]
        if isinstance(self.model, Forecaster):
            return self._drawn_alignments(data) + self._drawn_forecasts(data)
        found = self._classified(data, "valid")[1]
        count = len(self.classes)
        confusion = {
            "kind": "matrix",
            "title": "Series of each class (rows) by the class of the nearest (columns)",
            "weights": torch.bincount(count * data.labels + found, minlength=count**2).view(count, count).tolist(),
            "rows": self.classes,
            "columns": self.classes,
        }
        centres = self._drawn_centres(self.model.known()) if self.config.task == "centroids" else []
        return [*self._drawn_alignments(data), *centres, confusion]

    def _drawn_centres(self, centres: Series) -> list[dict[str, Any]]:
        drawn = []
        for number, name in enumerate(self.classes[:DRAWN]):
            members = self.train.at(self.train.labels == number)
            lines = {"mean": line(self.means, number), "centre": line(centres, number)}
            behind = [line(members, row) for row in range(min(20, len(members)))]
            drawn.append({"kind": "series", "title": f"Centre of class {name}", "series": lines, "behind": behind})
        return drawn

    def _drawn_forecasts(self, data: Series) -> list[dict[str, Any]]:
        some = data.at(slice(DRAWN))
        found, _ = self.forecast(some)
        return [
            {
                "kind": "series",
                "title": f"Class {self.classes[int(some.labels[row])]}, from point {self.given}",
                "series": {"what came": line(some, row), "forecast": [None] * self.given + line(found, row)},
            }
            for row in range(len(some))
        ]

    def _drawn_alignments(self, data: Series) -> list[dict[str, Any]]:
        """Alignments of two series of a class by all that can align, and the second as each warps it to the first."""
        first, second = pairs(data)
        if not len(first):
            return []
        x, y = data.at(first[:1]), data.at(second[:1])
        band, longest = self.band, x.values.shape[1]
        if longest > DRAWN_POINTS:
            x, y, band = x.stretched(DRAWN_POINTS), y.stretched(DRAWN_POINTS), -(-band * DRAWN_POINTS // longest)
        n, m = int(x.lengths), int(y.lengths)
        gold = [] if x.times is None or y.times is None else nearest_times(x.times[0, :n], y.times[0, :m])
        lines = {"first": line(x, 0), "second": line(y, 0)}
        drawn = []
        names = "soft-DTW", "L2-smoothed DTW", "DTW"
        for name, its_omega in zip(names, omegas(self.config.temperature).values(), strict=True):
            weights = Warping(its_omega, band).alignment(x, y)
            lines[f"second by {name}"] = line(replace(x, values=warped(weights, y.values)), 0)
            drawn.append(
                {
                    "kind": "alignment",
                    "title": f"Alignment by {name}",
                    "weights": weights[0, :n, :m].tolist(),
                    "gold": gold,
                    "cell": CELL,
                    "note": "rows: first series; columns: second",
                }
            )
        title = f"Two series of class {self.classes[int(x.labels)]}"
        return [*drawn, {"kind": "series", "title": title, "series": lines}]


def pairs(data: Series) -> tuple[Tensor, Tensor]:
    """Each series and the next of its class."""
    order = data.labels.argsort(stable=True)
    first, second = order[:-1], order[1:]
    alike = data.labels[first] == data.labels[second]
    return first[alike], second[alike]


def line(data: Series, row: int) -> list[float]:
    """The first dimension of a series."""
    return data.values[row, : int(data.lengths[row]), 0].tolist()


def nearest_times(first: Tensor, second: Tensor) -> list[list[int]]:
    """Pairs of points: for each of the first times (N,) the nearest of the second (M,)."""
    return [[i, j] for i, j in enumerate((first.unsqueeze(-1) - second).abs().argmin(-1).tolist())]
