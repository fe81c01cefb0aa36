"""Recipes: whole experiments, each a file read top to bottom, with a `Config` and a `Recipe`. Found by their names."""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from structmax.training import Settings, Task


@dataclass(frozen=True)
class Recipe:
    """A file of this folder: its name, what it says of itself, its settings and its task."""

    name: str
    about: str
    config: type[Settings]
    task: type[Task[Any]]


def names() -> list[str]:
    """Of all recipes.

    Examples:
        >>> "clusters" in names()
        True
    """
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.ispkg)


def find(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in names():
        raise ValueError(f"A recipe should be one of {', '.join(names())}, but is {name!r}.")
    module = importlib.import_module(f"{__name__}.{name}")
    return Recipe(name, (module.__doc__ or "").strip(), module.Config, module.Recipe)
