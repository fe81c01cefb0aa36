"""Import costs little and compiles nothing; the first call is tamed; the cache works from a read-only install."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import structmax

# Seconds are bounded here: these tests run when no others do.
pytestmark = pytest.mark.alone

PACKAGE = Path(structmax.__file__).parent

# Seconds of this process, whatever else keeps the cores busy. SciPy is none of our requirements; where it is installed,
# Numba imports it, which costs 0.15 s more.
FIRST_CALL = """
import json, sys, time, torch
sys.modules["scipy"] = None
import structmax
from structmax import backends
torch.set_num_threads(1)
examples = backends._holder({room!r}, "reference").examples(torch.zeros(1, 4))
name, tensors, fields = next(example for example in examples if example[0] == {name!r})
start = time.process_time()
backends.call({room!r}, name, tensors, fields, backends._parts(name, tensors), "numba")
print(json.dumps([time.process_time() - start, structmax.__file__]))
"""
SIMPLEX, PROXIMAL = structmax.Simplex.room, "structmax.structures.proximal"
KERNELS = [
    (SIMPLEX, "entmax"),
    (SIMPLEX, "entmax_pullback"),
    (SIMPLEX, "entmax_value"),
    (SIMPLEX, "entmax_gradient"),
    (PROXIMAL, "prox_tv"),
    (PROXIMAL, "prox_tv_shifted"),
    (PROXIMAL, "prox_owl"),
    (PROXIMAL, "prox_oscar"),
    (PROXIMAL, "group_mean"),
    *(
        (structure.room, "log_partition_and_marginals")
        for structure in (
            structmax.LinearChain,
            structmax.SemiMarkov,
            structmax.MonotoneAlignment,
            structmax.Ctc,
            structmax.ProjectiveTree,
            structmax.BinaryTree,
            structmax.SpanningTree,
            structmax.Subset,
        )
    ),
    (structmax.SpanningTree.room, "argmax"),
    (structmax.Matching.room, "argmax"),
    (structmax.Matching.room, "project"),
]


def run(code, folder=None, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def first_call(room, name, folder=None, **environment):
    """Its seconds, and where the package lies."""
    return json.loads(run(FIRST_CALL.format(room=room, name=name), folder, **environment))


def test_import_is_light():
    code = (
        "import sys, time, torch; start = time.process_time(); import structmax; "
        "print(time.process_time() - start, 'numba' in sys.modules, 'triton' in sys.modules)"
    )
    seconds, numba, triton = run(code).split()
    assert float(seconds) <= 0.3
    assert (numba, triton) == ("False", "False")


@pytest.mark.parametrize(("room", "name"), KERNELS)
def test_a_first_call_is_tamed(room, name, tmp_path):
    assert first_call(room, name, NUMBA_CACHE_DIR=str(tmp_path))[0] <= 10.0
    # a second process finds it compiled
    assert first_call(room, name, NUMBA_CACHE_DIR=str(tmp_path))[0] <= 0.5


def test_warm_up_compiles_ahead(tmp_path):
    code = """
import time, torch, structmax
structmax.warm_up(structmax.Simplex(), torch.float32)
x = torch.randn(64, 9, requires_grad=True)
torch.set_num_threads(1)
start = time.process_time()
structmax.sparsemax(x).sum().backward()
structmax.entmax(x, 1.3).sum().backward()
structmax.entmax15_loss(x, torch.zeros(64, dtype=torch.int64)).backward()
structmax.log_partition(x, structmax.Simplex()).sum().backward()
structmax.fusedmax(x, 0.1).sum().backward()
structmax.oscarmax(x, 0.1).sum().backward()
print(time.process_time() - start)
"""
    assert float(run(code, NUMBA_CACHE_DIR=str(tmp_path))) < 0.5


@pytest.fixture
def read_only_install(tmp_path):
    """A copy of the package in a folder that cannot be written, as an administrator would install it."""
    home = tmp_path / "site"
    shutil.copytree(PACKAGE, home / "structmax", ignore=shutil.ignore_patterns("__pycache__"))
    folders = [home, *(path for path in home.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    yield home
    for folder in folders:
        folder.chmod(stat.S_IRWXU)


def test_the_cache_works_from_a_read_only_install(read_only_install, tmp_path):
    # A root user may write anywhere: a file in the place of the folder stops it, too.
    for folder in ("simplex", "proximal", "capped_simplex"):
        _block_cache(read_only_install / "structmax" / "structures" / folder)
    _block_cache(read_only_install / "structmax" / "numerics")
    cache = tmp_path / "user"
    cache.mkdir()
    places = {
        "PYTHONPATH": str(read_only_install),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
    }
    _, origin = first_call(SIMPLEX, "entmax", tmp_path, **places)
    assert origin.startswith(str(read_only_install))
    assert list(cache.rglob("*.nbi")), "nothing was cached in the user's folder"
    assert first_call(SIMPLEX, "entmax", tmp_path, **places)[0] <= 0.5


def _block_cache(folder):
    folder.chmod(stat.S_IRWXU)
    (folder / "__pycache__").write_text("not a folder")
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)


def test_warm_up_says_how_long_it_took():
    start = time.perf_counter()
    seconds = structmax.warm_up(structmax.Simplex(), torch.float64)
    assert 0 <= seconds <= time.perf_counter() - start + 0.01


def test_processes_that_compile_at_once_do_not_take_each_others_functions(tmp_path):
    from structmax.numerics.kernel_numba import _Index

    first, second = (_Index(str(tmp_path), "kernel", "stamp") for _ in range(2))
    first.save("float32", "compiled for float32")
    # the second process had read the index before the first one wrote to it
    (tmp_path / "kernel.nbi").unlink()
    second.save("float64", "compiled for float64")
    first.save("int64", "compiled for int64")
    assert second.load("float64") == "compiled for float64"
    assert first.load("int64") == "compiled for int64"
    assert first.load("float32") is None
    assert len(list(tmp_path.glob("*.nbc"))) == 2
    changed = _Index(str(tmp_path), "kernel", "another stamp")
    changed.save("float64", "compiled anew")
    assert changed.load("float64") == "compiled anew"
    assert len(list(tmp_path.glob("*.nbc"))) == 1
