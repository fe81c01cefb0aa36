"""Every script of the gallery draws the picture that the page shows beside its code."""

import re
import runpy
from pathlib import Path

import matplotlib
import matplotlib.image
import matplotlib.pyplot
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_draws_its_picture(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    # The style that a script sets stays in its test.
    with matplotlib.rc_context():
        runpy.run_path(str(script), run_name="__main__")
    shown = script.with_suffix(".png")
    drawn, kept = (matplotlib.image.imread(path)[..., :3] for path in (tmp_path / shown.name, shown))
    assert drawn.shape == kept.shape
    # The picture of the page has fewer colours, so that they differ, but little.
    different = np.abs(drawn - kept).max(-1) > 0.2
    assert different.mean() < 0.0003, "the picture is not the script's: draw it again with docs/draw.py"
    assert shown.stat().st_size < 120_000


def test_the_page_shows_every_script_and_its_picture() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    names = [script.stem for script in SCRIPTS]
    assert sorted(re.findall(r"--8<--\n +gallery/(\w+)\.py\n +--8<--", page)) == names
    assert sorted(re.findall(r"!\[[^\]]+\]\(gallery/(\w+)\.png\)", page)) == names
