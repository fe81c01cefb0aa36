"""Time series of files and generated ones, distances with warps, and that every task learns with every distance."""

import itertools
import lzma
import math
from typing import get_type_hints

import numpy as np
import pytest
import torch

import structmax
from structmax.plots import structures
from structmax.recipes import align as recipe
from structmax.recipes.data import series
from structmax.recipes.models import warping
from structmax.recipes.models.warping import Warping
from structmax.training import DataError, RunError, RunFolder, run

CPU = torch.device("cpu")
TASKS = get_type_hints(recipe.Config)["task"].__args__
DISTANCES = get_type_hints(recipe.Config)["distance"].__args__
OMEGAS = recipe.omegas(0.3)


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch):
    monkeypatch.setattr(recipe, "HELD_OUT", 12)


def config(**settings):
    return recipe.Config(**{"train_size": 12, "epochs": 1, "batch_size": 6, "device": "cpu", "size": 8} | settings)


def task_of(**settings):
    torch.manual_seed(0)
    return recipe.Recipe(config(**settings), CPU)


def some(count, length, dimensions=1, seed=0):
    """Series of different lengths, two of them at least as long as `length`."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.arange(count) % 2 + length - 1
    values = torch.randn(count, length, dimensions, generator=generator)
    inside = torch.arange(length) < lengths.unsqueeze(-1)
    return series.Series(values * inside.unsqueeze(-1), lengths, torch.arange(count) % 3)


# ---------------------------------------------------------------- files

HEADERS = "#about\n@problemName x\n@timeStamps false\n@univariate false\n@classLabel true a b\n@data\n"


def written(path, content):
    path.write_bytes(lzma.compress(content.encode()) if path.suffix == ".xz" else content.encode())
    return str(path)


def test_series_with_headers_have_dimensions_and_lengths(tmp_path):
    found = series.read(written(tmp_path / "x.ts.xz", HEADERS + "1,2,3:4,5,6:b\n\n-1e1,.5:0,1:a\n"))
    assert [label for label, _ in found] == ["b", "a"]
    assert found[0][1].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert found[1][1].tolist() == [[-10, 0], [0.5, 1]]


@pytest.mark.parametrize("line", ["1\t0.5\t2.5\tNaN", "  1.0000000e+000  5.0e-01   2.5", "1,0.5,2.5"])
def test_series_in_rows_begin_with_their_class(tmp_path, line):
    ((label, values), (other, _)) = series.read(written(tmp_path / "x.tsv", line + "\n-1 3 4 5\n"))
    assert (label, values.tolist(), other) == ("1", [[0.5], [2.5]], "-1")


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("\n\n", None, "should have time series, but is empty"),
        (HEADERS, None, "should have series after the line @data"),
        ("#a\n@classLabel true a b\n", None, "should have a line @data"),
        ("#a\n@data\n1,2:a\n", None, "should have a header `@classLabel true`"),
        ("@timeStamps true\n@data\n", 1, "but has time stamps"),
        ("#a\n1,2:a\n", 2, "should be a comment"),
        (HEADERS + "1,2:3,4:a\n1,2:3,4:c\n", 8, "one of the classes a b, but ends in 'c'"),
        (HEADERS + "1,2\n", 7, "should end in a colon"),
        (HEADERS + "1,2:3:a\n", 7, "as many values in each dimension, but has 1 and 2"),
        (HEADERS + "1,2:3,4:a\n1,2:a\n", 8, "should have 2 dimensions as the first series has, but has 1"),
        (HEADERS + "1,?:3,4:a\n", 7, r"some are missing \(\?\)"),
        (HEADERS + "1,NaN:3,4:a\n", 7, "has NaN or infinite"),
        ("1 2 3\n2 x 3\n", 2, "a number for each value, but some are not"),
        ("1 2 3\n2\n", 2, "has no values"),
        ("1 2 NaN 3\n", 1, "has NaN or infinite"),
        ("1,0.5,,0.7\n", 1, "a number for each value, but some are not"),
        ("1\t\t0.7\n", 1, "a number for each value, but some are not"),
    ],
)
def test_files_that_are_not_series_are_refused(tmp_path, content, line, reason):
    path = written(tmp_path / "x.ts", content)
    with pytest.raises(DataError, match=reason) as refused:
        series.read(path)
    assert refused.value.line == line


def test_files_should_suit_one_another(tmp_path):
    train = written(tmp_path / "train.tsv", "1 0 1\n2 1 0\n")
    strange = written(tmp_path / "strange.tsv", "3 0 1\n")
    flat = written(tmp_path / "flat.ts", HEADERS.replace("a b", "1 2") + "1:2:1\n")
    with pytest.raises(RunError, match="but has '3'"):
        task_of(train_file=train, test_file=strange)
    with pytest.raises(RunError, match=r"as many dimensions as .*, 1, but has some of 2"):
        task_of(train_file=train, test_file=flat)
    with pytest.raises(RunError, match="--test-file is missing"):
        task_of(train_file=train)
    with pytest.raises(RunError, match="--train-file is missing"):
        task_of(test_file=train)
    short = written(tmp_path / "a.tsv", "1 0\n2 1\n")
    with pytest.raises(RunError, match="at least 2 points"):
        task_of(train_file=short, valid_file=train, test_file=train, task="forecast")


def test_classes_are_in_the_order_of_numbers(tmp_path):
    path = written(tmp_path / "x.tsv", "10 0 1\n9 1 0\n1 3 3\n")
    data, classes = series.splits({"train": path, "valid": "", "test": path}, CPU)
    assert classes == ["1", "9", "10"]
    assert set(data) == {"train", "test"}
    assert data["test"].labels.tolist() == [2, 1, 0]


# ---------------------------------------------------------------- series


def test_stretched_series_are_interpolated():
    data = some(4, 6, dimensions=2)
    found = data.stretched(9)
    for row, length in enumerate(data.lengths.tolist()):
        for dimension in range(2):
            given = data.values[row, :length, dimension].numpy()
            wanted = np.interp(np.linspace(0, length - 1, 9), np.arange(length), given)
            np.testing.assert_allclose(found.values[row, :, dimension], wanted, atol=1e-5)
    assert found.lengths.tolist() == [9] * 4


def test_generated_series_show_their_prototype_at_the_times_they_say():
    data = series.generate(400, 3, CPU)
    inside = torch.arange(series.LONGEST) < data.lengths.unsqueeze(-1)
    steps = data.times.diff()[inside[:, 1:]]
    assert (steps > 0).all()
    assert (data.times[:, 0] == 0).all()
    torch.testing.assert_close(data.times.gather(1, (data.lengths - 1).unsqueeze(1)), torch.ones(400, 1))
    assert not data.values[~inside].any()
    # what is at the middle of the first bump has its sign
    signs = torch.tensor(series.SIGNS)[data.labels]
    for bump, place in enumerate(series.BUMPS[:2]):
        near = ((data.times - place).abs() < 0.005) & inside
        heights = (data.values[..., 0] - series.SLOPE * data.times) * signs[:, bump : bump + 1]
        assert abs(heights[near].mean() - 1) < 0.1
    assert torch.equal(data.values, series.generate(400, 3, CPU).values)
    assert not torch.equal(data.values, series.generate(400, 4, CPU).values)


# ---------------------------------------------------------------- distances


def paths(n, m, band):
    """All alignments of n points with m."""

    def on(i, j):
        if abs(i - j) <= band:
            if (i, j) == (n - 1, m - 1):
                yield [(i, j)]
            for down, right in ((1, 1), (1, 0), (0, 1)):
                if i + down < n and j + right < m:
                    yield from ([(i, j), *rest] for rest in on(i + down, j + right))

    return list(on(0, 0))


@pytest.mark.parametrize("band", [1, 4])
def test_distances_are_those_of_all_alignments(band):
    data = some(4, 4, dimensions=2)
    for a, b in itertools.product(range(4), repeat=2):
        x, y = data.at(slice(a, a + 1)), data.at(slice(b, b + 1))
        n, m = int(x.lengths), int(y.lengths)
        costs = [
            sum(float(((x.values[0, i] - y.values[0, j]) ** 2).sum()) for i, j in path) for path in paths(n, m, band)
        ]
        assert float(Warping(structmax.omega.Zero(), band)(x, y)) == pytest.approx(min(costs), abs=1e-4)
        soft = -0.3 * math.log(sum(math.exp(-cost / 0.3) for cost in costs))
        assert float(Warping(structmax.omega.Entropy(0.3), band)(x, y)) == pytest.approx(soft, abs=1e-4)
    equal = data.stretched(4)
    wanted = Warping(structmax.omega.Zero(), 0)(equal.at(slice(2)), equal.at(slice(2, 4)))
    torch.testing.assert_close(Warping(None)(equal.at(slice(2)), equal.at(slice(2, 4))), wanted)


@pytest.mark.parametrize("name", OMEGAS)
def test_a_table_has_all_pairs(monkeypatch, name):
    x, y = some(5, 6), some(3, 7, seed=1)
    measure = Warping(OMEGAS[name])
    monkeypatch.setattr(warping, "CELLS", 6 * 7 * 3 * 2)
    table = measure.table(x, y)
    wanted = [[measure(x.at(slice(i, i + 1)), y.at(slice(j, j + 1))) for j in range(3)] for i in range(5)]
    torch.testing.assert_close(table, torch.tensor(wanted))


def test_what_is_warped_is_a_mean_of_aligned_points():
    alignment = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    y = torch.tensor([[1.0], [3.0], [7.0]])
    assert warping.warped(alignment, y).tolist() == [[2.0], [7.0]]


def test_the_learnt_band_is_the_narrowest_of_the_best():
    data = series.generate(24, 0, CPU).stretched(40)
    bands = [0, 2, 6, 12, 40]
    right = []
    for band in bands:
        table = Warping(OMEGAS["dtw"], band).table(data, data).fill_diagonal_(torch.inf)
        right.append(int((data.labels[table.argmin(-1)] == data.labels).sum()))
    assert right[0] < max(right)
    assert warping.learnt_band(OMEGAS["dtw"], data, bands) == bands[right.index(max(right))]
    # the first of them too, where it is as good as any
    assert warping.learnt_band(OMEGAS["dtw"], data, [12, 40]) == 12


def test_bands_that_cannot_align_all_lengths_are_left_out():
    data = {"train": some(4, 10), "test": some(4, 20)}
    # 9 to 20 points
    assert recipe.bands(70, data) == [11, 12, 13, 14]
    with pytest.raises(RunError, match=r"series of 9 and of 20 points, but .* at most 10 apart"):
        recipe.bands(50, data)


# ---------------------------------------------------------------- the recipe


@pytest.mark.parametrize(("task", "distance"), list(itertools.product(TASKS, DISTANCES)))
def test_every_task_with_every_distance(tmp_path, task, distance):
    learns_window = task == "neighbours" and distance != "euclidean"
    settings = config(task=task, distance=distance, window=40, learn_window=learns_window)
    summary = run(recipe.Recipe, settings, tmp_path / "run")
    assert all(math.isfinite(value) for value in summary["test"].values())
    (row,) = RunFolder(tmp_path / "run").rows
    learns = task != "neighbours" and (task, distance) != ("centroids", "euclidean")
    assert ("train/loss" in row) == learns
    drawings = RunFolder(tmp_path / "run").read("structures.json")
    assert {"series", "alignment"} <= {drawing["kind"] for drawing in drawings}
    assert all(structures.svg(drawing).startswith("<svg") for drawing in drawings)


@pytest.mark.parametrize("task", TASKS)
def test_half_precision(tmp_path, task):
    summary = run(recipe.Recipe, config(task=task, bf16=True), tmp_path / "run")
    assert all(math.isfinite(value) for value in summary["test"].values())


def test_meanings_are_of_metrics():
    tasks = [task_of(task=task, learn_window=task == "neighbours") for task in TASKS]
    found = {name for task in tasks for name in task.evaluate("valid")}
    # the loss is one of training
    assert found | {"loss"} == set(recipe.Recipe.meanings)


@pytest.mark.parametrize("task", ["centroids", "forecast"])
def test_a_loss_is_a_mean_over_series(task):
    subject = task_of(task=task)
    indices = torch.arange(5)
    ((together, _),) = subject.updates(indices, torch.Generator())
    alone = [next(subject.updates(indices[k : k + 1], torch.Generator()))[0] for k in range(5)]
    torch.testing.assert_close(together, torch.stack(alone).mean())


def test_a_centre_is_pulled_by_its_own_class_alone():
    subject = task_of()
    of_second = (subject.train.labels == 1).nonzero().squeeze(-1)
    ((loss, _),) = subject.updates(of_second, torch.Generator())
    loss.backward()
    moved = subject.model.values.grad.abs().sum((1, 2)) > 0
    assert moved.tolist() == [False, True, False, False]


def test_steps_lead_to_the_barycentre():
    subject = task_of(train_size=8, temperature=0.3)
    members = subject.train.at(subject.train.labels == 0)
    wanted = structmax.soft_dtw_barycentre(members.values, temperature=0.3, lengths=members.lengths).value.item()
    optimiser = torch.optim.Adam(subject.model.parameters(), 0.03)
    for _ in range(150):
        ((loss, _),) = subject.updates(torch.arange(8), torch.Generator())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    centre = subject.model.known().at(torch.zeros(len(members), dtype=torch.long))
    # it is not convex: one may be a little better than the other
    assert subject.warping(centre, members).mean().item() < wanted + 0.05 * abs(wanted)


def test_alignments_find_the_known_times():
    errors = {name: task_of(distance=name, task="neighbours").evaluate("test")["warp_error"] for name in DISTANCES}
    assert max(errors[name] for name in OMEGAS) < 0.4 * errors["euclidean"]


@pytest.fixture
def files(tmp_path):
    rows = [(str(number % 2), number % 2 + 0.1 * number) for number in range(10)]
    lines = [
        " ".join([label, *(f"{height * t}" for t in range(4 + number % 3))])
        for number, (label, height) in enumerate(rows)
    ]
    return {
        "train_file": written(tmp_path / "a.txt", "\n".join(lines)),
        "test_file": written(tmp_path / "b.txt", "\n".join(lines[:4])),
    }


def test_without_a_valid_file_neighbours_are_others(files):
    subject = task_of(task="neighbours", distance="dtw", **files)
    table = subject.warping.table(subject.train, subject.train).fill_diagonal_(torch.inf)
    right = subject.train.labels[table.argmin(-1)] == subject.train.labels
    assert subject.evaluate("valid")["accuracy"] == pytest.approx(right.float().mean().item())
    # there they are themselves
    assert subject.evaluate("test")["accuracy"] == 1.0
    assert subject.evaluate("test")["fit"] == pytest.approx(0.0, abs=1e-6)


def test_forecasts_hold_out_every_fifth_series(files):
    subject = task_of(task="forecast", **files)
    assert (len(subject.train), len(subject.held_out["valid"])) == (8, 2)
    assert task_of(task="forecast", **files, valid_file=files["test_file"]).train.values.shape == (10, 6, 1)


@pytest.mark.parametrize(("task", "fewest"), [("forecast", 5), ("neighbours", 2)])
def test_what_holds_out_or_leaves_out_needs_some_series(tmp_path, task, fewest):
    few, enough = (written(tmp_path / f"{k}.txt", "1 0 1 2\n" * k) for k in (fewest - 1, fewest))
    with pytest.raises(RunError, match=f"at least {fewest} series to train on, but .* has {fewest - 1}"):
        task_of(task=task, train_file=few, test_file=enough)
    assert math.isfinite(task_of(task=task, train_file=enough, test_file=few).evaluate("valid")["fit"])
    assert "fit" in task_of(task=task, train_file=few, valid_file=few, test_file=few).evaluate("valid")


def test_neighbours_that_are_all_of_other_classes_have_no_fit(tmp_path):
    path = written(tmp_path / "x.txt", "1 0 1 2\n2 0 1 3\n")
    subject = task_of(task="neighbours", train_file=path, test_file=path)
    assert subject.evaluate("valid")["accuracy"] == subject.evaluate("valid")["fit"] == 0.0


def test_forecasts_are_judged_in_parts(monkeypatch):
    subject = task_of(task="forecast")
    whole = subject.evaluate("test")
    monkeypatch.setattr(recipe, "CELLS", 5000)
    assert subject.evaluate("test") == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"task": "centroids", "learn_window": True}, "but these are centroids and soft_dtw"),
        ({"task": "neighbours", "distance": "euclidean", "learn_window": True}, "but these are neighbours and euclid"),
    ],
)
def test_a_window_is_learnt_for_neighbours_that_warp(settings, reason):
    with pytest.raises(ValueError, match=reason):
        config(**settings)


def test_no_run_trains_on_held_out_series():
    with pytest.raises(RunError, match="`seed` should not be 1000002"):
        task_of(seed=1_000_002)


def test_classes_of_many_digits_stay_apart(tmp_path):
    found = series.read(written(tmp_path / "x.txt", "1234567 0 1\n1234568 0 1\n1.50 1 1\n"))
    assert [label for label, _ in found] == ["1234567", "1234568", "1.5"]


def test_every_task_reads_files_of_different_lengths(files, tmp_path):
    for task, distance in itertools.product(TASKS, ("soft_dtw", "euclidean")):
        summary = run(recipe.Recipe, config(task=task, distance=distance, **files), tmp_path / f"{task}-{distance}")
        assert all(math.isfinite(value) for value in summary["test"].values())


@pytest.mark.thorough
def test_warps_help(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "HELD_OUT", 200)

    def test_of(**settings):
        folder = tmp_path / "-".join(settings.values())
        return run(recipe.Recipe, config(train_size=100, epochs=10, **settings), folder)["test"]

    assert test_of(distance="soft_dtw")["accuracy"] > test_of(distance="euclidean")["accuracy"] + 0.05
    soft, squared = (test_of(task="forecast", distance=name) for name in ("soft_dtw", "euclidean"))
    assert soft["dtw"] < squared["dtw"]
    assert soft["mse"] > squared["mse"]
