"""The command line, end to end on tiny settings."""

import html
import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import pytest
import torch

pytest.importorskip("typer")

from rich.console import Console
from typer.testing import CliRunner

import structmax
from structmax import bench, cli, recipes
from structmax.cli import compare, flags, progress, speech, workers
from structmax.cli.app import app
from structmax.training import Interrupted, Place, RunError, RunFolder, run
from structmax.training.comparison import Outcome

TINY = """
    '''Learns one number. Nothing else.

    More about it.
    '''
    from dataclasses import dataclass
    from pathlib import Path
    from typing import Literal

    import torch
    from structmax.training import DataError, Settings, Task, option

    @dataclass(frozen=True, kw_only=True)
    class Config(Settings):
        device: str = option("cpu", "where")
        epochs: int = option(2, "passes")
        flavour: Literal["sweet", "sour", "nan"] = option("sweet", "how it tastes")
        data: str = option("", "a file of numbers")
        salted: bool = option(True, "whether there is salt")

        def __post_init__(self):
            super().__post_init__()
            if (self.flavour, self.epochs) == ("nan", 3):
                raise ValueError("`flavour` cannot be nan for 3 epochs.")

    class Recipe(Task[Config]):
        def __init__(self, config, device):
            super().__init__(config, device)
            self.model = torch.nn.Linear(1, 1)
            for line, text in enumerate(Path(config.data).read_text().splitlines() if config.data else (), 1):
                if not text.isdecimal():
                    raise DataError(config.data, line, f"should be a number, but is {text!r}")

        def batches(self, epoch):
            return torch.arange(8).split(2)

        def updates(self, indices, generator):
            if self.config.flavour == "sour":
                raise KeyError("sugar")
            loss = (self.model(torch.ones(len(indices), 1)) - 1).square().mean()
            yield loss * (torch.nan if self.config.flavour == "nan" else 1), {"accuracy": loss.detach()}

        def evaluate(self, split):
            return {"accuracy": self.model.weight.item()}
"""


@pytest.fixture
def structmax_in(tmp_path, monkeypatch):
    """Calls the command line in a folder where there is one more recipe, `tiny`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "tiny.py").write_text(textwrap.dedent(TINY))
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path / "more")])
    monkeypatch.delitem(sys.modules, "structmax.recipes.tiny", raising=False)

    def call(*arguments):
        answer = CliRunner().invoke(app, list(map(str, arguments)))
        # words, as no terminal breaks them
        said = " ".join(answer.output.replace("│", " ").split())
        assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exc_info
        return answer.exit_code, said

    return call


# ---------------------------------------------------------------- run


def test_run(structmax_in, tmp_path):
    code, said = structmax_in("run", "tiny", "--seed", 1)
    assert code == 0, said
    folder = tmp_path / "runs" / "tiny" / "seed=1"
    assert {path.name for path in folder.iterdir()} == {
        "best.pt",
        "config.json",
        "curves.png",
        "last.pt",
        "metrics.jsonl",
        "origin.json",
        "report.html",
        "structures.json",
        "summary.json",
    }
    assert RunFolder(folder).read("origin.json")["command"] == "structmax run tiny --seed 1"
    assert "tiny in runs/tiny/seed=1" in said
    assert "epoch 1 step 4 train/loss" in said
    assert "(best)" in said
    assert "The report: runs/tiny/seed=1/report.html" in said


def test_help_has_the_fields_of_the_config(structmax_in):
    code, said = structmax_in("run", "tiny", "--help")
    assert code == 0
    assert "Learns one number. Nothing else." in said
    assert said.index("--flavour") < said.index("--seed") < said.index("--resume")
    for words in ("how it tastes", "<sweet|sour|nan>", "--bf16", "--no-bf16", "[default: 2]", "Tiny", "Training"):
        assert words in said, words
    assert structmax_in("run", "--help")[1].count("tiny") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nothing"), "bits, clusters, "),
        (("run", "lisops"), "but is 'lisops'. Did you mean listops?"),
        (("compare", "cluster"), "but is 'cluster'. Did you mean clusters?"),
        (("run", "./none.py"), "none.py: should be the file of a recipe, but does not exist."),
        (("run", "some/where"), "some/where: should be the file of a recipe, but does not exist."),
        (("run", "tiny", "--epochs", "many"), "'--epochs'"),
        (("run", "tiny", "--epochs", 0), "`epochs` should be at least 1, but is 0."),
        (("run", "tiny", "--flavour", "salty"), "`flavour` should be one of sweet, sour, nan, but is 'salty'."),
        (("run", "clusters", "--estimator", "score-function"), "Did you mean score_function?"),
        (("compare", "clusters", "--over", "estimator=spigot-ce"), "names 'spigot-ce'. Did you mean spigot_ce?"),
        (("compare", "tiny", "--over", "learning-rate=1"), "but is 'learning-rate=1'. Did you mean learning_rate?"),
        (("run", "tiny", "--seed", 3 * 10**14), "`seed` should be at most 4294967295, but is 300000000000000."),
        (("run", "tiny", "--learning-rate", "inf"), "`learning_rate` should be at most 1e+30, but is inf."),
        (("run", "tiny", "--learning-rate", "nan"), "`learning_rate` should be at least 0, but is nan."),
        (("run", "tiny", "--seed", -1), "`seed` should be at least 0, but is -1."),
        (("run", "tiny", "--batch-size", 10**30), "`batch_size` should be a number of at most 64 bits, but is 1000"),
        (("run", "tiny", "--name", "a\nb"), "without a slash, but is 'a\\nb'."),
        (("run", "tiny", "--name", "\udcff"), "without a slash, but is '\\udcff'."),
        (("run", "tiny", "--colour", "red"), "No such option"),
        (
            ("run", "tiny", "--resume"),
            "--resume needs runs/tiny/default/config.json, which does not exist. Try without it.",
        ),
        (
            ("run", "tiny", "--name", "a/b"),
            "--name should be the name of one folder, printable, at most 255 bytes and without a slash",
        ),
        (("run", "tiny", "--name", "n" * 256), "Try --folder to choose where the folder is."),
        (("run", "listops", "--test-file", "n" * 256), "Try a short --name."),
        (("compare", "tiny", "--over", "clip=0,1", "--name", ".."), "without a slash, but is '..'"),
        (("run", "listops", "--longest", 4), "`longest` should be at least 5, but is 4."),
        (("run", "listops", "--entropy", -1.0), "`entropy` should be at least 0, but is -1.0."),
        (("run", "clusters", "--points", 0), "`points` should be at least 1, but is 0."),
        (("compare", "tiny", "--over", "least=1"), "--over should be field=a,b,c with one of seed,"),
        (("run", "tiny", "--device", "tpu"), "`device` should be auto, cpu or a GPU such as cuda:1, but is 'tpu'."),
        (("bench", "--device", "tpu"), "`device` should be auto, cpu or a GPU such as cuda:1, but is 'tpu'."),
        (("compare", "tiny"), "Missing option '--over'"),
        (("compare", "tiny", "--over", "colour=red"), "--over should be field=a,b,c with one of seed,"),
        (
            ("compare", "tiny", "--over", "flavour=sweet,salty"),
            "should name one of sweet, sour, nan, but names 'salty'",
        ),
        (("compare", "tiny", "--over", "epochs=1,x"), "should name a value of epochs (int), but names 'x'"),
        (("compare", "tiny", "--over", "bf16=1"), "should name a value of bf16 (bool), but names '1'"),
        (("compare", "tiny", "--over", "epochs=1,0"), "`epochs` should be at least 1, but is 0."),
        (("compare", "tiny", "--over", "epochs=1", "--seeds", 0), "--seeds and --jobs should be at least 1"),
        (("compare", "tiny", "--over", "seed=1,2"), "seeds should come from --seeds, not --over"),
        (
            ("run", "tiny", "--resume", "--overwrite"),
            "Only one of --resume (continue) and --overwrite (start again) should be given.",
        ),
        (("compare", "tiny", "--over", "epochs=1", "--over", "epochs=2"), "--over epochs should be given once"),
        (
            ("compare", "tiny", "--over", "epochs=1,2", "--epochs", 3),
            "epochs should be given once, but is given both as a flag and in --over.",
        ),
        (("plot", "nowhere"), "nowhere should hold a config.json or a compare.json, but has neither."),
        (("report", "nowhere"), "nowhere should hold a config.json or a compare.json, but has neither."),
        (("bench", "--only", "nothing"), "--only should be contained in one of softmax,"),
    ],
)
def test_bad_usage(structmax_in, tmp_path, arguments, words):
    code, said = structmax_in(*arguments)
    assert code == 2, said
    assert words in said
    assert not (tmp_path / "runs").exists()


def test_a_run_without_data_was_not_begun(structmax_in, tmp_path):
    for _ in range(2):
        code, said = structmax_in("run", "listops", "--test-file", "none.tsv", "--name", "mine")
        assert code == 1
        assert said.strip().endswith("none.tsv: there is no such file")
    assert not (tmp_path / "runs").exists()


def test_a_full_disk_is_said(structmax_in, monkeypatch):
    write = Path.write_text

    def no_space(path, *arguments, **more):
        if path.name.endswith("report.html"):
            raise OSError(28, "No space left on device")
        return write(path, *arguments, **more)

    monkeypatch.setattr(Path, "write_text", no_space)
    code, said = structmax_in("run", "tiny")
    assert code == 1
    assert "runs/tiny/default/report.html could not be written: No space left on device." in said


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--seed", 3, "--learning-rate", 1e-4, "--bf16", "--flavour", "sour", "--batch-size", 1),
        ("--data", "it's a file; with spaces", "--no-salted", "--folder", "two words", "--name", "$HOME & co"),
    ],
)
def test_the_command_of_a_run_asks_for_it_again(structmax_in, tmp_path, monkeypatch, arguments):
    asked = []
    monkeypatch.setattr("structmax.cli.run.run", lambda *given: asked.append(given) or {})
    monkeypatch.setattr("structmax.cli.run.show", lambda summary: None)
    monkeypatch.setattr("structmax.cli.run.drawn", lambda folder: folder.path)
    structmax_in("run", "tiny", *arguments, "--overwrite")
    task, config, folder, _, command = asked[0]
    assert command.startswith("structmax run tiny")
    assert "--overwrite" not in command
    structmax_in(*shlex.split(command)[1:])
    assert asked[1][:3] == (task, config, folder)
    assert asked[1][4] == command


def test_a_folder_that_is_taken(structmax_in, tmp_path):
    assert structmax_in("run", "tiny", "--name", "mine")[0] == 0
    code, said = structmax_in("run", "tiny", "--name", "mine", "--epochs", 1)
    assert code == 2
    assert "runs/tiny/mine holds a run already. Try --resume" in said
    (tmp_path / "runs/tiny/mine/notes.txt").write_text("keep me")
    assert structmax_in("run", "tiny", "--name", "mine", "--epochs", 1, "--overwrite")[0] == 0
    assert RunFolder(tmp_path / "runs/tiny/mine").config["epochs"] == 1
    assert (tmp_path / "runs/tiny/mine/notes.txt").exists()


def test_resume_keeps_to_the_config(structmax_in, tmp_path):
    assert structmax_in("run", "tiny", "--name", "mine", "--epochs", 1)[0] == 0
    code, said = structmax_in("run", "tiny", "--name", "mine", "--resume", "--epochs", 3, "--seed", 0)
    assert code == 2
    assert "--epochs should be 1, as when the run in runs/tiny/mine was started, but is 3. Leave it out" in said
    # a finished run says again what came of it
    code, said = structmax_in("run", "tiny", "--name", "mine", "--resume")
    assert (code, "4 steps in" in said) == (0, True)
    folder = RunFolder(tmp_path / "runs/tiny/mine")
    folder.write("config.json", folder.config | {"colour": "red"})
    code, said = structmax_in("run", "tiny", "--name", "mine", "--resume")
    assert code == 2
    assert "config.json has colour, which tiny does not know. Start another run." in said


def test_a_wrong_device_overwrites_nothing(structmax_in, tmp_path):
    assert structmax_in("run", "tiny")[0] == 0
    assert structmax_in("run", "tiny", "--overwrite", "--device", "cuda:99")[0] == 2
    assert RunFolder(tmp_path / "runs/tiny/default").summary


def test_errors_that_explain_themselves(structmax_in, tmp_path):
    (tmp_path / "numbers.txt").write_text("1\n2\ntwo\n")
    code, said = structmax_in("run", "tiny", "--data", "numbers.txt")
    assert code == 1
    assert said.endswith("numbers.txt:3: should be a number, but is 'two'")
    for more, step in (("--flavour", "nan"), 1), (("--learning-rate", 1e30), 2):
        code, said = structmax_in("run", "tiny", *more)
        assert code == 1
        assert re.search(rf"The loss should be finite, but is (nan|inf) at step {step}\. Try a lower learning", said)


def test_a_folder_that_cannot_be_written(structmax_in, tmp_path):
    (tmp_path / "file").touch()
    code, said = structmax_in("run", "tiny", "--folder", "file")
    assert code == 1
    assert said.endswith("file/tiny/default should be a folder that can be written to, but is not: Not a directory.")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", "last.pt", "best.pt"])
def test_a_file_that_is_damaged(structmax_in, tmp_path, name):
    assert structmax_in("run", "tiny")[0] == 0
    folder = tmp_path / "runs/tiny/default"
    (folder / "summary.json").unlink()
    (folder / name).write_bytes(b"{\x92")
    code, said = structmax_in("run", "tiny", "--resume")
    assert code == 1
    wanted = "a checkpoint, but cannot be read (" if name.endswith("pt") else "JSON, but has an error: Expecting"
    line = "" if name.endswith("pt") else ":1"
    assert f"runs/tiny/default/{name}{line}: should be {wanted}" in said
    if name in ("config.json", "metrics.jsonl"):
        assert f"{name}:1: should be JSON" in structmax_in("plot", folder)[1]
    if not name.endswith("pt"):
        code, said = structmax_in("report", folder)
        assert code in (1, 2)
        assert f"{name}:1: should be JSON" in said


@pytest.fixture
def finished(structmax_in, tmp_path):
    """The folder of a run, without its pictures."""
    recipe = recipes.find("tiny")
    folder = RunFolder(tmp_path / "runs/tiny/epochs=1")
    run(recipe.task, recipe.config(epochs=1), folder.path)
    return folder


NO_FIT = "should be a checkpoint of this run, but does not fit it"


def _half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _holding(**state):
    return lambda path: RunFolder(path.parent).save(path.name, state)


def _foreign(path):
    """The checkpoint of another model."""
    state = RunFolder(path.parent).load(path.name)
    RunFolder(path.parent).save(path.name, state | {"model": {"other.weight": torch.ones(3)}})


def _folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("last.pt", _half, "should be a checkpoint, but cannot be read ("),
        ("best.pt", _half, "should be a checkpoint, but cannot be read ("),
        ("last.pt", lambda path: path.write_bytes(b""), "should be a checkpoint, but cannot be read (EOFError"),
        ("last.pt", lambda path: path.write_text("hello"), "should be a checkpoint, but cannot be read ("),
        ("last.pt", lambda path: torch.save(torch.ones(2), path), f"{NO_FIT} (IndexError: too many indices"),
        (
            "last.pt",
            lambda path: torch.save(SimpleNamespace(), path),
            "should be a checkpoint, but cannot be read (it holds",
        ),
        ("last.pt", _holding(epoch=3), f"{NO_FIT} (KeyError: 'processes')."),
        ("last.pt", _foreign, f"{NO_FIT} (RuntimeError: Error(s) in loading state_dict for Linear: Missing key(s)"),
        ("best.pt", _foreign, f"{NO_FIT} (RuntimeError: Error(s) in loading state_dict for Linear: Missing key(s)"),
        ("best.pt", _holding(epoch=3), f"{NO_FIT} (KeyError: 'model')."),
        ("best.pt", Path.unlink, "should exist, since the run has been evaluated, but does not. Start the run again"),
        ("last.pt", _folder, "should be a checkpoint, but cannot be read (IsADirectoryError"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith("pt") else "",
)
def test_a_checkpoint_that_is_none(structmax_in, finished, name, damage, words):
    (finished.path / "summary.json").unlink()
    damage(finished.path / name)
    code, said = structmax_in("run", "tiny", "--name", "epochs=1", "--resume")
    assert code == 1
    assert f"runs/tiny/epochs=1/{name}: {words}" in said
    assert "Start the run again with --overwrite, or choose another --name." in said
    if damage is _foreign:
        assert structmax_in("run", "tiny", "--epochs", 1, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.json", "[]", ":1: should be a JSON object, but is '[]'. Start the run again"),
        ("config.json", "null", ":1: should be a JSON object, but is 'null'."),
        ("config.json", "{}", " has no batch_size, bf16, clip,"),
        ("config.json", {"epochs": "many"}, ": `epochs` should be of type int, but is 'many'. Start another run."),
        ("config.json", {"bf16": 1}, ": `bf16` should be of type bool, but is 1."),
        ("config.json", {"seed": True}, ": `seed` should be of type int, but is True."),
        ("config.json", {"flavour": ["sweet"]}, ": `flavour` should be one of sweet, sour, nan, but is ['sweet']."),
        ("summary.json", "3", ":1: should be a JSON object, but is '3'."),
        ("summary.json", '{"best": {}}', ":1: should have a test of type dict, but it is missing."),
        ("summary.json", '{"best": 3}', ":1: should have a best of type dict, but it is 3."),
        ("metrics.jsonl", "[1]", ":1: should be a JSON object, but is '[1]'."),
        ("metrics.jsonl", '{"step": 1}\n{"epoch": 2}', ":2: should have a step of type int, but it is missing."),
        ("config.json", "[" * 100_000, ":1: should be JSON, but is nested too deeply."),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_of_another_shape(structmax_in, finished, name, text, words):
    if name != "summary.json":
        (finished.path / "summary.json").unlink()
    text = json.dumps(finished.config | text) if isinstance(text, dict) else text
    (finished.path / name).write_text(text)
    code, said = structmax_in("run", "tiny", "--name", "epochs=1", "--resume")
    assert code in (1, 2)
    assert f"runs/tiny/epochs=1/{name}{words}" in said


def test_a_comparison_of_another_shape(structmax_in, tmp_path):
    for text, words in (("[]", "should be a JSON object, but is '[]'"), ("{}", "should have a runs of type dict")):
        (tmp_path / "compare.json").write_text(text)
        for command in ("plot", "report"):
            code, said = structmax_in(command, tmp_path)
            assert code == 1
            assert f"compare.json:1: {words}" in said


def test_a_file_that_cannot_be_read(structmax_in, tmp_path):
    (tmp_path / "config.json").mkdir()
    code, said = structmax_in("plot", tmp_path)
    assert code == 1
    assert "config.json: should be a file of JSON, but cannot be read: Is a directory." in said


@pytest.mark.parametrize("folder", [r"$\frac{$", "[b] :smile: <i>&"])
def test_names_are_shown_as_they_are(structmax_in, tmp_path, folder):
    code, said = structmax_in("run", "tiny", "--epochs", 1, "--name", folder)
    assert code == 0, said
    assert f"The report: runs/tiny/{folder}/report.html" in said
    assert html.escape(folder) in (tmp_path / "runs/tiny" / folder / "report.html").read_text()
    (tmp_path / folder).write_text("1")
    code, said = structmax_in("compare", "tiny", "--over", f"data={folder}", "--seeds", 1, "--epochs", 1)
    assert code == 0, said
    # once as a run's name, once in the table
    assert said.count(folder) == 2


def test_paths_of_bytes_that_are_no_letters(structmax_in, tmp_path, monkeypatch):
    odd = os.fsdecode(b"\xff")
    (tmp_path / odd).write_text("1\n")
    assert structmax_in("run", "tiny", "--data", odd, "--name", "a", "--epochs", 1)[0] == 0
    folder = RunFolder(tmp_path / "runs/tiny/a")
    assert folder.config["data"] == odd
    assert structmax_in("run", "tiny", "--name", "a", "--resume")[0] == 0
    # a report of a path that no terminal can show
    folder.path.rename(tmp_path / f"{odd}{odd}")
    monkeypatch.setattr(sys, "argv", ["structmax", "report", f"{odd}{odd}"])
    seen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", seen)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    seen.flush()
    assert b"The report: ??/report.html" in seen.buffer.getvalue()


def test_a_recipe_that_draws_what_cannot_be_drawn(structmax_in, tmp_path):
    assert structmax_in("run", "tiny", "--epochs", 1)[0] == 0
    folder = tmp_path / "runs/tiny/epochs=1"
    (folder / "structures.json").write_text('[{"kind": "trees"}]')
    code, said = structmax_in("report", folder)
    assert code == 1
    assert "structures.json: should be as a run writes it, but is not (KeyError: 'tokens')." in said


def test_one_run_at_a_time(structmax_in, tmp_path):
    folder = RunFolder(tmp_path / "runs/tiny/a")
    with folder.locked():
        for more in ((), ("--overwrite",)):
            code, said = structmax_in("run", "tiny", "--name", "a", *more)
            assert code == 1
            assert f"runs/tiny/a should be used by one run at a time, but process {os.getpid()} on " in said
            assert "Wait until it ends, or choose another --name." in said
        code, said = structmax_in("compare", "tiny", "--over", "clip=0", "--name", "a")
        assert code == 1
        assert "should be used by one run at a time" in said
    assert not folder.path.exists()


# ---------------------------------------------------------------- a recipe of one's own


@pytest.fixture
def mine(tmp_path):
    """A recipe outside of the package, which imports what lies beside it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "beside_mine.py").write_text("WHAT = 'how it tastes'")
    text = textwrap.dedent(TINY).replace('"how it tastes"', "WHAT").replace("import torch", "import torch, beside_mine")
    path = tmp_path / "own" / "my.recipe.py"
    text = text.replace("More about it.", "More about it [/b] in [bold].")
    path.write_text(text.replace("import torch", "from beside_mine import WHAT\nimport torch"))
    return path


def test_a_recipe_of_ones_own(structmax_in, tmp_path, mine, monkeypatch):
    code, said = structmax_in("run", mine, "--epochs", 1)
    assert code == 0, said
    folder = RunFolder(tmp_path / "runs/my_recipe/epochs=1")
    assert folder.summary["recipe"] == "my_recipe"
    code, said = structmax_in("run", mine, "--name", "epochs=1", "--resume")
    assert (code, "4 steps in" in said) == (0, True)
    assert structmax_in("report", folder.path)[0] == 0
    code, said = structmax_in("run", mine, "--help")
    assert code == 0
    assert "how it tastes" in said
    assert "More about it [/b] in [bold]." in said

    def stopped(*arguments):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("structmax.cli.run.run", stopped)
    assert f"Resume with: structmax run {mine} --name default" in structmax_in("run", mine)[1]


def test_the_recipe_of_the_pages(structmax_in, tmp_path):
    pages = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
    (tmp_path / "mine.py").write_text(pages.split("```python\n")[1].split("```")[0])
    code, said = structmax_in("run", "./mine.py", "--mapping", "softmax", "--device", "cpu", "--name", "first")
    assert code == 0, said
    assert structmax_in("report", "runs/mine/first")[0] == 0
    assert "Did you mean sparsemax?" in structmax_in("run", "./mine.py", "--mapping", "sparse_max")[1]


def test_processes_find_a_recipe_of_ones_own(structmax_in, tmp_path, mine):
    arguments = ("compare", mine, "--over", "flavour=sour", "--seeds", 1, "--epochs", 1, "--jobs", 2)
    code, said = structmax_in(*arguments)
    assert code == 1
    assert "flavour=sour,seed=0 failed: KeyError: 'sugar'" in said
    assert (tmp_path / "runs/my_recipe/over=flavour,epochs=1/report.html").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\nimport nowhere", ":2: should be the file of a recipe, but cannot be imported: ModuleNotFound"),
        ("x = (", ":1: should be the file of a recipe, but cannot be imported: SyntaxError: '(' was never closed"),
        ("open('nowhere')", ":1: should be the file of a recipe, but cannot be imported: FileNotFoundError"),
        ("import sys; sys.exit()", ":1: should be the file of a recipe, but cannot be imported: SystemExit"),
        ("", ": should have a class Config(Settings), but has none."),
        ("from structmax.training import Settings as Config", ": should have a class Recipe(Task), but has"),
        (
            "from structmax.training import Settings as Config\nRecipe = 3",
            ": should have a class Recipe(Task), but has none.",
        ),
    ],
    ids=lambda text: text[:12],
)
def test_a_recipe_that_is_none(structmax_in, tmp_path, text, words):
    path = tmp_path / "more" / "broken.py"
    path.write_text(text)
    for source in ("broken", path):
        sys.modules.pop("structmax.recipes.broken", None)
        for command in (("run", source), ("compare", source, "--over", "clip=0,1")):
            code, said = structmax_in(*command)
            assert code == 2
            # a terminal breaks long paths too
            assert f"broken.py{words}".replace(" ", "") in said.replace(" ", "")
    # the others are there all the same
    for command in ("list", "run --help", "compare --help"):
        code, said = structmax_in(*command.split())
        assert code == 0
        assert "tiny" in said
        assert "broken" in said


def test_a_recipe_that_is_not_in_the_package_but_here(structmax_in, mine):
    mine.rename("here.py")
    assert "but is 'here'. Did you mean ./here.py?" in structmax_in("run", "here")[1]
    mine.parent.joinpath("mine.txt").touch()
    assert "its name should end in .py" in structmax_in("run", mine.parent / "mine.txt")[1]


def test_choices_are_spelt_one_way():
    for name in recipes.names():
        config = recipes.find(name).config
        for field, kind in get_type_hints(config).items():
            for choice in flags.choices_of(kind):
                assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", choice), (name, field, choice)


def test_how_to_go_on_with_several_processes(structmax_in, monkeypatch):
    def stopped(*arguments):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("structmax.cli.run.run", stopped)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    said = structmax_in("run", "tiny")[1]
    assert "Resume with: torchrun --nproc-per-node 2 -m structmax run tiny --name default --folder runs" in said


def test_the_report_is_opened(structmax_in, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert structmax_in("run", "tiny", "--open")[0] == 0
    assert opened[0].startswith("file:///")
    assert opened[0].endswith("runs/tiny/default/report.html")


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "structmax", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(path: Path, process: subprocess.Popen) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def test_an_interrupted_run_goes_on(tmp_path, structmax_in):
    process = start(tmp_path, "run", "more/tiny.py", "--epochs", "1000000", "--name", "a")
    wait_for(tmp_path / "runs/tiny/a/last.pt", process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 130, said
    assert "Stopped by SIGINT" in said
    assert "Resume with: structmax run more/tiny.py --name a --folder runs --resume" in said
    assert "Traceback" not in said
    folder = RunFolder(tmp_path / "runs/tiny/a")
    step = folder.load("last.pt")["place"]["step"]
    # almost at the end: what is left should be short
    folder.write("config.json", folder.config | {"epochs": step // 4 + 2})
    code, said = structmax_in("run", "more/tiny.py", "--name", "a", "--resume")
    assert code == 0, said
    assert f"Resuming after step {step}." in said
    assert folder.summary["steps"] == 4 * (step // 4 + 2)


def test_ctrl_c_outside_of_training(structmax_in, monkeypatch):
    def pressed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("structmax.cli.run.run", pressed)
    code, said = structmax_in("run", "tiny")
    assert code == 130
    assert said.endswith("Stopped at once. Resume with: structmax run tiny --name default --folder runs --resume")


# ---------------------------------------------------------------- compare


def test_compare(structmax_in, tmp_path):
    arguments = ("compare", "tiny", "--over", "flavour=sweet,sour", "--over", "clip=0,1", "--seeds", 2, "--epochs", 1)
    code, said = structmax_in(*arguments)
    assert code == 1
    folder = RunFolder(tmp_path / "runs/tiny/over=flavour+clip,epochs=1")
    content = folder.read("compare.json")
    assert content["over"] == {"flavour": ["sweet", "sour"], "clip": [0.0, 1.0]}
    assert content["seeds"] == 2
    assert len(content["runs"]) == 8
    means = [row["metrics"]["accuracy"]["mean"] for row in content["rows"] if row["runs"]]
    assert means == sorted(means, reverse=True)
    assert [row["runs"] for row in content["rows"]] == [2, 2, 0, 0]
    assert content["rows"][3]["error"] == "KeyError: 'sugar'"
    assert "flavour=sour, clip=0.0 failed: KeyError: 'sugar'" in said
    over = "--over flavour=sweet,sour --over clip=0,1"
    assert content["origin"]["command"] == f"structmax compare tiny {over} --seeds 2 --epochs 1"
    member = RunFolder(folder.path / "flavour=sour,clip=1.0,seed=1").read("origin.json")
    assert member["command"] == "structmax run tiny --flavour sour --seed 1 --epochs 1 --clip 1.0"
    assert content["settings"]["epochs"] == 1
    assert not {"flavour", "clip", "seed"} & set(content["settings"])
    for name in (
        "report.html",
        "curves.png",
        "compare.csv",
        "compare.tex",
        "flavour=sweet,clip=0.0,seed=1/report.html",
        "flavour=sour,clip=0.0,seed=1/error.txt",
    ):
        assert (folder.path / name).exists()

    # what is finished is kept
    kept = folder.path / "flavour=sweet,clip=1.0,seed=0" / "last.pt"
    before = kept.stat().st_mtime_ns
    assert structmax_in(*arguments)[0] == 1
    assert kept.stat().st_mtime_ns == before
    assert structmax_in(*arguments, "--overwrite")[0] == 1
    assert kept.stat().st_mtime_ns > before

    # another config does not take its folder
    code, said = structmax_in(*arguments, "--batch-size", 3, "--name", folder.path.name)
    assert code == 1
    assert "but its run differs in batch_size." in said

    code, said = structmax_in("plot", folder.path, "--to", tmp_path / "all.png")
    assert code == 0
    assert (tmp_path / "all.png").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("structmax_in")
def test_an_interrupted_comparison_hands_the_signal_on(tmp_path):
    settings = ("--seeds", "2", "--name", "a", "--jobs", "2")
    process = start(tmp_path, "compare", "more/tiny.py", "--over", "epochs=1,1000000", *settings)
    folder = tmp_path / "runs/tiny/a"
    for seed in (0, 1):
        wait_for(folder / f"epochs=1000000,seed={seed}/last.pt", process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 130, said
    assert "The same command resumes it: finished runs are kept." in said
    assert "epochs=1,seed=0  accuracy " in said
    for seed in (0, 1):
        assert RunFolder(folder / f"epochs=1,seed={seed}").summary
        assert RunFolder(folder / f"epochs=1000000,seed={seed}").summary is None


def test_a_comparison_is_one_process(structmax_in, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, said = structmax_in("compare", "tiny", "--over", "clip=0,1")
    assert code == 2
    assert "compare should be started as one process, not by torchrun. Try --jobs." in said


@pytest.mark.thorough
def test_all_leaves_out_what_other_settings_refuse(structmax_in):
    code, said = structmax_in("compare", "tiny", "--over", "flavour=all", "--epochs", 3, "--seeds", 1)
    # sour fails, and is no reason to run nothing
    assert code == 1
    assert "flavour=nan is left out. `flavour` cannot be nan for 3 epochs. 2 runs of tiny" in said
    code, said = structmax_in("compare", "tiny", "--over", "flavour=sweet,nan", "--epochs", 3, "--seeds", 1)
    assert code == 2
    assert "`flavour` cannot be nan for 3 epochs." in said


def test_workers_do_all_that_there_is():
    results = dict(workers.each(math.pow, [(2, k) for k in range(5)], count=2))
    assert results == {k: 2.0**k for k in range(5)}


def test_a_process_that_is_killed():
    with pytest.raises(RunError, match=r"A process was killed, .* Try fewer --jobs than 2\."):
        list(workers.each(os._exit, [(9,)], count=2))


@pytest.mark.thorough
@pytest.mark.usefixtures("structmax_in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_with_nothing_left_to_begin(tmp_path, number):
    settings = ("--seeds", "1", "--name", "a", "--jobs", "2", "--overwrite")
    process = start(tmp_path, "compare", "more/tiny.py", "--over", "epochs=1,1000000", *settings)
    folder = tmp_path / "runs/tiny/a"
    wait_for(folder / "epochs=1,seed=0/report.html", process)
    wait_for(folder / "epochs=1000000,seed=0/last.pt", process)
    process.send_signal(number)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + number, said
    assert "The same command without --overwrite resumes it: finished runs are kept." in said
    assert "Traceback" not in said


def test_an_interrupted_comparison_ends(structmax_in, monkeypatch):
    def stopped(*arguments, command):
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(compare, "run", stopped)
    assert structmax_in("compare", "tiny", "--over", "clip=0,1")[0] == 143


# ---------------------------------------------------------------- looking


def test_the_version(structmax_in):
    assert structmax_in("--version") == (0, f"structmax {structmax.__version__}")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", {"run", "compare", "report"}),
        ("run clus", {"clusters"}),
        ("run tiny --flavour s", {"sweet", "sour"}),
        ("run tiny --see", {"--seed"}),
        ("run nothing --see", set()),
    ],
)
def test_the_shell_completes(structmax_in, typed, words):
    typed = f"structmax {typed}"
    environment = {"_STRUCTMAX_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    environment["COMP_CWORD"] = str(len(typed.split(" ")) - 1)
    answer = CliRunner().invoke(app, [], prog_name="structmax", env=environment)
    assert words <= set(answer.output.split())
    assert "Traceback" not in answer.output


def test_list(structmax_in):
    code, said = structmax_in("list")
    assert code == 0
    assert "clusters Regression with latent categories" in said
    assert "tiny Learns one number. Nothing else." in said


def test_plot_and_report(structmax_in, tmp_path):
    for seed in (1, 2):
        assert structmax_in("run", "tiny", "--seed", seed)[0] == 0
    runs = ("runs/tiny/seed=1", "runs/tiny/seed=2")
    for path in (tmp_path / runs[0]).glob("*.[ph][nt]*"):
        path.unlink(missing_ok=path.suffix != ".pt")
    assert "The curves: runs/tiny/seed=1/curves.png" in structmax_in("plot", runs[0])[1]
    assert "The report: runs/tiny/seed=1/report.html" in structmax_in("report", runs[0])[1]
    assert (tmp_path / runs[0] / "curves.png").exists()
    assert (tmp_path / runs[0] / "report.html").exists()
    code, said = structmax_in("plot", runs[0], "--to", "curves.xyz")
    assert code == 2
    assert "--to should end in one of" in said
    assert structmax_in("plot", *runs)[1].endswith("The curves: curves.png")
    assert (tmp_path / "curves.png").exists()


def test_info(structmax_in):
    code, said = structmax_in("info")
    assert code == 0
    assert f"structmax {structmax.training.versions()['structmax']}" in said
    assert "LinearChain numba numba numba numba numba numba" in said
    assert "Matching numba numba – – – numba" in said
    assert "compiled kernels:" in said


def test_bench(structmax_in, monkeypatch):
    monkeypatch.setattr(bench, "BUDGET", 0.0)
    code, said = structmax_in("bench", "--only", "sparsemax")
    assert code == 0
    title, size, forward, both = said.split("backward")[-1].split()
    assert (title, size) == ("sparsemax", "1024×1000")
    assert float(forward) > 0
    assert float(both) > 0


def test_bench_without_a_gpu(structmax_in, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, said = structmax_in("bench", "--device", "cuda")
    assert code == 2
    assert "`device` should exist on this machine, but is 'cuda': it has no GPU. Try auto." in said


@pytest.mark.thorough
def test_every_case_of_the_bench_runs(monkeypatch):
    monkeypatch.setattr(bench, "BUDGET", 0.0)
    monkeypatch.setattr(bench, "REPEATS", 1)
    rows = list(bench.measure())
    assert len(rows) == len(bench.CASES)
    assert all((row.both is not None) == row.case.has_gradient for row in rows)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("typer", "rich") else name)
    with pytest.raises(
        SystemExit, match=r"needs typer and rich, not found here. Try: pip install 'structmax\[recipes\]'"
    ):
        cli.main()


def test_main_is_the_app(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["structmax", "list"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "clusters" in capsys.readouterr().out


def test_the_bar(monkeypatch):
    seen = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=seen, force_terminal=True, width=120))
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    with progress.Bar(("loss", "absent"), minutes=1.0) as bar:
        bar.begins(Place(step=3), epochs=4)
        # 7 of 16 batches in 28 s: 36 s to go, were there not only a minute in all
        bar.steps(Place(epoch=1, batch=3, step=7, instances=700, seconds=28.0, evaluating=14.0), 4, {"loss": 0.25})
    said = seen.getvalue()
    for words in ("epoch 2/4", "loss 0.2500", "50/s", "0:00:32 left"):
        assert words in said, words


def test_a_narrow_table_keeps_its_figures():
    seen = io.StringIO()
    lines = speech.table("estimator", "accuracy", "loss")
    lines.add_row("marginalise", "0.123 ± 0.045", "6.789 ± 0.012")
    Console(file=seen, width=24).print(lines)
    assert "…" not in seen.getvalue()
    assert all(figures in seen.getvalue() for figures in ("0.123", "0.045", "6.789", "0.012"))


def test_numbers_of_tables():
    assert [speech.number(value) for value in (3, "x", 0.5, 0.0, 1e-7, 12345.678)] == [
        "3",
        "x",
        "0.5000",
        "0.0000",
        "1e-07",
        "1.23e+04",
    ]


def test_failures_are_outcomes(structmax_in, tmp_path):
    outcome = compare._outcome("tiny", {"flavour": "nan"}, tmp_path / "a")
    assert outcome == Outcome(error=outcome.error)
    assert "but is nan at step 1" in outcome.error


def test_unknown_recipes():
    with pytest.raises(RunError, match=r"A recipe should be one of .*clusters.*, but is 'nothing'"):
        recipes.find("nothing")


# ---------------------------------------------------------------- compiling ahead


def test_warm_up_compiles_the_structures_named_or_all(monkeypatch):
    asked = []
    monkeypatch.setattr(structmax, "warm_up", lambda structure, dtype: asked.append((structure, dtype)) or 1.25)
    result = CliRunner().invoke(app, ["warm-up", "LinearChain", "Subset", "--double"])
    assert result.exit_code == 0, result.output
    assert asked == [(structmax.LinearChain, torch.float64), (structmax.Subset, torch.float64)]
    assert "LinearChain, Subset: ready for float64 after 2.5 s, and kept on disk." in result.output
    asked.clear()
    assert CliRunner().invoke(app, ["warm-up"]).exit_code == 0
    public = {getattr(structmax, name) for name in structmax.__all__}
    assert {structure for structure, _ in asked} == {it for it in public if "structmax.structures" in str(it)} - {
        structmax.TagConstraints,
        structmax.tag_constraints,
    }
    assert {dtype for _, dtype in asked} == {torch.float32}


def test_warm_up_of_an_unknown_structure_names_the_known_ones():
    result = CliRunner().invoke(app, ["warm-up", "Tree"])
    assert result.exit_code == 2
    assert "STRUCTURE should be one of BilexicalTree, BinaryTree, Bits" in " ".join(
        result.output.replace("│", " ").split()
    )
