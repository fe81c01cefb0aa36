"""The examples run, and say what they should."""

import runpy
from pathlib import Path

import pytest

# whole scripts
pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_a_recursion_of_ones_own(capsys):
    runpy.run_path(str(EXAMPLES / "rna.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "foldings of" in said
    assert "drawn, p =" in said
