"""A hook of mkdocs: names of the library in code become links to their entries in the reference."""

import re
from typing import Any

from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ENTRY = re.compile(r"^::: structmax\.([\w.]+)$", re.MULTILINE)
# What is left alone: code blocks, headings, links, and the names of arguments.
KEPT = r"<pre.*?</pre>|<h\d.*?</h\d>|<a\b.*?</a>|<b><code>.*?</b>"
CODE = re.compile(rf"{KEPT}|<code>(?:structmax\.)?([\w.]+)(?:\(\))?</code>", re.DOTALL)
# Short names, and the pages and full names that they lead to.
homes: dict[str, tuple[str, str]] = {}


def on_files(files: Files, config: Any) -> None:
    """Notes where each name is documented; a name without its namespace leads there if it can mean nothing else."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in files.documentation_pages():
        if file.src_uri.startswith("reference/"):
            for name in ENTRY.findall(file.content_string):
                place = (file.src_uri, f"structmax.{name}")
                homes[name] = place
                found.setdefault(name.rsplit(".", 1)[-1], []).append(place)
    for short, places in found.items():
        if len(places) == 1 and short[0].isupper():
            homes.setdefault(short, places[0])


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    def linked(match: re.Match[str]) -> str:
        if match[1] not in homes:
            return match[0]
        uri, name = homes[match[1]]
        target = files.get_file_from_path(uri)
        assert target is not None
        return f'<a href="{target.url_relative_to(page.file)}#{name}">{match[0]}</a>'

    return CODE.sub(linked, html)
