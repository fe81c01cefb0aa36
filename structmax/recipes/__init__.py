"""Recipes: whole experiments, each a file read top to bottom, with a `Config` and a `Recipe`.

Those of this folder are found by their names, any other by the path of its file.
"""

import functools
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from structmax.training import DataError, RunError, Settings, Task
from structmax.training.errors import nearest


@dataclass(frozen=True)
class Recipe:
    """A file: the recipe's name, where it is found, its description, its settings and its task."""

    name: str
    source: str
    about: str
    config: type[Settings]
    task: type[Task[Any]]


def names() -> list[str]:
    """Of the recipes that come with the package.

    Examples:
        >>> "clusters" in names()
        True
    """
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.ispkg)


def find(source: str) -> Recipe:
    """The recipe of that name, or in that file: `./mine.py`.

    Raises:
        RunError: there is none.
        DataError: its file does not exist, cannot be imported, or has no `Config` and `Recipe`.
    """
    if is_file(source):
        return _found(Path(source).stem.replace(".", "_"), source, Path(source))
    if source not in names():
        own = f" Did you mean ./{source}.py?" if Path(f"{source}.py").exists() else nearest(source, names())
        raise RunError(
            f"A recipe should be one of {', '.join(names())}, or a file such as ./mine.py, but is {source!r}.{own}"
        )
    spec = importlib.util.find_spec(f"{__name__}.{source}")
    assert spec is not None
    assert spec.origin is not None
    return _found(source, source, Path(spec.origin))


def is_file(source: str) -> bool:
    """Whether that is the path of a recipe's file, not a name.

    Examples:
        >>> is_file("mine.py"), is_file("listops")
        (True, False)
    """
    return Path(source).suffix == ".py" or len(Path(source).parts) > 1


def _found(name: str, source: str, path: Path) -> Recipe:
    if not path.is_file():
        raise DataError(path, None, "should be the file of a recipe, but does not exist.")
    try:
        module = _loaded(name, path.resolve()) if is_file(source) else importlib.import_module(f"{__name__}.{name}")
    # a user's file can fail in any way, and may end the program
    except (Exception, SystemExit) as error:
        reason = f"should be the file of a recipe, but cannot be imported: {type(error).__name__}: {error}."
        raise DataError(path, _line(error, path), f"{reason} Try python {path} for more.") from error
    for name_of_class, base in (("Config", Settings), ("Recipe", Task)):
        kind = getattr(module, name_of_class, None)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            reason = (
                f"should have a class {name_of_class}({base.__name__}), but has none. The page Recipes has an example."
            )
            raise DataError(path, None, reason)
    return Recipe(name, source, (module.__doc__ or "").strip(), module.Config, module.Recipe)


@functools.cache
def _loaded(name: str, path: Path) -> ModuleType:
    """A file as a module. It can import modules from its own folder, as a script can."""
    spec = importlib.util.spec_from_file_location(f"{path.parent}.{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError("its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    # types of fields are looked up there; the folder in the name keeps it apart from all others
    sys.modules[spec.name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module


def _line(error: BaseException, path: Path) -> int | None:
    """Where in the file it failed."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    here = [line for file, line in places if Path(file).resolve() == path.resolve()]
    return here[-1] if here else None
