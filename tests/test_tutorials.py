"""Every tutorial runs as it is written: it prints and draws what its page shows, and its notebook is the page."""

import contextlib
import io
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import matplotlib
import matplotlib.image
import nbformat
import pytest

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
notebooks = SimpleNamespace(**runpy.run_path(str(TUTORIALS.with_name("notebooks.py"))))
PAGES = notebooks.pages()


def display() -> ModuleType:
    """Stands in for `IPython.display`, which notebooks have and the tests do not need: it opens the pictures."""
    module = ModuleType("IPython.display")
    module.Image = lambda filename: matplotlib.image.imread(filename)
    module.SVG = lambda filename: Path(filename).read_text(encoding="utf-8")
    return module


def printed_by(cell: nbformat.NotebookNode, page: Path, namespace: dict[str, object]) -> str:
    """Runs a code cell and returns what it printed; a traceback names the line of the page."""
    before = page.read_text(encoding="utf-8").partition(cell.source)[0]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile("\n" * before.count("\n") + cell.source, str(page), "exec"), namespace)
    return printed.getvalue()


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_cells_print_and_draw_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "IPython.display", display())
    namespace: dict[str, object] = {"__name__": "__main__"}
    # The style that a page sets stays in its test, and so does that of another test.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for cell in nbformat.read(page.with_suffix(".ipynb"), as_version=4).cells:
            if cell.cell_type == "code":
                printed = printed_by(cell, page, namespace)
                shown = [output.text for output in cell.outputs if output.output_type == "stream"]
                assert shown in ([], [printed])
    for picture in notebooks.pictures(page):
        drawn = tmp_path / picture.name
        assert drawn.exists(), f"no block of the page draws {picture.name}"
        if picture.suffix == ".png":
            now, kept = (matplotlib.image.imread(path).shape[:2] for path in (drawn, picture))
            assert now == kept, f"{picture.name} should have {now} pixels, but has {kept}: run docs/draw.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_its_notebook_and_small_pictures(page: Path) -> None:
    text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == notebooks.notebook(page), "the notebook is not that of the page: run docs/notebooks.py"
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert f"]({page.stem}.ipynb)" in page.read_text(encoding="utf-8"), "the page should link its notebook"
    assert f"]({page.name})" in (TUTORIALS / "index.md").read_text(encoding="utf-8"), "the index should name the page"
    for picture in notebooks.pictures(page):
        assert picture.stem.startswith(f"{page.stem}-"), f"{picture.name} should begin with the name of its page"
        assert picture.stat().st_size < 60_000, f"{picture.name} should be smaller than 60 kB"


def test_every_picture_is_shown() -> None:
    kept = {path for path in TUTORIALS.iterdir() if path.suffix in {".png", ".svg"}}
    assert kept == {picture for page in PAGES for picture in notebooks.pictures(page)}


def test_the_tagger_has_sixty_lines() -> None:
    blocks = notebooks.BLOCK.finditer((TUTORIALS / "tagger.md").read_text(encoding="utf-8"))
    assert len([line for block in blocks for line in block["code"].splitlines() if line.strip()]) <= 60
