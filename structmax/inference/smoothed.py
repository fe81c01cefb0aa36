"""Differentiable dynamic programming: a recursion whose every max is replaced by a smoothed one.

    max_Ω(s) = max over p in the simplex of ⟨p, s⟩ − Ω(p)          q = ∇max_Ω(s)

DP_Ω(θ) is the value at the goal, and q says with which probability a random walk from the goal takes each edge. Then
∇DP_Ω(θ) is the expected structure of that walk: exactly sparse for L2 and Tsallis, the marginals for Entropy(1), whose
walk is p(y) ∝ exp⟨θ, y⟩ and whose value is log Z. The value is convex in θ, so its rules are those of `Potential`.

All Ω here are 0 at a certain choice, so DP_Ω is at least the best score DP, and

    0 ≤ DP_Ω(θ) − DP(θ) ≤ max over derivations of Σ over their nodes v of ω(edges of v),    ω(n) = max over p of −Ω(p):

γ log n for Entropy(γ), γ/2 (1 − 1/n) for L2(γ), γ (1 − n^(1−α)) / (α(α−1)) for Tsallis(α, γ).

Reference: Mensch & Blondel (2018), Differentiable dynamic programming for structured prediction and attention.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed
from structmax.inference.log_partition import LOG_PARTITION
from structmax.inference.potential import Potential, point, value
from structmax.inference.question import Asked, existing, front, scaled
from structmax.inference.rule import rule
from structmax.inference.sample import draw


class Regulariser:
    """Ω = γ Ω_α of the Tsallis family Ω_α(p) = Σ (p^α − p) / (α(α−1)), 0 at every vertex of the simplex."""

    alpha: float
    gamma: float

    def __post_init__(self) -> None:
        check.positive("gamma", self.gamma, hint=" As gamma goes to 0 the smoothed maximum becomes the maximum.")
        check.positive("alpha", self.alpha, above=math.nextafter(1, 0), hint=" 1 is Entropy, 2 is L2.")

    @property
    def numbers(self) -> tuple[tuple[str, float], ...]:
        return (("alpha", float(self.alpha)), ("gamma", float(self.gamma)))

    def potential(self, sign: int = 1) -> Potential:
        """DP_Ω of scores or, with sign −1, the smoothed minimum −DP_Ω(−c) of costs.

        That of Entropy(γ) is γ log Z(θ/γ), for which rooms have their fastest kernels.
        """
        temperature = None if sign == 1 else -1.0
        if self.alpha == 1:
            same = sign == 1 and self.gamma == 1
            return LOG_PARTITION if same else replace(LOG_PARTITION, temperature=sign * float(self.gamma))
        names = "smoothed", "smoothed_and_marginals", "smoothed_marginals_jvp"
        return Potential(*names, self.numbers, temperature)


@dataclass(frozen=True)
class Entropy(Regulariser):
    """γ Σ p log p: max_Ω is γ logsumexp(·/γ), and the walk is p(y) ∝ exp(⟨θ, y⟩/γ)."""

    gamma: float = 1.0
    alpha: ClassVar[float] = 1.0  # type: ignore[misc]


@dataclass(frozen=True)
class L2(Regulariser):
    """γ/2 (‖p‖² − 1): the walk takes each edge with its sparsemax probability, many with probability 0."""

    gamma: float = 1.0
    alpha: ClassVar[float] = 2.0  # type: ignore[misc]


@dataclass(frozen=True)
class Tsallis(Regulariser):
    """γ Σ (p^α − p) / (α(α−1)): the walk takes each edge with its entmax probability. α = 1 is Entropy, 2 is L2."""

    alpha: float = 1.5
    gamma: float = 1.0


def _checked(scores: Scores, structure: AbstractStructure, omega: Regulariser, backend: str) -> Any:
    if not isinstance(omega, Regulariser):
        kind = omega.__name__ + " itself" if isinstance(omega, type) else repr(omega)
        raise TypeError(f"`omega` should be a regulariser such as L2(1.0), but is {kind}.")
    return front(scores, structure, backend)


@summed
def smoothed(scores: Scores, structure: AbstractStructure, omega: Regulariser, *, backend: str = "auto") -> Tensor:
    """The value DP_Ω(θ) of the structure's recursion with every max smoothed by Ω.

    Its gradient is `smoothed_marginals`. It lies above the best score by at most the sum of ω(n) along a derivation,
    with ω(n) = γ log n for Entropy(γ) and γ/2 (1 − 1/n) for L2(γ). With Entropy(1) it is `log_partition`. It belongs to
    the recursion, not to the set alone.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        omega: `Entropy(gamma)`, `L2(gamma)` or `Tsallis(alpha, gamma)`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape. −inf for an instance in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [1.5, 0.0]])
        >>> structmax.smoothed(x, structmax.MonotoneAlignment(), structmax.L2(1.0))
        tensor(1.5625)
    """
    tensors, asked = _checked(scores, structure, omega, backend)
    return value(asked, omega.potential(), tensors)


@summed
def smoothed_marginals(
    scores: Scores, structure: AbstractStructure, omega: Regulariser, *, backend: str = "auto"
) -> Any:
    """The expected structure ∇DP_Ω(θ) of the random walk that Ω induces; exactly sparse for L2 and Tsallis.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        omega: `Entropy(gamma)`, `L2(gamma)` or `Tsallis(alpha, gamma)`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields and shapes of the scores, differentiable; zeros for an instance in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [1.5, 0.0]])
        >>> structmax.smoothed_marginals(x, structmax.MonotoneAlignment(), structmax.L2(1.0))
        tensor([[1.0000, 0.2500],
                [0.7500, 1.0000]])
    """
    tensors, asked = _checked(scores, structure, omega, backend)
    return structure.parts(point(asked, omega.potential(), tensors))


@summed
def smoothed_sample(
    scores: Scores,
    structure: AbstractStructure,
    omega: Regulariser,
    sample_shape: Sequence[int] = (),
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Any:
    """Independent draws of the random walk that Ω induces on the structure's recursion. Not differentiable.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        omega: `Entropy(gamma)`, `L2(gamma)` or `Tsallis(alpha, gamma)`.
        sample_shape: dimensions of independent draws, put in front.
        generator: source of chance; the same seed gives the same draws on every backend.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        0/1 parts, `sample_shape` followed by fields and shapes of the scores; zeros where nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
        >>> structmax.smoothed_sample(x, structmax.MonotoneAlignment(), structmax.L2(1.0), (5,)).mean(0)
        tensor([[1., 0.],
                [1., 1.]])
    """
    tensors, asked = _checked(scores, structure, omega, backend)
    drawn, _ = draw(asked, "smoothed_sample", tensors, sample_shape, generator, **dict(omega.numbers))
    return structure.parts(drawn)


class WalkLogProb(Function):
    """Σ log q over the edges of the derivation of y."""

    @staticmethod
    def forward(asked: Asked, numbers: tuple[tuple[str, float], ...], *scores_and_parts: Tensor) -> Tensor:
        half = len(scores_and_parts) // 2
        return asked.room("smoothed_log_prob", scores_and_parts[:half], *scores_and_parts[half:], **dict(numbers))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.asked, ctx.numbers, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor) -> tuple[Any, ...]:
        # Read once: a checkpoint recomputes what it gives, and gives it once.
        saved = ctx.saved_tensors
        half = len(saved) // 2
        # of the pullback with cotangent 1, so that it is a constant of what it scales
        ones = torch.ones_like(d_value)
        scores, parts = saved[:half], saved[half:]
        numbers = dict(ctx.numbers)
        gradient = ctx.asked.room("smoothed_log_prob_pullback", scores, *parts, d_value=ones, **numbers)
        return None, None, *scaled(d_value, gradient), *(None,) * half


walk_log_prob_rule = rule(WalkLogProb)


@summed
def smoothed_log_prob(
    scores: Scores, structure: AbstractStructure, omega: Regulariser, parts: Scores, *, backend: str = "auto"
) -> Tensor:
    """The log-probability of given structures under the random walk that Ω induces, so that they can be ranked.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: a structure with a recursion.
        omega: `Entropy(gamma)`, `L2(gamma)` or `Tsallis(alpha, gamma)`.
        parts: y, with fields and shapes of the scores; more leading dimensions (samples) broadcast.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape of `parts`; −inf for a structure the walk never takes. Differentiable once in the scores.

    Examples:
        >>> import torch, structmax
        >>> x, paths = torch.tensor([[0.0, 1.0], [1.5, 0.0]]), structmax.MonotoneAlignment()
        >>> best, second, third = structmax.topk(x, paths, 3).parts
        >>> structmax.smoothed_log_prob(x, paths, structmax.L2(1.0), second).exp()
        tensor(0.2500)
    """
    tensors, asked = _checked(scores, structure, omega, backend)
    chosen = structure.tensors(parts)
    wide = [torch.broadcast_tensors(s, y.to(s.dtype)) for s, y in zip(tensors, chosen, strict=True)]
    y = existing(structure, tensors, tuple(y for _, y in wide))
    return walk_log_prob_rule(asked, omega.numbers, *(s for s, _ in wide), *y)
