"""Regularisers Ω on conv(Y), and what they do to the maximum over a structure.

    value(θ) = max over μ in conv(Y) of ⟨θ, μ⟩ − Ω(μ)          point(θ) = its gradient, the μ that attains it

`Zero` gives the best structure, `Entropy` the marginals, `SquaredNorm` SparseMAP; `LocalL2` and `LocalTsallis` stand in
every maximum of a dynamic program, `Checkpointed` with less memory. To write your own, subclass `AbstractOmega`: see
docs/extending.md.
"""

from structmax.omega.base import AbstractOmega
from structmax.omega.checkpointed import Checkpointed
from structmax.omega.frank_wolfe import AwaySteps, FrankWolfe, PairwiseSteps
from structmax.omega.local import LocalL2, LocalTsallis
from structmax.omega.smooth import Entropy
from structmax.omega.squared_norm import AbstractSolver, ActiveSet, SquaredNorm
from structmax.omega.zero import Zero

__all__ = [
    "AbstractOmega",
    "AbstractSolver",
    "ActiveSet",
    "AwaySteps",
    "Checkpointed",
    "Entropy",
    "FrankWolfe",
    "LocalL2",
    "LocalTsallis",
    "PairwiseSteps",
    "SquaredNorm",
    "Zero",
]
