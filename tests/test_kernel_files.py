"""What stands in a kernel's folder: its functions are found by name, and no file may stand in their way."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import structmax
from structmax.contract import RETURNS

ROOT = Path(structmax.__file__).parent
FOLDERS = sorted(init.parent for init in ROOT.rglob("kernel_*/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_no_file_of_a_kernel_is_called_like_a_function(folder):
    if folder.name == "kernel_triton":
        pytest.importorskip("triton")
    package = importlib.import_module(".".join((structmax.__name__, *folder.relative_to(ROOT).parts)))
    for _, name, _ in pkgutil.iter_modules(package.__path__):
        assert name not in RETURNS, f"{folder.name}/{name}.py would hide the function `{name}`"
        importlib.import_module(f"{package.__name__}.{name}")
        assert isinstance(getattr(package, name), ModuleType), f"`{name}` would hide {folder.name}/{name}.py"
