"""The folder of a run. Every file is written under another name and then moved into place: none is ever incomplete."""

import io
import json
import os
import pickle
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from structmax.training.errors import DataError, RunError
from structmax.training.lock import locked

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
    "origin.json",
    "config.json",
)
# what is read again, and has to be there: the type of each entry
SHAPES: dict[str, dict[str, Any]] = {
    "config.json": {},
    "summary.json": {
        "best": dict,
        "test": dict,
        "seconds": int | float,
        "instances_per_second": int | float,
        "steps": int,
        "device": str,
    },
    "compare.json": {"runs": dict},
    "metrics.jsonl": {"step": int},
}
# bytes of a path that are no letters stay what they are
ODD = "surrogateescape"
ANEW = "Start the run again with --overwrite, or choose another --name."


def spelled(settings: Mapping[str, Any]) -> str:
    """Settings as the name of a folder.

    Examples:
        >>> spelled({"seed": 1, "train_file": "data/a.tsv"})
        'seed=1,train_file=data_a.tsv'
    """
    # a path among the values makes no folders
    return ",".join(f"{name}={value}" for name, value in settings.items()).replace("/", "_")


@dataclass(frozen=True)
class RunFolder:
    """`runs/<recipe>/<name>/`, and what is in it.

    Examples:
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
        lines = _text(path).splitlines() if path.exists() else []
        return [_object(line, path, number) for number, line in enumerate(lines, 1)]

    def write_rows(self, rows: list[Row]) -> None:
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def write(self, name: str, content: Any) -> None:
        """A file of JSON."""
        self.write_text(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """A file of text, such as the report that `structmax.plots.report.html` returns."""
        return self.move_in(name, lambda path: path.write_text(text, encoding="utf-8", errors=ODD))

    def save(self, name: str, state: dict[str, Any]) -> None:
        """A checkpoint."""
        # by way of memory: torch's own writing of files does not say that a disk is full
        content = io.BytesIO()
        torch.save(state, content)
        self.move_in(name, lambda path: path.write_bytes(content.getbuffer()))

    def load(self, name: str) -> dict[str, Any] | None:
        """A checkpoint, on the CPU; None if it is missing."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        # bytes that are no checkpoint can lead torch, and pickle below it, anywhere
        except Exception as error:
            # torch's words for this one tell how to trust the file
            is_foreign = isinstance(error, pickle.UnpicklingError)
            why = "it holds more than tensors and plain values" if is_foreign else _in_a_line(error)
            raise DataError(path, None, f"should be a checkpoint, but cannot be read ({why}). {ANEW}") from error

    @contextmanager
    def restoring(self, name: str) -> Iterator[None]:
        """While a run takes up what a checkpoint holds: one of another run does not fit, and is said not to."""
        try:
            yield
        except RunError:
            raise
        except Exception as error:
            reason = f"should be a checkpoint of this run, but does not fit it ({_in_a_line(error)}). {ANEW}"
            raise DataError(self.path / name, None, reason) from error

    def locked(self) -> AbstractContextManager[None]:
        """Holds the folder, so that no other process writes into it; a `RunError` if one does."""
        return locked(self.path)

    def clear(self) -> None:
        """Takes a run away, what it was writing when it was killed, and nothing else that may be here."""
        with self.locked():
            for name in WRITTEN:
                for path in (self.path / name, *self.path.glob(f".*.{name}")):
                    path.unlink(missing_ok=True)

    def move_in(self, name: str, write: Callable[[Path], Any]) -> Path:
        """The file of that name, once `write` has filled it."""
        # the suffix stays last: it tells what to write
        path, beside = self.path / name, self.path / f".{os.getpid()}.{name}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(beside)
            os.replace(beside, path)
        except OSError as error:
            raise RunError(f"{path} could not be written: {error.strerror}.") from error
        finally:
            if beside.exists():
                beside.unlink()
        return path

    def read(self, name: str) -> Any:
        """A file of JSON; None if it is missing."""
        path = self.path / name
        if not path.exists():
            return None
        return (_object if name in SHAPES else _parsed)(_text(path), path)


def _text(path: Path) -> str:
    """Text that cannot be decoded is not JSON either, which parsing it reports."""
    try:
        return path.read_text(encoding="utf-8", errors=ODD)
    except OSError as error:
        raise DataError(path, None, f"should be a file of JSON, but cannot be read: {error.strerror}.") from error


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"should be JSON, but has an error: {error.msg}. Mend the file, or take it away."
        raise DataError(path, line + error.lineno - 1, reason) from None
    except RecursionError:
        raise DataError(path, line, "should be JSON, but is nested too deeply. Remove the file.") from None


def _object(text: str, path: Path, line: int = 1) -> dict[str, Any]:
    """A JSON object with all that this file's should have."""
    found = _parsed(text, path, line)
    if not isinstance(found, dict):
        reason = f"should be a JSON object, but is {text.strip()[:40]!r}. {ANEW}"
        raise DataError(path, line, reason)
    for name, kind in SHAPES[path.name].items():
        if not isinstance(found.get(name), kind):
            what = repr(found[name])[:40] if name in found else "missing"
            named = getattr(kind, "__name__", kind)
            raise DataError(path, line, f"should have a {name} of type {named}, but it is {what}. {ANEW}")
    return found


def _in_a_line(error: Exception) -> str:
    """An error in one line: torch's have many, and a reason in the second."""
    words = [line.strip() for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(f"{type(error).__name__}: {' '.join(words[:2])}", 160, placeholder=" …")
