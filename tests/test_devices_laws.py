"""Every structure is held to every law by its Triton kernels on a GPU: scores go there and answers come back."""

from unittest import mock

import pytest
import torch
from cases import CASES

import structmax
from structmax import backends, rooms
from structmax.recursion import Hyperedges
from structmax.testing import applicable

# What Triton does not take; with `backend="auto"` the next one answers.
BEYOND = ("`k` should", "`alpha` should")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def moved(what, device):
    if isinstance(what, torch.Tensor):
        return what.to(device)
    if isinstance(what, tuple | list):
        return tuple(moved(each, device) for each in what)
    return {key: moved(each, device) for key, each in what.items()} if isinstance(what, dict) else what


def there_and_back(plan):
    """The plan of a Triton kernel, for scores on the CPU."""
    if plan.backend == "triton":
        function = plan.function

        def on_the_gpu(*tensors, **fields):
            # tables of edges stay where they are
            edges = {name: fields.pop(name) for name in Hyperedges._fields if name in fields}
            return moved(function(*moved(tensors, "cuda"), **moved(fields, "cuda"), **edges), "cpu")

        plan.function = on_the_gpu
    return plan


def accepted():
    """As under Triton's interpreter, `backend="triton"` takes scores on the CPU."""
    return mock.patch.object(backends, "_triton_interpreted", return_value=True)


with accepted():
    PAIRS = [
        pytest.param(case, law, id=f"{name}-{law.__name__}")
        for name, case in CASES.items()
        for law, backend in (applicable(case) if torch.cuda.is_available() else ())
        if backend == "triton"
    ]


def forget(case):
    """What is known of the functions of a structure is found again."""
    case.structure.remembered.clear()
    rooms._modules.clear()


@pytest.mark.parametrize(("case", "law"), PAIRS)
def test_law(case, law, monkeypatch):
    plan, after = backends._plan, backends._after

    def or_reference(first, device, reason):
        try:
            return after(first, device, reason)
        except structmax.Refusal:
            if not reason.startswith(BEYOND):
                raise
            return plan(first.room, first.name, device, first.parts, first.asked, "reference", 0)

    monkeypatch.setattr(backends, "_plan", lambda *args: there_and_back(plan(*args)))
    monkeypatch.setattr(backends, "_after", or_reference)
    forget(case)
    with accepted():
        law(case, "triton")
    forget(case)
