"""The files of a run, as a page reads them: a missing one is empty, one that no run writes so is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


class BadFile(ValueError):
    """A file of a run is not as a run writes it."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """While the page is made of this file: what it holds may be of any shape."""
    try:
        yield
    except BadFile:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"should be as a run writes it, but is not ({type(error).__name__}: {error})"
        raise BadFile(f"{path}: {reason}. Start the run again, or remove the file.") from error


def read_json(path: Path, kind: type) -> Any:
    """What a file holds; nothing, if it does not exist."""
    return _parsed(_text(path), path, kind) if path.exists() else kind()


def read_rows(path: Path) -> Rows:
    """One dictionary for each line; none, if the file does not exist."""
    lines = _text(path).splitlines() if path.exists() else []
    return [_parsed(line, path, dict, number) for number, line in enumerate(lines, 1)]


def _text(path: Path) -> str:
    """Text that cannot be decoded is not JSON either, which parsing it reports."""
    return path.read_text(encoding="utf-8", errors="replace")


def _parsed(text: str, path: Path, kind: type, line: int = 1) -> Any:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile(
            f"{path}:{line + error.lineno - 1}: should be JSON, but {error.msg}. "
            "Was it being written when the run stopped?"
        ) from None
    if not isinstance(found, kind):
        wanted = "an object" if kind is dict else "an array"
        raise BadFile(f"{path}:{line}: should be {wanted} of JSON, but is {text.strip()[:40]!r}. Remove the file.")
    return found
