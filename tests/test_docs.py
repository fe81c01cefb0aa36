"""Every Python block of README.md and of the pages under docs/ runs as it is written, top to bottom."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import structmax

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPACES = ("estimators", "factors", "noise", "nn", "omega")
# test_tutorials.py runs the tutorials, as notebooks.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(page.read_text()) and page.parent.name != "tutorials"
]


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path) -> None:
    torch.manual_seed(0)
    text = page.read_text(encoding="utf-8")
    # A structure written in a block looks its room up by module name.
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        # Blank lines in front, so that an error names the line of the page.
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(source, str(page), "exec"), namespace)


DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "structmax").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT))
)
def test_examples_and_arguments_are_read_as_such(file: Path) -> None:
    """The reference pages know `Examples:`; under any other heading, an example becomes a quotation."""
    for docstring in DOCSTRING.findall(file.read_text(encoding="utf-8")):
        lines = docstring.splitlines()
        for number, line in enumerate(lines):
            assert not re.match(r"\s*\w+: >", line), f"a quotation in Markdown: {line.strip()!r}"
            if line.lstrip().startswith(">>>"):
                indent = len(line) - len(line.lstrip())
                outer = [
                    above for above in lines[:number] if above.strip() and len(above) - len(above.lstrip()) < indent
                ]
                assert outer, f"an example without a heading: {line.strip()!r}"
                assert outer[-1].strip() == "Examples:", f"`Examples:` should stand above {line.strip()!r}"


def test_classes_alone_have_capitals() -> None:
    for space in (structmax, *(getattr(structmax, name) for name in SPACES)):
        for name in space.__all__:
            value = getattr(space, name)
            assert isinstance(value, ModuleType) or inspect.isclass(value) == name[0].isupper(), name
