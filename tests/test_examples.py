"""The examples run, and say what they should."""

import runpy
from pathlib import Path

import structmax

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_a_recursion_of_ones_own(capsys):
    runpy.run_path(str(EXAMPLES / "rna.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "foldings of" in said
    assert "drawn, p =" in said


def test_clusters_nobody_was_told_about(capsys, tmp_path):
    study = runpy.run_path(str(EXAMPLES / "clusters.py"))
    study["ESTIMATORS"].clear()
    study["ESTIMATORS"].update({"marginalise": structmax.Enumerate(), "draw": structmax.ScoreFunction()})
    study["main"](clusters=(3,), steps=120, seeds=2, plot=str(tmp_path / "curves.png"))
    said = capsys.readouterr().out
    accuracy = float(said.split("marginalise")[1].split()[3])
    # one seed finds them all, the other joins two
    assert accuracy > 0.8
    assert "draw  " in said
