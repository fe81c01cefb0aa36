"""The site's formulas, and the browser that looks at its pages."""

import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
CHROMIUM = shutil.which("chromium")
check = runpy.run_path(str(DOCS / "check_site.py"))["check"]


@pytest.fixture(scope="module")
def mathml() -> Callable[[str, str], str]:
    for needed in ("latex2mathml", "mkdocs", "pymdownx"):
        pytest.importorskip(needed, reason=f"{needed} builds the site: pip install structmax[docs]")
    return runpy.run_path(str(DOCS / "hooks.py"))["mathml"]


def test_formulas_become_mathml(mathml: Callable[[str, str], str]) -> None:
    assert "<mfrac><mrow><mi>t</mi></mrow><mrow><mn>2</mn></mrow></mfrac>" in mathml(r"\frac{t}{2}", "inline")
    assert "<mtr>" in mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "block")


def test_names_are_spaced_as_in_latex(mathml: Callable[[str, str], str]) -> None:
    assert re.search(r'<mo lspace="0" rspace="0">KL</mo>', mathml(r"\operatorname{KL}(q)", "inline"))
    assert re.search(r'<mo lspace="0.167em" rspace="0.167em">log</mo>', mathml(r"p \log p", "inline"))
    # Below it where there is room, beside it in a line.
    assert "<munder><mo" in mathml(r"\max_p p", "block")
    assert "<msub><mo" in mathml(r"\max_p p", "inline")


@pytest.mark.parametrize(
    ("tex", "words"),
    [
        (r"\nosuch x", r"has '\\\\nosuch', which is not known"),
        ("{x", "braces without a partner"),
        ("x}", "braces without a partner"),
        (r"\frac{a}", "lacks an argument of mfrac"),
        (r"\left( x", "ExtraLeftOrMissingRight"),
        (r"\begin{aligned} a", "MissingEnd"),
        ("a & b", "not well-formed"),
        ("a $ b", r"has '\$', which is not known"),
        (r"a \\ b", "breaks a line outside"),
        ("x_", "MissingSuperScriptOrSubscript"),
    ],
)
def test_formulas_that_are_wrong_stop_the_build(mathml: Callable[[str, str], str], tex: str, words: str) -> None:
    with pytest.raises(Exception, match=words) as raised:
        mathml(tex, "inline")
    assert type(raised.value).__name__ == "SuperFencesException"


def test_the_pictures_of_the_landing_page_are_drawn_by_the_library(tmp_path: Path) -> None:
    stories = runpy.run_path(str(DOCS / "draw.py"))["stories"]
    stories.__globals__["PICTURES"] = tmp_path
    stories()
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == (DOCS / "pictures" / drawn.name).read_text(), "draw it again with docs/draw.py"


PAGES = {
    "good/index.html": '<p>Good.</p><img src="there.svg"><div class="math">short</div>',
    # As the theme has it: the page cannot be scrolled, but its end cannot be seen either.
    "wide/index.html": '<style>html { overflow-x: hidden }</style><pre class="culprit" style="width: 600px">x</pre>',
    "inside/index.html": '<div style="overflow-x: auto"><div style="width: 2000px">x</div></div>',
    "formula/index.html": '<div class="math" style="overflow-x: auto"><div style="width: 700px">y = x</div></div>',
    "loud/index.html": "<script>console.error('out loud')</script>",
    "thrown/index.html": "<script>throw new Error('not caught')</script>",
    "lost/index.html": '<img src="nowhere.png">',
    "elsewhere/index.html": '<script src="http://structmax.invalid/x.js"></script>',
    "fetched/index.html": "<script>fetch('https://structmax.invalid/y.json').catch(() => null)</script>",
    "tall/index.html": '<div style="height: 16000px"></div>',
    "reference/tall/index.html": '<div style="height: 16000px"></div>',
}


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")
def test_the_browser_finds_what_is_wrong(tmp_path: Path) -> None:
    for name, body in PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"<!doctype html><body>{body}</body>")
    (tmp_path / "good" / "there.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    found, line = check(CHROMIUM, tmp_path)
    faults: dict[str, list[str]] = {name: [] for name in PAGES}
    for each in found:
        name, fault = each.split(": ", 1)
        faults[name].append(fault)

    assert not faults["good/index.html"] + faults["inside/index.html"] + faults["tall/index.html"]
    (wide,) = faults["wide/index.html"]
    assert re.fullmatch(r'at 390 px it is 6\d\d px wide, because of <pre class="culprit">', wide)
    assert faults["formula/index.html"] == ["at 390 px a formula does not fit: y = x"]
    (loud,) = faults["loud/index.html"]
    assert "'out loud'" in loud
    (thrown,) = faults["thrown/index.html"]
    assert "not caught" in thrown
    missing, request = faults["lost/index.html"]
    assert missing == "the picture nowhere.png is missing"
    assert re.match(r"a request failed: \S+/lost/nowhere.png \(404\)", request)
    (elsewhere,) = faults["elsewhere/index.html"]
    assert elsewhere == "a request failed: http://structmax.invalid/x.js (no answer)"
    (fetched,) = faults["fetched/index.html"]
    assert re.match(r"a request failed: https://structmax.invalid/y.json", fetched)
    (tall,) = faults["reference/tall/index.html"]
    assert re.match(r"it is 160\d\d px tall, above 15000", tall)
    assert f"{len(PAGES)} pages" in line
    assert "of the reference reference/tall/index.html, 160" in line


def test_a_folder_without_pages(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="should be a built site, but has no page"):
        check("chromium", tmp_path)
