"""The value of a recursion in a semiring of the user's, and its gradient by the semiring's pullbacks."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.contract import AbstractStructure, Scores
from structmax.parts import Tensors
from structmax.problem import Problem
from structmax.recursion import Semiring

FIRST_ONLY = (
    "`semiring_value` has first derivatives only, in reverse mode. Try `log_partition` or `smoothed`, which have all."
)


class Value(Function):
    @staticmethod
    def forward(semiring: Semiring, problem: Problem, *scores: Tensor) -> Tensor:
        return problem.ask("semiring_value", *scores, semiring=semiring.number, width=semiring.width)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.semiring, ctx.problem, *scores = inputs
        ctx.save_for_backward(*scores)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor) -> tuple[Any, ...]:
        return None, None, *pullback_rule(ctx.semiring, ctx.problem, d_value, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FIRST_ONLY)


class Pullback(Function):
    @staticmethod
    def forward(semiring: Semiring, problem: Problem, d_value: Tensor, *scores: Tensor) -> Tensors:
        extra = {"d_value": d_value, "semiring": semiring.number, "width": semiring.width}
        # each (B, K, …)
        out = problem.ask("semiring_pullback", *scores, **extra)
        return tuple(d[:, k].contiguous() for k in range(semiring.width) for d in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError(FIRST_ONLY)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(FIRST_ONLY)


value_rule, pullback_rule = rule(Value, fold=True), rule(Pullback, fold=True)


def semiring_value(scores: Any, structure: AbstractStructure, semiring: Semiring, *, backend: str = "auto") -> Any:
    """The value of a structure's recursion in a semiring: ⊕ over y of ⊗ over the parts of y of their scores.

    The scores are elements of the semiring: with ⊕ = + and ⊗ = × they are weights, not logarithms. `zero` forbids a
    part. Where the elements are tuples of K numbers, there are scores for each of the K.

    Args:
        scores: shaped as the structure says, with any leading batch dimensions; for elements that are tuples, a tuple
            of K such scores. All part tensors are given, also those that may be left out elsewhere.
        structure: the set Y; one with a recursion.
        semiring: ⊕, ⊗ and their pullbacks.
        backend: "auto", "numba" or "reference". For scores on a GPU, Numba computes on the CPU.

    Returns:
        The batch shape, differentiable once; for elements that are tuples, a tuple of K tensors. `zero` for an instance
        in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> counting = structmax.recursion.Semiring(torch.add, torch.mul, zero=0.0, one=1.0)
        >>> structmax.semiring_value(torch.ones(5, 5), structmax.BinaryTree(), counting)
        tensor(14.)

    Reference: Goodman (1999), Semiring parsing; Li & Eisner (2009), First- and second-order expectation semirings.
    """
    check.instance("semiring", semiring, Semiring, "a structmax.recursion.Semiring")
    problems = [_problem(each, structure, backend) for each in _each(scores, semiring)]
    batch = torch.Size(torch.broadcast_shapes(*(problem.batch for problem in problems)))
    problems = [problem.broadcast(batch) for problem in problems]
    first, shapes = problems[0], [[tuple(t.shape) for t in problem.scores] for problem in problems]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"`scores` should have one shape for all numbers of an element, but have {shapes}.")
    value = value_rule(semiring, first.blank, *(tensor for problem in problems for tensor in problem.scores))
    return semiring.element(first.shaped(value).unbind(-1))


def _each(scores: Any, semiring: Semiring) -> tuple[Scores, ...]:
    """The scores of each number of an element."""
    if not semiring.is_tuple:
        return (scores,)
    if not isinstance(scores, tuple | list) or len(scores) != semiring.width:
        found = f"has {len(scores)}" if isinstance(scores, tuple | list) else f"is {check.called(scores)}"
        raise ValueError(
            f"`scores` should be a tuple of {semiring.width}, scores for each number of an element of {semiring!r}, "
            f"but {found}."
        )
    return tuple(scores)


def _problem(scores: Scores, structure: AbstractStructure, backend: str) -> Problem:
    """The problem of scores that are taken as they are: what a structure adds to them would not be ⊗."""
    problem = Problem.of(scores, structure, backend, wide=True)
    given = 1 if isinstance(scores, Tensor) else sum(tensor is not None for tensor in scores)
    # a part tensor without entries stands for one that was left out, and adds nothing
    needed = sum(tensor.shape[1:].numel() > 0 for tensor in problem.scores)
    if not needed <= given <= problem.count:
        raise ValueError(
            f"`scores` of {type(structure).__name__} should be its {problem.count} part tensors, but are {given}: a "
            "semiring knows neither the sums nor the zeros that stand for optional ones. Try multiplying `start` and "
            "`end` of a chain into `unary`, and `one` for all `spans` of a grammar."
        )
    return problem
