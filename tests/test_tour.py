"""The tour runs, and writes a page that needs nothing but itself."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

# a whole script
pytestmark = pytest.mark.thorough

TOUR = Path(__file__).parent.parent / "examples" / "tour.py"


def test_tour(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("tour", TOUR)
    assert spec
    assert spec.loader
    tour = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    monkeypatch.setitem(sys.modules, "tour", tour)
    spec.loader.exec_module(tour)
    monkeypatch.chdir(tmp_path)

    page = tour.main(tmp_path / "demo", steps=6).read_text(encoding="utf-8")

    said = capsys.readouterr().out
    assert str(tmp_path) not in said
    assert "demo/index.html" in said
    assert "sparsemax" in said
    assert "feasible structure" in said
    sources = re.findall(r'src="([^"]{1,40})', page)
    assert len(sources) == 5
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert len(list((tmp_path / "demo").glob("*.png"))) == 5
