"""The way of one call through the package is short, and its scores are checked once."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import structmax

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = ("marginals", "sparsemap", "surrogate", "expect")


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.path")


def test_marginals_pass_through_few_files(path: ModuleType) -> None:
    found = path.warm(path.questions(structmax.LinearChain())["marginals"])
    assert found.calls[0] == ("questions/log_partition.py", "marginals")
    assert len(found.below) <= 5, found.below
    assert found.switches <= 14, found.calls


@pytest.mark.parametrize("name", QUESTIONS)
def test_scores_are_checked_once(path: ModuleType, name: str) -> None:
    structure = structmax.LinearChain()
    ask = path.questions(structure)[name]
    assert path.checks(structure, ask) == 1
    with path.counted(structure) as later:
        ask()
    assert not later
