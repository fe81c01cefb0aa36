"""The pages of the reference have every public name once, and their tables say what the library says."""

import importlib
import inspect
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import CASES

import structmax
from structmax.contract import AbstractStructure

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
PAGES = sorted(REFERENCE.rglob("*.md"))
SPACES = (
    *("structmax", "structmax.omega", "structmax.estimators", "structmax.noise", "structmax.factors"),
    *("structmax.recursion", "structmax.nn", "structmax.incremental", "structmax.lab", "structmax.training"),
    *("structmax.testing", "structmax.plots.simplex", "structmax.plots.curves", "structmax.plots.structures"),
    *("structmax.plots.report", "structmax.integrations.transformers"),
)
STRUCTURES = [
    name
    for name in structmax.__all__
    if inspect.isclass(value := getattr(structmax, name))
    and issubclass(value, AbstractStructure)
    and not inspect.isabstract(value)
]


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_public_name_is_on_exactly_one_page() -> None:
    modules = {space: importlib.import_module(space) for space in SPACES}
    public = {
        f"{space}.{name}"
        for space, module in modules.items()
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
    }
    shown = [TABLES["public"](name) for page in PAGES for name in TABLES["entries"](read(page))]
    assert sorted(shown) == sorted(public)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REFERENCE)))
def test_tables_are_as_the_library_says(page: Path) -> None:
    text = read(page)
    assert TABLES["written"](text) == text, "a table is out of date: run `python docs/tables.py`"
    # a page that documents anything begins with the table of its names
    assert ("<!-- names -->" in text.split("\n## ")[0]) == bool(TABLES["entries"](text))


@pytest.mark.parametrize("name", [name for page in PAGES for name in TABLES["entries"](read(page))])
def test_the_first_line_of_a_docstring_is_a_sentence(name: str) -> None:
    """It stands alone in the tables."""
    docstring = inspect.getdoc(TABLES["value_of"](name))
    assert docstring is not None
    assert re.search(r"[.…₊]$", docstring.split("\n")[0]), docstring.split("\n")[0]


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_has_a_page_with_a_picture_and_its_questions(name: str) -> None:
    (page,) = (page for page in PAGES if f"::: structmax.{name}\n" in read(page))
    assert page.parent.name == "structures"
    assert f"({page.name})" in read(page.parent / "index.md")
    assert page.with_suffix(".svg").exists()
    text = read(page)
    for needed in (f"]({page.stem}.svg)", "## Scores", "```python", f"<!-- questions {name} -->"):
        assert needed in text, needed


OMEGA = structmax.omega.LocalL2()
SEMIRING = structmax.recursion.Semiring(torch.maximum, torch.add, -torch.inf, 0.0)
# How to ask the questions of each row, given scores, a structure, a member of it, and a backend.
ASKED: dict[str, Callable[[Any, AbstractStructure, Any, str], Any]] = {
    "`argmax`": lambda s, y, z, b: structmax.argmax(s, y, backend=b),
    "`topk`": lambda s, y, z, b: structmax.topk(s, y, 2, backend=b),
    "`max_marginals`": lambda s, y, z, b: structmax.max_marginals(s, y, backend=b),
    "`minimum_bayes_risk`": lambda s, y, z, b: structmax.minimum_bayes_risk(s, y, backend=b),
    "`perturb_and_map`, `perturbed_value`": lambda s, y, z, b: (
        structmax.perturb_and_map(s, y, (2,), backend=b),
        structmax.perturbed_value(s, y, backend=b),
    ),
    "`log_partition`, `log_count`": lambda s, y, z, b: (
        structmax.log_partition(s, y, backend=b),
        structmax.log_count(s, y, backend=b),
    ),
    "`marginals`": lambda s, y, z, b: structmax.marginals(s, y, backend=b),
    "gradient of `marginals`": lambda s, y, z, b: _gradient_of_marginals(s, y, b),
    "`entropy`, `cross_entropy`, `kl_divergence`": lambda s, y, z, b: (
        structmax.entropy(s, y, backend=b),
        structmax.cross_entropy(s, s, y, backend=b),
        structmax.kl_divergence(s, s, y, backend=b),
    ),
    "`log_prob`": lambda s, y, z, b: structmax.log_prob(s, y, z, backend=b),
    "`log_prob(known=…)`": lambda s, y, z, b: structmax.log_prob(
        s, y, z, known=y.parts(tuple(t > 0 for t in y.tensors(z))), backend=b
    ),
    "`sample`": lambda s, y, z, b: structmax.sample(s, y, (2,), backend=b),
    "`sample_without_replacement`": lambda s, y, z, b: structmax.sample_without_replacement(s, y, 2, backend=b),
    "`sparsemap`": lambda s, y, z, b: structmax.sparsemap(s, y, backend=b),
    "`sparse_marginals`": lambda s, y, z, b: structmax.sparse_marginals(s, y, backend=b),
    "`topk_sparsemap`": lambda s, y, z, b: structmax.topk_sparsemap(s, y, 2, backend=b),
    "`smoothed`, `smoothed_marginals`, `smoothed_log_prob`, `smoothed_sample`, `smoothed_topk`": lambda s, y, z, b: (
        structmax.smoothed(s, y, OMEGA, backend=b),
        structmax.smoothed_marginals(s, y, OMEGA, backend=b),
        structmax.smoothed_log_prob(s, y, z, OMEGA, backend=b),
        structmax.smoothed_sample(s, y, OMEGA, (2,), backend=b),
        structmax.smoothed_topk(s, y, OMEGA, 2, backend=b),
    ),
    "`semiring_value`": lambda s, y, z, b: structmax.semiring_value(s, y, SEMIRING, backend=b),
    "`expect` with `estimators.Enumerate`": lambda s, y, z, b: structmax.expect(
        lambda parts, index: torch.zeros(len(index), dtype=torch.float64),
        s,
        y,
        structmax.estimators.Enumerate(),
        backend=b,
    ),
}


def _gradient_of_marginals(scores: Any, structure: AbstractStructure, backend: str) -> None:
    free = tuple(t.clone().requires_grad_() for t in structure.tensors(scores))
    found = structure.tensors(structmax.marginals(structure.parts(free), structure, backend=backend))
    torch.autograd.grad(sum(t.square().sum() for t in found), free, allow_unused=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_questions_of_the_tables_are_answered_or_refused_as_they_say(name: str) -> None:
    case = next(case for case in CASES.values() if type(case.structure).__name__ == name)
    structure, scores = case.structure, case.parts(case.scores())
    member = structmax.argmax(scores, structure)
    assert list(ASKED) == list(TABLES["QUESTIONS"])
    rows = [
        line.strip("| ").split(" | ")
        for line in TABLES["questions"](type(structure)).splitlines()[2:]
        if line[:1] == "|"
    ]
    assert [row[0] for row in rows] == list(ASKED)
    for question, on_cpu, _, in_torch in rows:
        for backend, said in (("auto", on_cpu), ("reference", in_torch)):
            try:
                ASKED[question](scores, structure, member, backend)
                answered = True
            except structmax.Refusal:
                answered = False
            assert answered == (said != "refused"), f"{question} with backend={backend!r} is said to be: {said}"
