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

PACKAGE = Path(structmax.__file__).parent

TIMED = """
import json, time, torch
start = time.perf_counter()
import structmax
imported = time.perf_counter() - start
x = torch.randn(8, 9, dtype=getattr(torch, {dtype!r}), requires_grad=True)
start = time.perf_counter()
{call}
print(json.dumps([imported, time.perf_counter() - start, structmax.__file__]))
"""
CALLS = {
    "entmax": "structmax.sparsemax(x)",
    "entmax_pullback": "structmax.sparsemax(x).sum().backward()",
    "entmax of any alpha": "structmax.entmax(x, 1.3).sum().backward()",
    "entmax_loss": "structmax.entmax15_loss(x, torch.zeros(8, dtype=torch.int64)).backward()",
    "log_partition": "structmax.log_partition(x, structmax.Simplex()).sum().backward()",
    "fusedmax": "structmax.fusedmax(x, 0.1).sum().backward()",
    "oscarmax": "structmax.oscarmax(x, 0.1).sum().backward()",
}


def run(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def timed(call, dtype="float32", **environment):
    return json.loads(run(TIMED.format(call=call, dtype=dtype), **environment))


def test_import_is_light():
    code = (
        "import sys, time, torch; start = time.perf_counter(); import structmax; "
        "print(time.perf_counter() - start, 'numba' in sys.modules, 'triton' in sys.modules)"
    )
    seconds, numba, triton = run(code).split()
    assert float(seconds) <= 0.3
    assert (numba, triton) == ("False", "False")


@pytest.mark.parametrize("name", CALLS)
def test_a_first_call_is_tamed(name, tmp_path):
    cold = timed(CALLS[name], NUMBA_CACHE_DIR=str(tmp_path))[1]
    assert cold <= 10.0
    # the best of three: another process may hold the cores
    warm = min(timed(CALLS[name], NUMBA_CACHE_DIR=str(tmp_path))[1] for _ in range(3))
    assert warm <= 0.5


def test_warm_up_compiles_ahead(tmp_path):
    code = """
import time, torch, structmax
structmax.warm_up(structmax.Simplex(), torch.float32)
x = torch.randn(8, 9, requires_grad=True)
start = time.perf_counter()
structmax.sparsemax(x).sum().backward()
structmax.entmax(x, 1.3).sum().backward()
structmax.entmax15_loss(x, torch.zeros(8, dtype=torch.int64)).backward()
structmax.log_partition(x, structmax.Simplex()).sum().backward()
structmax.fusedmax(x, 0.1).sum().backward()
structmax.oscarmax(x, 0.1).sum().backward()
print(time.perf_counter() - start)
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
    first = timed("structmax.sparsemax(x)", **places)
    assert first[2].startswith(str(read_only_install))
    assert list(cache.rglob("*.nbi")), "nothing was cached in the user's folder"
    assert min(timed("structmax.sparsemax(x)", **places)[1] for _ in range(3)) <= 0.5


def _block_cache(folder):
    folder.chmod(stat.S_IRWXU)
    (folder / "__pycache__").write_text("not a folder")
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)


def test_warm_up_says_how_long_it_took():
    start = time.perf_counter()
    seconds = structmax.warm_up(structmax.Simplex(), torch.float64)
    assert 0 <= seconds <= time.perf_counter() - start + 0.01
