"""Laws of the fields that have one entry for each instance, such as lengths: their limits, and vmap over them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from structmax.contract import AbstractStructure
from structmax.parts import flat
from structmax.problem import Problem
from structmax.questions.argmax import argmax
from structmax.testing.case import Case, same


class Watched(TorchDispatchMode):
    """A mode that changes nothing. Under it, kernels are called through the operator that torch.compile sees."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _best(scores: tuple[Tensor, ...], structure: AbstractStructure, backend: str) -> Tensor:
    """The parts of the best structures, in one vector for each instance."""
    best = structure.tensors(argmax(structure.parts(scores), structure, backend=backend))
    return flat(best, best[0].dim() - structure.event_dim)


def law_limits(case: Case, backend: str) -> None:
    """Fields outside their limits raise an error with their name: directly, in a transform, and in compiled code."""
    structure = case.structure
    event = case.scores()[0].shape[-structure.event_dim :]
    for name, (size, _) in structure.limits(event, vars(structure)).items():
        for wrong in (size + 1, -1):
            _out_of_limits(case, backend, name, wrong)


def _out_of_limits(case: Case, backend: str, name: str, wrong: int) -> None:
    structure, scores = case.structure, case.scores()
    batch = scores[0].shape[: scores[0].dim() - structure.event_dim]

    def outside(values: Tensor) -> AbstractStructure:
        own = structure.per_instance
        return structure.with_values([values if each == name else getattr(structure, each) for each in own])

    values = torch.full(batch, wrong)
    if bool((outside(values).fields(scores)[name] != wrong).any()):
        # another field is given in its place
        return
    with Watched():
        problem = Problem.of(structure.parts(scores), structure, backend)
        problem.fields = {**problem.fields, name: values.reshape(-1)}
        _refused(name, wrong, lambda: problem.ask("argmax", *problem.scores))
    _refused(name, wrong, lambda: _best(scores, outside(values), backend))
    transformed = torch.func.vmap(lambda each: _best(scores, outside(each), backend))
    _refused(name, wrong, lambda: transformed(torch.stack([values] * 2)))


def _refused(name: str, wrong: int, ask: Callable[[], object]) -> None:
    said = "nothing"
    try:
        ask()
    except ValueError as error:
        said = str(error)
    assert f"`{name}` should be between" in said, f"{name} = {wrong} should be named in an error, but it says {said}"


def law_vmap(case: Case, backend: str) -> None:
    """Instances one by one under vmap, each with its own fields, are those of the batch."""
    structure, scores = case.structure, case.scores()
    batch = scores[0].shape[: scores[0].dim() - structure.event_dim]
    given = [name for name in structure.per_instance if getattr(structure, name) is not None]
    values = tuple(getattr(structure, name) for name in given)
    rests = [value.shape[structure.field_batch_dim(name) :] for value, name in zip(values, given, strict=True)]
    wide = tuple(value.expand(*batch, *rest) for value, rest in zip(values, rests, strict=True))

    def one(tensors: tuple[Tensor, ...], fields: tuple[Tensor, ...]) -> Tensor:
        own = dict(zip(given, fields, strict=True))
        alone = structure.with_values([own.get(name) for name in structure.per_instance])
        return _best(tensors, alone, backend)

    each = one
    for _ in batch:
        each = torch.func.vmap(each)
    same("argmax under vmap", each(scores, wide), one(scores, values), 0.0)
