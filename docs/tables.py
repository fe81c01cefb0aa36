"""Writes the tables of the reference pages from the library itself: `python docs/tables.py`.

A page says where a table belongs by a pair of comments, and what is between them is written anew:

    <!-- names -->                    what the page documents: each name with the first line of its docstring
    <!-- questions LinearChain -->    which questions that structure answers, and what runs for them
    <!-- end -->
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import structmax
from structmax.backends import explain, intractable, near
from structmax.contract import AbstractStructure
from structmax.rooms import found, function, module_of

REFERENCE = Path(__file__).parent / "reference"
TABLE = re.compile(r"<!-- (names|questions (\w+)) -->\n.*?<!-- end -->", re.DOTALL)
ENTRY = re.compile(r"^::: (structmax[\w.]*)$", re.MULTILINE)
# The functions that a structure is asked for. Of several lists, the first that it has.
QUESTIONS: dict[str, list[tuple[str, ...]]] = {
    "`argmax`": [("argmax",)],
    "`topk`": [("topk",)],
    "`max_marginals`": [("max_marginals",)],
    "`minimum_bayes_risk`": [("argmax", "marginals")],
    "`perturb_and_map`, `perturbed_value`": [("argmax",)],
    "`log_partition`, `log_count`": [("log_partition",)],
    "`marginals`": [("marginals",)],
    "gradient of `marginals`": [("marginals_jvp",)],
    "`entropy`, `cross_entropy`, `kl_divergence`": [("log_partition", "marginals")],
    "`log_prob`": [("log_partition",)],
    "`log_prob(known=…)`": [("log_partition", "given_log_partition")],
    "`sample`": [("sample",)],
    "`sample_without_replacement`": [("sample_without_replacement",)],
    "`sparsemap`": [("relax",), ("sparsemap",)],
    "`sparse_marginals`": [("project",), ("relax",), ("sparsemap",)],
    "`topk_sparsemap`": [("topk",)],
    "`smoothed`, `smoothed_marginals`, `smoothed_log_prob`, `smoothed_sample`, `smoothed_topk`": [
        ("smoothed", "smoothed_and_marginals", "smoothed_log_prob", "smoothed_sample", "smoothed_topk")
    ],
    "`semiring_value`": [("semiring_value", "semiring_pullback")],
    # it lists the members, and asks for nothing else
    "`expect` with `estimators.Enumerate`": [()],
}


def entries(page: str) -> list[str]:
    """What a page documents, in its order."""
    return [name for name in ENTRY.findall(page) if not isinstance(value_of(name), ModuleType)]


def public(name: str) -> str:
    """The name that users write: a page says `structmax.which.which` where a module has the name of its function."""
    return re.sub(r"\.(\w+)\.\1$", r".\1", name)


def value_of(name: str) -> Any:
    """What an entry of a page stands for."""
    module, _, last = name.rpartition(".")
    holder = importlib.import_module(module)
    return getattr(holder, last) if hasattr(holder, last) else importlib.import_module(name)


def names(page: str) -> str:
    """The table of a page's names: each with the first line of its docstring."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in entries(page):
        line = (inspect.getdoc(value_of(name)) or "").split("\n")[0]
        short = public(name).removeprefix("structmax.")
        rows.append(f"| [`{short}`](#{name}) | {_escaped(line)} |")
    return "\n".join(rows)


def _escaped(line: str) -> str:
    """Markdown reads a bar as the end of a cell, and stars as emphasis; code stays as it is."""
    pieces = line.replace("|", r"\|").split("`")
    pieces[::2] = [piece.replace("*", r"\*").replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)


def questions(structure: type[AbstractStructure]) -> str:
    """The table of what a structure answers: for scores on the CPU, for scores on a GPU, and in plain torch."""
    rows = ["| question | scores on the CPU | scores on a GPU | in plain torch |", "|---|---|---|---|"]
    reasons: dict[str, list[str]] = {}
    for question, choices in QUESTIONS.items():
        wanted = needed(structure, choices)
        cells = [_runs(structure, wanted, device) for device in ("cpu", "cuda")]
        if None in cells:
            cells = ["refused", "refused"]
            why = next(filter(None, (intractable(structure.room, name) for name in wanted)), "no backend has it.")
            reasons.setdefault(why, []).append(question)
        in_torch = all(function(structure.room, name, "reference") for name in wanted)
        plain = ("yes" if in_torch else "refused") if wanted else cells[0]
        rows.append(f"| {question} | {cells[0]} | {cells[1]} | {plain} |")
    refused = [f"Refused are {', '.join(asked)}: {why}" for why, asked in reasons.items()]
    return "\n\n".join(["\n".join(rows), *refused])


def needed(structure: type[AbstractStructure], choices: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The functions that the question asks this structure for."""
    return next((wanted for wanted in choices if _runs(structure, wanted, "cpu")), choices[-1])


def _runs(structure: type[AbstractStructure], wanted: tuple[str, ...], device: str) -> str | None:
    """In words, what `backend="auto"` takes for scores on that device; None if nothing answers."""
    kinds: dict[str, None] = {} if wanted else {"enumeration": None}
    for name in wanted:
        able = near(structure.room, name, device, explain(structure.room, name, device))
        if not able:
            return None
        kinds[_kind(structure, found(structure.room, name, able[0]).home, able[0], device)] = None
    return ", ".join(kinds)


def _kind(structure: type[AbstractStructure], home: str, backend: str, device: str) -> str:
    if backend == "reference":
        return "torch"
    if device == "cuda" and backend == "numba":
        return "on the CPU"
    folder = module_of(structure.room).rsplit(".", 1)[-1]
    return {folder: "kernel", "recursion": "recursion kernel", "semiring": "recursion kernel"}.get(
        home.split("/")[0], "calls of `argmax`"
    )


def written(page: str) -> str:
    """The page with its tables as they should be."""

    def table(match: re.Match[str]) -> str:
        inside = names(page) if match[1] == "names" else questions(getattr(structmax, match[2]))
        return f"<!-- {match[1]} -->\n{inside}\n<!-- end -->"

    return TABLE.sub(table, page)


if __name__ == "__main__":
    for path in sorted(REFERENCE.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        path.write_text(written(text), encoding="utf-8")
