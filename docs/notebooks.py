"""Turns the tutorials into notebooks: `python docs/notebooks.py`, after their text has changed.

The Python blocks of a page are the code cells; what a page shows of their output becomes the output of the cells.
Pictures are inside the notebook, so that it stands alone. `python docs/draw.py` draws them and writes the notebooks.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
INSTALL = """\
This notebook needs structmax with what its recipes need, matplotlib among them. In a copy of the repository:

    pip install -c constraints.txt ".[recipes]"
"""

PICTURE = r"!\[[^\]]*\]\(([\w-]+\.(?:png|svg))\)"
# A Python block, what it printed, and the pictures it drew, where the page shows them right after it.
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\s*^```text\n(?P<printed>.*?)^```\n)?"
    rf"(?P<drawn>(?:\s*^{PICTURE}\n)*)",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[Path]:
    """Every tutorial; the index is not one."""
    return [page for page in sorted(TUTORIALS.glob("*.md")) if page.stem != "index"]


def pictures(page: Path) -> list[Path]:
    """The pictures that a page shows, each once."""
    return [page.with_name(name) for name in dict.fromkeys(re.findall(PICTURE, page.read_text(encoding="utf-8")))]


def notebook(page: Path) -> str:
    """The notebook of a page, as the text of its file."""
    cells = [{"id": f"{page.stem}-{number}", **cell} for number, cell in enumerate(_cells(page))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cells(page: Path) -> Iterator[dict[str, Any]]:
    text = page.read_text(encoding="utf-8")
    # The link to the notebook itself.
    text = re.sub(rf"^.*\({page.stem}\.ipynb\).*\n\n", "", text, flags=re.MULTILINE)
    yield _markdown(INSTALL, page)
    end = 0
    for block in BLOCK.finditer(text):
        if between := text[end : block.start()].strip():
            yield _markdown(between, page)
        printed = {"output_type": "stream", "name": "stdout", "text": _lines(block["printed"] or "")}
        yield _code(block["code"].rstrip("\n"), [printed] if block["printed"] else [])
        for name in re.findall(PICTURE, block["drawn"]):
            kind = "Image" if name.endswith(".png") else "SVG"
            shown = {"output_type": "execute_result", "data": _embedded(page.with_name(name)), "metadata": {}}
            source = f'from IPython.display import {kind}\n\n{kind}(filename="{name}")'
            yield _code(source, [{**shown, "execution_count": None}])
        end = block.end()
    if rest := text[end:].strip():
        yield _markdown(rest, page)


def _code(source: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    cell = {"cell_type": "code", "metadata": {}, "source": _lines(source)}
    return {**cell, "execution_count": None, "outputs": outputs}


def _markdown(text: str, page: Path) -> dict[str, Any]:
    # The formulas of the site, as notebooks write them.
    text = re.sub(r"^```math\n(.*?)^```", r"$$\n\1$$", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$`(.+?)`\$", r"$\1$", text)
    attachments = {name: _embedded(page.with_name(name)) for name in re.findall(PICTURE, text)}
    for name in attachments:
        text = text.replace(f"]({name})", f"](attachment:{name})")
    cell = {"cell_type": "markdown", "metadata": {}, "source": _lines(text)}
    return {**cell, "attachments": attachments} if attachments else cell


def _embedded(picture: Path) -> dict[str, Any]:
    """A picture as notebooks hold it: its type, and its text or, if it has none, base64."""
    if picture.suffix == ".svg":
        return {"image/svg+xml": _lines(picture.read_text(encoding="utf-8"))}
    return {"image/png": base64.b64encode(picture.read_bytes()).decode()}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def write(page: Path) -> None:
    page.with_suffix(".ipynb").write_text(notebook(page), encoding="utf-8")


if __name__ == "__main__":
    for page in pages():
        write(page)
