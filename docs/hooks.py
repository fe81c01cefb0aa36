"""Two things that mkdocs has no setting for: formulas become MathML, and the README keeps its links on the site.

A formula is a fenced block of `math`, or $`...`$ in a line, as on GitHub. It is translated when the site is built, so
that no script and no font has to be fetched. A formula that is not understood stops the build.
"""

import re
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from pymdownx.superfences import SuperFencesException

# How many children these elements have. The translator leaves out what a formula leaves out.
ARITY = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3}
LIMITS = ("max", "min", "argmax", "argmin")
CAPITALS = tuple("ΓΔΘΛΞΠΣΥΦΨΩ")
OPENING = ("(", "[", "{", "⟨")
THIN = "0.167em"
NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'


def check(root: ElementTree.Element) -> None:
    """Finds what the translator lets through."""
    for element in root.iter():
        if len(element) != ARITY.get(element.tag, len(element)):
            raise ValueError(f"lacks an argument of {element.tag}")
        if re.search(r"[\\&$]", element.text or ""):
            raise ValueError(f"has {element.text!r}, which is not known")
        if element.get("linebreak"):
            raise ValueError(r"breaks a line outside \begin{aligned}")


def typeset(root: ElementTree.Element) -> None:
    """Limits below their operator, and the spaces that LaTeX puts around names: browsers put wider ones."""
    for parent in root.iter():
        for before, element, after in zip([None, *parent], list(parent), [*parent[1:], None], strict=False):
            core = element[0] if element.tag in ARITY and element.tag != "mfrac" else element
            name = core.text or ""
            if core.tag == "mi" and name in CAPITALS:
                core.set("mathvariant", "normal")
            elif core.tag == "mo" and name in ("|", "‖"):
                core.attrib.setdefault("stretchy", "false")
            elif core.tag in ("mo", "mi") and len(name) > 1 and name.isalpha():
                core.tag = "mo"
                core.set("lspace", "0" if before is None or before.tag == "mo" else THIN)
                core.set("rspace", "0" if after is None or (after.text or "") in OPENING else THIN)
                if root.get("display") == "block" and element.tag == "msub" and name in LIMITS:
                    element.tag = "munder"


def mathml(tex: str, display: str) -> str:
    """The formula as an element of MathML; `display` is "block" or "inline"."""
    try:
        bare = re.sub(r"\\[\\{}]", "", tex)
        if bare.count("{") != bare.count("}"):
            raise ValueError("has braces without a partner")
        # The translator knows `aligned` by another name.
        translated = convert(tex.replace("{aligned}", "{split}"), display=display)
        root = ElementTree.fromstring(translated.replace(NAMESPACE, ""))
        check(root)
    except Exception as error:
        # The only error that the fences let through.
        raise SuperFencesException(f"the formula {tex.strip()!r} {str(error) or type(error).__name__}") from error
    typeset(root)
    return ElementTree.tostring(root, encoding="unicode")


def fence(
    source: str,
    language: str,
    css_class: str,
    options: dict[str, str],
    md: Markdown,
    classes: list[str] | None = None,
    id_value: str = "",
    attrs: dict[str, str] | None = None,
) -> str:
    """A block of `math`, called by superfences."""
    return f'<div class="{css_class}">{mathml(source, "block")}</div>'


class Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        return self.md.htmlStash.store(mathml(m[1], "inline")), m.start(), m.end()


class RootLinks(Treeprocessor):
    """In README.md and CHANGELOG.md, a page is `docs/page.md`; what is not on the site is in the repository."""

    def __init__(self, md: Markdown, repository: str) -> None:
        super().__init__(md)
        self.repository = repository

    def run(self, root: ElementTree.Element) -> None:
        for element in root.iter():
            for name in ("href", "src"):
                address = element.get(name, "")
                if address.startswith("docs/"):
                    element.set(name, address.removeprefix("docs/"))
                elif address == "CHANGELOG.md":
                    element.set(name, "changelog.md")
                elif re.match(r"[A-Z]+\.|benchmarks/", address):
                    element.set(name, f"{self.repository}/blob/main/{address}")


class Site(Extension):
    def __init__(self, repository: str) -> None:
        super().__init__()
        self.repository = repository

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # Before code in backticks, at 190.
        md.inlinePatterns.register(Inline(r"\$`([^`]+)`\$", md), "math", 195)
        # Before mkdocs looks links up, at 0.
        md.treeprocessors.register(RootLinks(md, self.repository), "root-links", 5)


def on_config(config: MkDocsConfig) -> None:
    config.markdown_extensions.append(Site(config.repo_url or ""))
    fences = {"name": "math", "class": "math", "format": fence}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fences]
