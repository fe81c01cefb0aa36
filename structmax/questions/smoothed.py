"""Value and point of any Ω, and the random walk some Ω define on a dynamic program. See structmax/omega/local.py."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.backends import Refusal
from structmax.contract import AbstractStructure, Scores
from structmax.half import cast, widened
from structmax.omega.base import AbstractOmega, point_of, value_of
from structmax.outline import outline
from structmax.parts import Tensors, scaled
from structmax.problem import Problem
from structmax.questions.sample import draw


def checked(omega: object) -> Any:
    """The regulariser, if it is one."""
    check.instance("omega", omega, AbstractOmega, "a regulariser such as omega.LocalL2(1.0)")
    return omega


def _walk(omega: object) -> Any:
    """A regulariser that defines a random walk on a dynamic program."""
    if not getattr(checked(omega), "walks", False):
        raise Refusal(
            f"{omega!r} does not define a random walk over a dynamic program. Try omega.Entropy(), omega.LocalL2() or "
            "omega.LocalTsallis()."
        )
    return omega


def _numbers(omega: Any) -> dict[str, float]:
    return {"alpha": float(omega.alpha), "gamma": float(omega.temperature)}


def smoothed(scores: Scores, structure: AbstractStructure, omega: AbstractOmega, *, backend: str = "auto") -> Tensor:
    """The smoothed maximum: max over μ in conv(Y) of ⟨θ, μ⟩ − Ω(μ). Its gradient is `smoothed_marginals`.

    With Entropy() it is `log_partition`. With LocalL2(t) and LocalTsallis(alpha, t) every max of the structure's
    recursion is smoothed, so that the value belongs to the recursion, not to the set alone. It lies above the best
    score by at most the sum of ω(n) along a derivation, with ω(n) = t log n for Entropy(t) and t/2 (1 − 1/n) for
    LocalL2(t).

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y; for a local Ω, one with a recursion.
        omega: a regulariser of `structmax.omega`: `Zero()`, `Entropy(t)`, `SquaredNorm(t)`, `LocalL2(t)`,
            `LocalTsallis(alpha, t)`, or one of your own.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape. −inf for an instance in which nothing is feasible; with `Zero()`, which only asks for the best
        structure and gets zeros, 0.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [1.5, 0.0]])
        >>> structmax.smoothed(x, structmax.MonotoneAlignment(), structmax.omega.LocalL2(1.0))
        tensor(1.5625)
    """
    problem = Problem.of(scores, structure, backend)
    return problem.shaped(value_of(checked(omega), problem))


def smoothed_marginals(
    scores: Scores, structure: AbstractStructure, omega: AbstractOmega, *, backend: str = "auto"
) -> Any:
    """The point of conv(Y) where `smoothed` is attained: argmax over μ of ⟨θ, μ⟩ − Ω(μ), the gradient of the value.

    With LocalL2 and LocalTsallis it is the expected structure of a random walk through the recursion, exactly sparse.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y; for a local Ω, one with a recursion.
        omega: a regulariser of `structmax.omega`: `Zero()`, `Entropy(t)`, `SquaredNorm(t)`, `LocalL2(t)`,
            `LocalTsallis(alpha, t)`, or one of your own.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields and shapes of the scores, differentiable; zeros for an instance in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [1.5, 0.0]])
        >>> structmax.smoothed_marginals(x, structmax.MonotoneAlignment(), structmax.omega.LocalL2(1.0))
        tensor([[1.0000, 0.2500],
                [0.7500, 1.0000]])
    """
    problem = Problem.of(scores, structure, backend)
    return problem.named(point_of(checked(omega), problem))


def smoothed_sample(
    scores: Scores,
    structure: AbstractStructure,
    omega: AbstractOmega,
    sample_shape: Sequence[int] = (),
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Any:
    """Independent draws of the random walk that Ω induces on the structure's recursion. Not differentiable.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        omega: `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`, t the temperature.
        sample_shape: leading dimensions of independent draws.
        generator: random number generator; the same seed gives the same draws on every backend.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Parts, `sample_shape` followed by fields and shapes of the scores: 0 and 1, or counts of parts that may be used
        several times; zeros where nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
        >>> structmax.smoothed_sample(x, structmax.MonotoneAlignment(), structmax.omega.LocalL2(1.0), (5,)).mean(0)
        tensor([[1., 0.],
                [1., 1.]])
    """
    numbers, problem = _numbers(_walk(omega)), Problem.of(scores, structure, backend)
    return problem.stacked(draw(problem, "smoothed_sample", sample_shape, generator, **numbers), *sample_shape)


class WalkSlope(Function):
    """∇ Σ log q over the edges of the derivation of y, taken as a constant: it has no derivative of its own."""

    @staticmethod
    def forward(problem: Problem, numbers: tuple[tuple[str, float], ...], *scores_and_parts: Tensor) -> Tensors:
        first = scores_and_parts[0]
        ones = torch.ones(len(first), dtype=first.dtype, device=first.device)
        return tuple(problem.ask("smoothed_log_prob_pullback", *scores_and_parts, d_value=ones, **dict(numbers)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.arguments = len(inputs)
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.arguments


class WalkLogProb(Function):
    """Σ log q over the edges of the derivation of y."""

    @staticmethod
    def forward(problem: Problem, numbers: tuple[tuple[str, float], ...], *scores_and_parts: Tensor) -> Tensor:
        return problem.ask("smoothed_log_prob", *scores_and_parts, **dict(numbers))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.problem, ctx.numbers, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor) -> tuple[Any, ...]:
        # half precision is rounded once: a slope at an improbable edge may exceed its range before it is scaled
        slope = walk_slope_rule(ctx.problem, ctx.numbers, *widened(ctx.saved_tensors))
        return None, None, *cast(scaled(widened(d_value), slope), d_value.dtype), *(None,) * ctx.problem.count


walk_log_prob_rule, walk_slope_rule = rule(WalkLogProb, fold=True), rule(WalkSlope, fold=True)


def smoothed_log_prob(
    scores: Scores, structure: AbstractStructure, parts: Scores, omega: AbstractOmega, *, backend: str = "auto"
) -> Tensor:
    """The log-probability of given structures under the random walk that Ω induces, so that they can be ranked.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        parts: y, with fields and shapes of the scores; more leading dimensions (samples) broadcast.
        omega: `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`, t the temperature.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape of `parts`; −inf for a structure the walk never takes. Differentiable once in the scores.

    Examples:
        >>> import torch, structmax
        >>> x, paths = torch.tensor([[0.0, 1.0], [1.5, 0.0]]), structmax.MonotoneAlignment()
        >>> best, second, third = structmax.topk(x, paths, 3).parts
        >>> structmax.smoothed_log_prob(x, paths, second, structmax.omega.LocalL2()).exp()
        tensor(0.2500)
    """
    numbers, problem = _numbers(_walk(omega)), Problem.of(scores, structure, backend)
    problem, y = problem.with_samples(parts)
    return problem.shaped(walk_log_prob_rule(problem.blank, tuple(numbers.items()), *problem.scores, *y))


class MostProbable(NamedTuple):
    """`parts`, fields and shapes of the scores with k in front, and their `log_probs` (k, batch)."""

    parts: Any
    log_probs: Tensor

    def __repr__(self) -> str:
        return outline(self)


class BestWalks(Function):
    """Log-probabilities (B, k) and parts (B, k, …). The gradient is that of `WalkLogProb` at these parts."""

    @staticmethod
    def forward(problem: Problem, k: int, numbers: tuple[tuple[str, float], ...], *scores: Tensor) -> Tensors:
        return tuple(problem.ask("smoothed_topk", *scores, k=k, **dict(numbers)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.problem, ctx.k, ctx.numbers, *scores = inputs
        ctx.save_for_backward(*scores, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, d_log_probs: Tensor, *_: Tensor) -> tuple[Any, ...]:
        tensors, wide, count = widened(ctx.saved_tensors), widened(d_log_probs), ctx.problem.count
        # each instance as often as it has walks
        scores = (t.repeat_interleave(ctx.k, 0) for t in tensors[:count])
        parts = (t.flatten(0, 1) for t in tensors[count:])
        slope = walk_slope_rule(ctx.problem.in_a_row(ctx.k), ctx.numbers, *scores, *parts)
        terms = scaled(wide, tuple(t.unflatten(0, wide.shape) for t in slope))
        return None, None, None, *cast(tuple(t.sum(1) for t in terms), d_log_probs.dtype)


best_walks_rule = rule(BestWalks, fold=True)


def smoothed_topk(
    scores: Scores, structure: AbstractStructure, omega: AbstractOmega, k: int, *, backend: str = "auto"
) -> MostProbable:
    """The k most probable structures of the random walk that Ω induces, best first, all distinct.

    The walk takes an edge e of the recursion with probability q(e), given its node, and

        log p(y) = Σ log q(e) over the edges of the derivation of y,

    so these are the k best derivations of the same recursion whose edges score log q. With Entropy(t) they are those of
    `topk`. LocalL2 and LocalTsallis may rank in another order than the scores do, and leave most structures out.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        omega: `omega.Entropy(t)`, `omega.LocalL2(t)` or `omega.LocalTsallis(alpha, t)`, t the temperature.
        k: how many. Where the walk takes fewer, the rest has log-probability −inf and all-zero parts.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `parts` with k in front of the scores' shape, and `log_probs` (k, batch), differentiable once, as those of
        `smoothed_log_prob`.

    Examples:
        >>> import torch, structmax
        >>> x, paths = torch.tensor([[0.0, 1.0], [1.5, 0.0]]), structmax.MonotoneAlignment()
        >>> parts, log_probs = structmax.smoothed_topk(x, paths, structmax.omega.LocalL2(), 3)
        >>> log_probs.exp()
        tensor([0.7500, 0.2500, 0.0000])
        >>> parts[0]
        tensor([[1., 0.],
                [1., 1.]])

    Reference: Mensch & Blondel (2018), Differentiable dynamic programming for structured prediction and attention.
    """
    check.whole("k", k, 1)
    numbers, problem = _numbers(_walk(omega)), Problem.of(scores, structure, backend)
    log_probs, *parts = best_walks_rule(problem.blank, k, tuple(numbers.items()), *problem.scores)
    return MostProbable(problem.stacked(tuple(parts), k), problem.stacked_values(log_probs))
