"""The folder that remembers a run. Every file is written beside its place and then moved there: none is ever half."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Row = dict[str, float]
# the config last: as long as it is there, so is a run
WRITTEN = (
    "metrics.jsonl",
    "last.pt",
    "best.pt",
    "summary.json",
    "structures.json",
    "curves.png",
    "report.html",
    "error.txt",
    "config.json",
)


@dataclass(frozen=True)
class RunFolder:
    """`runs/<recipe>/<name>/`, and what is in it.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "runs")
        >>> folder.write("config.json", {"seed": 1})
        >>> folder.config, folder.summary
        ({'seed': 1}, None)
    """

    path: Path

    @property
    def config(self) -> dict[str, Any] | None:
        """The settings the run was begun with; None if none was begun here."""
        return self.read("config.json")

    @property
    def summary(self) -> dict[str, Any] | None:
        """What came of the run; None until it is finished."""
        return self.read("summary.json")

    @property
    def rows(self) -> list[Row]:
        """One of each evaluation."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def write_rows(self, rows: list[Row]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self.move_in("metrics.jsonl", lambda path: path.write_text(text, encoding="utf-8"))

    def write(self, name: str, content: Any) -> None:
        """A file of JSON."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        self.move_in(name, lambda path: path.write_text(text, encoding="utf-8"))

    def save(self, name: str, state: dict[str, Any]) -> None:
        """A checkpoint."""
        self.move_in(name, lambda path: torch.save(state, path))

    def load(self, name: str) -> dict[str, Any] | None:
        """A checkpoint, on the CPU; None if it is not there."""
        path = self.path / name
        return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None

    def clear(self) -> None:
        """Takes a run away, and nothing else that may be here."""
        for name in WRITTEN:
            (self.path / name).unlink(missing_ok=True)

    def move_in(self, name: str, write: Callable[[Path], Any]) -> Path:
        """The file of that name, once `write` has filled it."""
        self.path.mkdir(parents=True, exist_ok=True)
        # the suffix stays last: it tells what to write
        path, beside = self.path / name, self.path / f".{os.getpid()}.{name}"
        try:
            write(beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        return path

    def read(self, name: str) -> Any:
        """A file of JSON; None if it is not there."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
