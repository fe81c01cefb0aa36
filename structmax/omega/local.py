"""Ω in every maximum of a dynamic program.

    max_Ω(s) = max over p in the simplex of ⟨p, s⟩ − Ω(p)          q = ∇max_Ω(s)

The value DP_Ω(θ) is that at the goal, and q says with which probability a random walk from the goal takes each edge.
Then ∇DP_Ω(θ) is the expected structure of that walk: exactly sparse for L2 and Tsallis. For the entropy the walk is
p(y) ∝ exp⟨θ, y⟩ and the value log Z, so that is `Entropy`, without a class of its own here.

All Ω here are 0 at a certain choice, so DP_Ω is at least the best score DP, and

    0 ≤ DP_Ω(θ) − DP(θ) ≤ max over derivations of Σ over their nodes v of ω(edges of v),    ω(n) = max over p of −Ω(p):

t log n for the entropy, t/2 (1 − 1/n) for L2, t (1 − n^(1−α)) / (α(α−1)) for Tsallis, with t the temperature.

Reference: Mensch & Blondel (2018), Differentiable dynamic programming for structured prediction and attention.
"""

from dataclasses import dataclass
from typing import ClassVar

from structmax import check
from structmax.omega.smooth import Entropy, Smooth


class Local(Smooth):
    """t Ω_α of the Tsallis family Ω_α(p) = Σ (p^α − p) / (α(α−1)), 0 at every vertex of the simplex."""

    alpha: float
    temperature: float

    walks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.number("temperature", self.temperature)
        check.number("alpha", self.alpha)
        if self.alpha < 1:
            raise ValueError(f"`alpha` should be ≥ 1, but is {self.alpha}. 1 is Entropy, 2 is LocalL2.")
        if self.alpha == 1:
            # the entropy, for which structures have their fastest functions
            same = Entropy(self.temperature)
            names, numbers, divisor = same.names, same.numbers, same.divisor
        else:
            names = "smoothed", "smoothed_and_marginals", "smoothed_marginals_jvp"
            numbers, divisor = {"alpha": float(self.alpha), "gamma": float(self.temperature)}, None
        for name, value in (("names", names), ("numbers", numbers), ("divisor", divisor)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class LocalL2(Local):
    """temperature/2 (‖p‖² − 1) in every maximum of the recursion: a sparsemax at every step.

    The walk takes each edge with its sparsemax probability, many with probability 0.

    Args:
        temperature: a number > 0; the smoothed maximum tends to the maximum as it falls.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [1.5, 0.0]])
        >>> structmax.smoothed_marginals(x, structmax.MonotoneAlignment(), structmax.omega.LocalL2())
        tensor([[1.0000, 0.2500],
                [0.7500, 1.0000]])
    """

    temperature: float = 1.0
    alpha: ClassVar[float] = 2.0  # type: ignore[misc]


@dataclass(frozen=True)
class LocalTsallis(Local):
    """temperature Σ (p^α − p) / (α(α−1)) in every maximum of the recursion: an entmax at every step.

    The walk takes each edge with its entmax probability. α = 1 is `Entropy`, 2 is `LocalL2`.

    Args:
        alpha: a number ≥ 1; the higher, the sparser.
        temperature: a number > 0; the smoothed maximum tends to the maximum as it falls.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0], [1.5, 0.0]])
        >>> structmax.smoothed_marginals(x, structmax.MonotoneAlignment(), structmax.omega.LocalTsallis(1.5))
        tensor([[1.0000, 0.3240],
                [0.6712, 1.0000]])
    """

    alpha: float = 1.5
    temperature: float = 1.0
