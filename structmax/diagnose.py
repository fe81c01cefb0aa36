"""`diagnose`: checks the values of scores and explains what it finds."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractRelaxation, AbstractStructure, Scores
from structmax.questions.log_partition import log_partition
from structmax.questions.sparsemap import sparsemap
from structmax.questions.topk import topk
from structmax.structures.simplex import Simplex


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. True if nothing is wrong; it prints as a report."""

    facts: dict[str, str]
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.problems

    def __repr__(self) -> str:
        lines = [f"{name}: {fact}" for name, fact in self.facts.items()]
        lines += [f"problem: {problem}" for problem in self.problems] or ["no problem found"]
        return "\n".join(lines)


def diagnose(scores: Scores, structure: AbstractStructure | None = None) -> Diagnosis:
    """Checks the values of scores and says what is wrong: NaN, +inf, instances without a feasible structure.

    The questions themselves do not check values, since a GPU would have to wait. They answer NaN with NaN, and an
    instance in which nothing is feasible with −inf and zeros.

    Args:
        scores: the scores.
        structure: the structure they are for; Simplex() by default.

    Returns:
        A Diagnosis: true if nothing is wrong, with `facts`, `problems`, and it prints as a report.

    Examples:
        >>> import torch, structmax
        >>> print(structmax.diagnose(torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]])))
        scores: shape (2, 2), torch.float32, cpu
        range: 0 to 1, 2 forbidden parts (−inf)
        problem: 1 of 2 instances should have a feasible structure but has none, at first (1,). Try a looser mask.
    """
    structure = structure or Simplex()
    facts: dict[str, str] = {}
    problems: list[str] = []
    structure.check(scores)
    tensors = structure.tensors(scores)
    # padding may hold anything
    exists = structure.exists(tensors) or tuple(torch.ones_like(t, dtype=torch.bool) for t in tensors)
    for position, (tensor, there) in enumerate(zip(tensors, exists, strict=True)):
        name = structure.names[position]
        facts |= _look(name, tensor, there.expand(tensor.shape), problems)
    if not any("NaN" in problem for problem in problems):
        problems += _infeasible(_value(scores, structure))
    return Diagnosis(facts, problems)


def _value(scores: Scores, structure: AbstractStructure) -> Tensor:
    """−inf where nothing is feasible."""
    if isinstance(structure, AbstractRelaxation):
        return sparsemap(scores, structure).value
    if "log_partition" in structure.intractable:
        return topk(scores, structure, 1).values[0]
    return log_partition(scores, structure)


def _look(name: str, tensor: Tensor, exists: Tensor, problems: list[str]) -> dict[str, str]:
    check.floating(name, tensor)
    prefix = "" if name == "scores" else f"{name} "
    tensor = tensor.masked_fill(~exists, 0.0)
    finite = tensor[tensor.isfinite() & exists]
    extent = f"{finite.min():g} to {finite.max():g}" if finite.numel() else "no finite value"
    forbidden = int(tensor.isneginf().sum())
    try:
        check.no_nan(name, tensor)
    except ValueError as error:
        problems.append(str(error))
    infinite = tensor.isposinf()
    if bool(infinite.any()):
        at = tuple(infinite.nonzero()[0].tolist())
        problems.append(
            f"`{name}` should be finite or −inf, but holds {int(infinite.sum())} × +inf, the first at {at}. "
            "Try −inf for the parts that are ruled out instead."
        )
    if tensor.dtype == torch.float16 and finite.numel() and float(finite.abs().max()) > 3e4:
        problems.append(f"`{name}` should stay below 65504, the largest float16, but reaches {extent}. Try bfloat16.")
    return {
        name: f"shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}",
        f"{prefix}range": extent + (f", {forbidden} forbidden parts (−inf)" if forbidden else ""),
    }


def _infeasible(value: Tensor) -> list[str]:
    empty = value.isneginf()
    if not bool(empty.any()):
        return []
    at = tuple(empty.nonzero()[0].tolist()) if empty.dim() else ()
    return [
        f"{int(empty.sum())} of {empty.numel()} instances should have a feasible structure but has none, at first {at}."
        " Try a looser mask."
    ]
