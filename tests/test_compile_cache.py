"""Import is light and compiles nothing; what is compiled is kept, found again, and survives a damaged or full disk."""

import importlib.util
import io
import json
import subprocess
import sys

import pytest
import torch

import structmax
from structmax import backends
from structmax.contract import RETURNS, families
from structmax.numerics import compilation, kernel_numba
from structmax.warm_up import _examples

# processes of their own, and compilation
pytestmark = pytest.mark.thorough

COUNT = """
import json, sys, torch, structmax
from numba.core import event
from structmax import rooms
from structmax.calling import call
from structmax.warm_up import _parts

compiled = []


class Counter(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event):
        pass


event.register("numba:compile", Counter())
"""
FIRST_CALLS = (
    COUNT
    + """
for room, name in json.loads(sys.argv[1]):
    examples = rooms.holder(room, "reference").examples(torch.zeros(1, 4))
    name, tensors, fields = next(example for example in examples if example[0] == name)
    call(room, name, tensors, fields, _parts(name, tensors), "numba")
print(json.dumps(compiled))
"""
)
SIMPLEX, PROXIMAL = structmax.Simplex.room, "structmax.structures.proximal"
KERNELS = [
    (SIMPLEX, "entmax"),
    (SIMPLEX, "entmax_pullback"),
    (SIMPLEX, "entmax_value"),
    (SIMPLEX, "entmax_gradient"),
    (SIMPLEX, "entmax_total"),
    (SIMPLEX, "entmax_total_gradient"),
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
            structmax.CTC,
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


def run(code, *arguments):
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_import_brings_nothing_but_itself():
    code = """
import json, sys, torch, numpy
before = set(sys.modules)
import structmax
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)))
"""
    assert run(code) == ["structmax"]


def test_a_second_process_compiles_nothing():
    run(FIRST_CALLS, json.dumps(KERNELS))
    assert run(FIRST_CALLS, json.dumps(KERNELS)) == []


def test_warm_up_compiles_ahead():
    code = (
        COUNT
        + """
structmax.warm_up(structmax.Simplex(), torch.float32)
compiled.clear()
x = torch.randn(64, 9, requires_grad=True)
structmax.sparsemax(x).sum().backward()
structmax.entmax(x, 1.3).sum().backward()
structmax.entmax15_loss(x, torch.zeros(64, dtype=torch.int64)).backward()
structmax.log_partition(x, structmax.Simplex()).sum().backward()
structmax.fusedmax(x, 0.1).sum().backward()
structmax.oscarmax(x, 0.1).sum().backward()
print(json.dumps(compiled))
"""
    )
    assert run(code) == []


PUBLIC = [
    found
    for found in vars(structmax).values()
    if isinstance(found, type)
    and issubclass(found, structmax.AbstractStructure)
    and hasattr(found, "room")
    # whose kernels depend on its factors
    and found is not structmax.FactorGraph
]


@pytest.mark.parametrize("structure", PUBLIC)
def test_warm_up_reaches_every_question_that_has_a_kernel(structure):
    examples = _examples(structure.room, torch.zeros(2, 4))
    reached = {name for name, _, _ in examples}
    # made of others
    reached |= {"marginals"} if "log_partition_and_marginals" in reached else set()
    # compiled for each semiring
    names = set(RETURNS) - set(families("semiring"))
    answered = {name for name in names if backends.explain(structure.room, name, "cpu")["numba"] is None}
    assert answered <= reached


# ---------------------------------------------------------------- the files, with a kernel that is compiled in no time

SOURCE = """
from structmax.numerics.kernel_numba import kernel


@kernel()
def double(start, stop, numbers):
    for i in range(start, stop):
        numbers[i] = 2 * numbers[i]
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Calls a small kernel as a new process would; returns whether it was found on disk."""
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    (tmp_path / "tiny.py").write_text(SOURCE)

    def call():
        monkeypatch.setattr(kernel_numba, "_warnings", [])
        specification = importlib.util.spec_from_file_location("tiny", tmp_path / "tiny.py")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        numbers = torch.arange(3.0)
        kernel_numba.over_rows(module.double, 3, 3, numbers.numpy())
        assert numbers.tolist() == [0.0, 2.0, 4.0]
        return bool(module.double.stats.cache_hits)

    return call


def kept(folder):
    return sorted(folder.rglob("*.nbc"))


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(bytes(range(256)) * 40)


def turn_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_what_is_compiled_is_found_again(tiny, tmp_path):
    assert not tiny()
    assert tiny()
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("damage", [cut, empty, garbage, turn_a_bit])
def test_a_damaged_file_is_compiled_anew(damage, tiny, tmp_path):
    tiny()
    (file,) = kept(tmp_path)
    damage(file)
    with pytest.warns(RuntimeWarning, match=r"cannot be read from .*__pycache__ and are compiled again: .* is damaged"):
        assert not tiny()
    # and is whole again
    assert tiny()


def test_a_file_that_cannot_be_read_or_written(tiny, tmp_path):
    tiny()
    (file,) = kept(tmp_path)
    file.unlink()
    (file / "in its place").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="cannot be read from") as warned:
        assert not tiny()
    assert len(warned) == 1
    assert len(kernel_numba._warnings) == 2
    assert kept(tmp_path) == [file]


def test_a_full_disk(tiny, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.warns(RuntimeWarning, match="cannot be kept in .*, and each process compiles its own: .*Try NUMBA"):
            assert not tiny()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.rglob("*.tmp.*"))
    assert not tiny()
    assert tiny()


def block(folder):
    """A file in the place of the folder: a root user may write into any folder."""
    folder.write_text("not a folder")


def test_the_cache_of_a_read_only_install_is_in_the_users_folder(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("numba.misc.appdirs.AppDirs.user_cache_dir", str(tmp_path / "user"))
    block(tmp_path / "__pycache__")
    assert not tiny()
    assert tiny()
    assert len(kept(tmp_path / "user")) == 1


def test_where_no_folder_can_be_written(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("numba.misc.appdirs.AppDirs.user_cache_dir", str(tmp_path / "user"))
    block(tmp_path / "__pycache__")
    block(tmp_path / "user")
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="Neither the package's folder nor .* Try NUMBA_CACHE_DIR"):
            assert not tiny()


def test_what_an_older_source_or_another_version_left_behind(tiny, tmp_path, monkeypatch):
    tiny()
    monkeypatch.setattr("numba.__version__", "another")
    assert not tiny()
    assert len(kept(tmp_path)) == 2
    monkeypatch.undo()
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    assert tiny()
    kernel_numba._digest.cache_clear()
    (tmp_path / "beside.py").write_text("# it may be called")
    assert not tiny()
    assert len(kept(tmp_path)) == 1


def test_processes_that_compile_at_once_do_not_take_each_others_functions(tmp_path):
    first, second = (kernel_numba._Files(str(tmp_path), "kernel", "stamp") for _ in range(2))
    first.save("float32", "compiled for float32")
    second.save("float64", "compiled for float64")
    for files in (first, second):
        assert files.load("float32") == "compiled for float32"
        assert files.load("float64") == "compiled for float64"
        assert files.load("int64") is None


# ---------------------------------------------------------------- what people see of it


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_compilation_is_said_once_on_a_terminal(tiny, tmp_path, monkeypatch):
    structmax.sparsemax(torch.zeros(3))
    monkeypatch.setattr(compilation, "_said", set())
    monkeypatch.setattr(sys, "stderr", Terminal())
    tiny()
    said = f"structmax: compiling Simplex for float32, once; it is kept in {tmp_path / '__pycache__'}\n"
    assert sys.stderr.getvalue() == said
    # from the disk
    tiny()
    (file,) = kept(tmp_path)
    file.unlink()
    # or compiled again
    tiny()
    assert sys.stderr.getvalue() == said


def test_compilation_is_silent_where_nobody_watches(tiny, monkeypatch, capfd):
    monkeypatch.setattr(compilation, "_said", set())
    tiny()
    assert capfd.readouterr().err == ""
