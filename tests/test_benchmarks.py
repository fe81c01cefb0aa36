"""The benchmark machinery on tiny cases: what it measures, what it writes, and what it refuses to time."""

import csv
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

# whole scripts
pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parent.parent
TASKS = ("sparsemax", "entmax15_loss")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.run")


@pytest.fixture
def tiny(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(importlib.import_module("benchmarks.cases").SHAPES, "cpu", {TASKS: ((16, 10),)})
    return run


def test_rows_are_measured_and_written(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiny, "CPU_THREADS", torch.get_num_threads())
    assert tiny.main(["--device", "cpu", "--rounds", "3", "--bars", "--results", str(tmp_path)]) == 0
    rows = [row for path in sorted(tmp_path.glob("cpu-*.csv")) for row in csv.DictReader(path.open())]
    ours = [row for row in rows if row["contender"] == "structmax"]
    assert [row["case"] for row in ours] == ["entmax15_loss/16x10/float32", "sparsemax/16x10/float32"]
    for row in rows:
        assert 0 < float(row["forward_min_ms"]) <= float(row["forward_ms"])
        assert 0 < float(row["forward_backward_min_ms"]) <= float(row["forward_backward_ms"])
        assert row["device"]
        assert row["torch"] == torch.__version__
    assert all(float(row["forward_ratio"]) == 1 for row in rows if row["contender"] == "torch")
    said = capsys.readouterr().out
    assert "<= 1.4 x torch" in said
    assert "not measured" not in said


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_kernel_is_not_timed(
    tiny: ModuleType, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = importlib.import_module("benchmarks.cases").TASKS
    right = tasks[task]

    def wrong_gradient(x: torch.Tensor, y: torch.Tensor, backend: str) -> torch.Tensor:
        out = right(x, y, backend)
        return out if backend == "reference" else out.detach() + 1.001 * (out - out.detach())

    monkeypatch.setitem(tasks, task, wrong_gradient)
    monkeypatch.setattr(tiny, "CPU_THREADS", torch.get_num_threads())
    assert tiny.main(["--device", "cpu", "--only", task, "--results", str(tmp_path)]) == 1
    assert f"{task}/16x10/float32 is not timed: gradient of scores is off by" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_missing_peer_is_said(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_nowhere() -> None:
        raise ImportError("No module named 'nowhere'")

    monkeypatch.setitem(run.peers.PEERS, "nowhere", of_nowhere)
    found = run.peers.find()
    assert found.missing["nowhere"] == "No module named 'nowhere'"
    assert "torch" in found.calls["sparsemax"]


def test_a_slow_contender_sits_out_but_is_measured(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = importlib.import_module("benchmarks.measure")
    monkeypatch.setattr(measure, "milliseconds", lambda call, device: call())
    times = measure.take_turns({"slow": lambda: 70.0, "fast": lambda: 1.0}, "cpu", rounds=4, budget_ms=100.0)
    assert times == {"slow": [70.0, 70.0], "fast": [1.0] * 4}


def test_peak_memory_counts_what_a_call_holds(run: ModuleType) -> None:
    peak = importlib.import_module("benchmarks.measure").peak_mib(lambda: torch.ones(16, 2**20).sum(), "cpu")
    assert peak is None or 60 < peak < 80


@pytest.mark.parametrize(
    ("ours", "baseline", "said"),
    [
        ((1.3, 1.2), (1.0, 0.9), "met"),
        ((1.5, 1.4), (1.0, 0.9), "missed"),
        ((1.3, 1.2), (1.0, 0.1), "machine unsteady"),
        ((1.3, 0.1), (1.0, 0.9), "machine unsteady"),
    ],
)
def test_a_bar_is_judged_only_on_a_steady_machine(
    run: ModuleType, ours: tuple[float, float], baseline: tuple[float, float], said: str
) -> None:
    bar = run.Bar("cpu", ("sparsemax",), 1.4, "ratio")
    case = next(bar.cases())

    def row(contender: str, middle: float, fastest: float) -> object:
        ratio = middle / baseline[0]
        return run.Row(case.name, "", "", "", contender, 1.0, 1.0, 1.0, middle, fastest, ratio, None, 3)

    rows = [row("torch", *baseline), row("structmax", *ours)]
    assert run.verdict(bar, case, rows)[-1] == said
    assert run.verdict(bar, case, [])[-1] == "not measured"


def test_names_can_be_listed_and_chosen(run: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--device", "cuda", "--only", "sparsemax", "--dtype", "bfloat16", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert names[0] == "sparsemax/4096x1000/bfloat16"
    assert len(names) == 4


def test_steps_of_a_recipe_take_turns(run: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    steps = importlib.import_module("benchmarks.recipe_steps")
    few = ["--set", "size=4", "--set", "train_size=40", "--steps", "1", "--rounds", "1", "--device", "cpu"]
    steps.main(["translate", "--over", "attention=softmax,sparsemax", *few])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["softmax", "sparsemax"]
    assert lines[-2].endswith("1.000x")
    with pytest.raises(SystemExit):
        steps.main(["translate", "--over", "nothing=1", *few])
