"""An extension of griffe, which reads the docstrings of the reference: it reads comments above fields as well."""

import ast
import re
from typing import Any

import griffe

FIELD = re.compile(r"\s+\w+: ")


class CommentsOfFields(griffe.Extension):
    """The comment above a field of a class, or above it and fields next to it, as its documentation."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring or not isinstance(node, ast.AnnAssign) or not attr.parent or not attr.parent.is_class:
            return
        before = attr.lines_collection[attr.filepath][: node.lineno - 1]
        while before and FIELD.match(before[-1]):
            before.pop()
        comment: list[str] = []
        while before and before[-1].lstrip().startswith("# "):
            comment.insert(0, before.pop().strip().removeprefix("# "))
        if comment:
            attr.docstring = griffe.Docstring(" ".join(comment), parent=attr)
