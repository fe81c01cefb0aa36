"""What people install: a wheel and an sdist are built, and the wheel works where nothing else of the project is."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numba
import numpy
import pytest
import torch

# a build, and a first call that compiles
pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
LARGEST = 1_500_000
# How the names of the files end that the package needs.
SHIPPED = (".py", "py.typed", ".html", ".css", ".js", "README.md")
# What the extras bring: neither `import structmax` nor the README's first block may need it.
EXTRAS = ("typer", "rich", "matplotlib", "conllu", "seqeval", "sacrebleu", "sklearn", "scipy", "triton")


def run(*command: object, at: Path) -> str:
    """What the command prints, in a folder and with variables that know nothing of this copy of the project."""
    knows = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in knows}
    done = subprocess.run([str(word) for word in command], cwd=at, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} should end well, but says:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    for needed in ("build", "setuptools"):
        assert find_spec(needed), f"{needed} should be installed, to build without the network: pip install {needed}"
    copy = tmp_path_factory.mktemp("copy") / "project"
    # Without what earlier builds and runs left behind: setuptools would pack it.
    left = shutil.ignore_patterns(".*", "build", "dist", "site", "runs", "demo", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=left)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy, at=copy)
    return copy / "dist"


def files(suffixes: tuple[str, ...]) -> set[str]:
    """Of the package, as they stand in the repository."""
    found = (path for path in (ROOT / "structmax").rglob("*") if path.name.endswith(suffixes))
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl"), "the wheel should be pure Python"
    assert wheel.stat().st_size < LARGEST
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if "dist-info/" not in name} == files(SHIPPED)
    assert {"structmax/py.typed", "structmax/plots/page.css", "structmax/plots/page.js"} < names
    assert "structmax/structures/simplex/README.md" in names


def test_the_sdist_has_the_package_and_what_builds_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    assert sdist.stat().st_size < LARGEST
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} < names
    assert files(SHIPPED) < names
    assert not [name for name in names if name.startswith("docs/")]


@pytest.fixture(scope="module")
def clean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which finds torch, numpy and numba in the environment of the tests.

    A folder that a .pth file names is searched after the environment's own, and .pth files inside it are not read: an
    editable install of this copy, which is such a file, stays unknown.
    """
    place = tmp_path_factory.mktemp("clean")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    python = place / "venv" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, at=place)
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    folders = {str(Path(str(module.__file__)).parents[1]) for module in (torch, numpy, numba)}
    (packages / "dependencies.pth").write_text("\n".join(sorted(folders)) + "\n")
    return place


def test_the_first_block_of_the_readme_runs_from_the_wheel(clean: Path) -> None:
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert block
    without = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
    script = clean / "first.py"
    script.write_text(f"{without}{block[1]}\nprint(structmax.__file__)\n", encoding="utf-8")
    printed = run(clean / "venv" / "bin" / "python", "-I", script, at=clean)
    imported = Path(printed.splitlines()[-1])
    assert imported.is_relative_to(clean / "venv"), f"the wheel should be imported, but {imported} was"


def test_the_command_runs_from_the_wheel(clean: Path) -> None:
    pytest.importorskip("typer", reason="the command line needs typer and rich: pip install structmax[recipes]")
    printed = run(clean / "venv" / "bin" / "structmax", "--help", at=clean)
    assert "compare" in printed


def test_the_citation_names_the_version(built: Path) -> None:
    """As the wheel does."""
    (wheel,) = built.glob("*.whl")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {wheel.name.split('-')[1]}\n" in citation
    assert citation.startswith("cff-version: 1.2.0\n")
