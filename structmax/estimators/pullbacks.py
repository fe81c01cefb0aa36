"""Where the gradient of a discrete choice may come from: the cotangent itself, or a relaxation's Jacobian."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from structmax import check
from structmax.inference.entmax import softmax
from structmax.inference.log_partition import marginals
from structmax.inference.oracle import Oracle, Tensors, where
from structmax.inference.smoothed import Regulariser, smoothed_marginals
from structmax.inference.sparse_marginals import sparse_marginals


class AbstractPullback(ABC):
    """Turns the cotangent of z into a gradient for the scores."""

    @property
    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """What the structure has to answer: names of a room's functions."""

    @abstractmethod
    def pullback(self, ask: Oracle, scores: Tensors, d_z: Tensors) -> Tensors:
        """∂L/∂θ for ∂L/∂z."""


class AbstractPoint(AbstractPullback):
    """A differentiable stand-in for argmax; it pulls back by its own Jacobian."""

    @abstractmethod
    def at(self, ask: Oracle, scores: Tensors) -> Tensors:
        """The relaxed z, differentiable."""

    def pullback(self, ask: Oracle, scores: Tensors, d_z: Tensors) -> Tensors:
        return torch.func.vjp(lambda *s: self.at(ask, s), *scores)[1](d_z)


@dataclass(frozen=True)
class Identity(AbstractPullback):
    """∂L/∂θ = ∂L/∂z, but 0 for padding and forbidden parts."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def pullback(self, ask: Oracle, scores: Tensors, d_z: Tensors) -> Tensors:
        return where(ask.possible(scores), d_z)


@dataclass(frozen=True)
class Marginals(AbstractPoint):
    """The marginals μ(θ / temperature): softmax on the Simplex, sigmoids of Bits."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("marginals", "marginals_jvp")

    def at(self, ask: Oracle, scores: Tensors) -> Tensors:
        return ask.parts(marginals, tuple(s / self.temperature for s in scores))


@dataclass(frozen=True)
class SparseMarginals(AbstractPoint):
    """The sparse marginals argmax ⟨θ, μ⟩ − temperature/2 ‖μ‖² over conv(Y): sparsemax on the Simplex."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def at(self, ask: Oracle, scores: Tensors) -> Tensors:
        return ask.parts(sparse_marginals, scores, self.temperature)


@dataclass(frozen=True)
class Smoothed(AbstractPoint):
    """The expected structure ∇DP_Ω(θ) of a smoothed recursion: with Tsallis(α), entmax on the Simplex."""

    omega: Regulariser

    @property
    def needs(self) -> tuple[str, ...]:
        potential = self.omega.potential()
        return (potential.both, potential.jvp)

    def at(self, ask: Oracle, scores: Tensors) -> Tensors:
        return ask.parts(smoothed_marginals, scores, self.omega)


@dataclass(frozen=True)
class Softmax(AbstractPoint):
    """Softmax of the scores along `dim`, each row a choice by itself and the structure forgotten.

    On the Simplex it is `Marginals()`. For arcs (…, N+1, N+1) and dim = −2 every word chooses a head; for alignments
    (…, N, M) and dim = −1 every row a column. Structures with several part tensors have no such rows.
    """

    dim: int = -1

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def at(self, ask: Oracle, scores: Tensors) -> Tensors:
        if len(scores) > 1:
            raise TypeError(
                f"Softmax() should be asked of a structure with one part tensor, but {type(ask.structure).__name__} "
                f"has {len(scores)}. Try Marginals()."
            )
        (mask,) = ask.possible(scores)
        return (softmax(scores[0], self.dim, mask=mask, backend=ask.backend),)
