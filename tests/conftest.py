"""Fills `torch.empty` with NaN, so that a cell no kernel wrote is seen; interprets Triton where there is no GPU."""

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read by Triton when a kernel is defined, so before any is.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items):
    """Laws come first, and those of one structure share a worker: each kernel is compiled once, for all others to load.

    Docstrings use float32, which is compiled apart from the laws' float64: they are thorough. So are tests of a
    reference beside those of a kernel, and, since Triton's interpreter is slow, all but one parameter of its tests.
    """
    interpreted = set()
    items.sort(key=lambda item: item.path.name != "test_laws.py")
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        case = given.get("case")
        room = case.structure.room if hasattr(case, "structure") else item.path.name
        item.add_marker(pytest.mark.xdist_group(room))
        beside_a_kernel = given.get("backend") == "reference" and "numba" in getattr(case, "backends", ["numba"])
        again = item.path.name.startswith("test_triton") and (item.path, item.originalname) in interpreted
        if isinstance(item, pytest.DoctestItem) or again or (beside_a_kernel and item.path.name != "test_laws.py"):
            item.add_marker(pytest.mark.thorough)
        elif item.path.name.startswith("test_triton") and item.get_closest_marker("thorough") is None:
            interpreted.add((item.path, item.originalname))


def poisoned(make):
    def empty(*args, **kwargs):
        tensor = make(*args, **kwargs)
        if tensor.device.type == "meta" or torch.compiler.is_compiling():
            return tensor
        if tensor.is_floating_point():
            return tensor.fill_(float("nan"))
        return tensor.fill_(85) if tensor.dtype in (torch.int8, torch.int32, torch.int64) else tensor

    return empty


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


@pytest.fixture(autouse=True, scope="session")
def compiled(tmp_path_factory):
    """What is interpreted here, the compiler for a GPU takes as well."""
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        yield
        return
    from launched import every_kernel_compiled

    with every_kernel_compiled(tmp_path_factory.mktemp("triton") / "launches"):
        yield
