"""Gradients for discrete choices: what `surrogate` and `expect` take as their `estimator`.

To write your own, subclass `AbstractChoice`, `AbstractSurrogate` or `AbstractEstimator`: see docs/extending.md.
`drawn`, `log_probs`, `credited` and `possible` help to write it.
"""

from structmax.estimators.baselines import (
    AbstractBaseline,
    Learned,
    LeaveOneOut,
    RunningMean,
    RunningScale,
    SelfCritical,
)
from structmax.estimators.enumerate_all import Enumerate
from structmax.estimators.expectation import AbstractEstimator, Evaluations, Expectation, credited, drawn, log_probs
from structmax.estimators.gumbel_recursion import GumbelRecursion
from structmax.estimators.implicit_mle import ImplicitMLE
from structmax.estimators.interpolation import BlackboxInterpolation
from structmax.estimators.perturb_and_map import PerturbAndMAP, straight_through_gumbel
from structmax.estimators.perturbed import Perturbed
from structmax.estimators.possible import possible
from structmax.estimators.ppo import PPO, Rollout
from structmax.estimators.projections import AbstractProjection, Box, Polytope, Simplices, WholeSpace
from structmax.estimators.pullbacks import Identity, Pullback, RowSoftmax
from structmax.estimators.rebar import Rebar
from structmax.estimators.reinmax import ReinMax
from structmax.estimators.relax import Relax
from structmax.estimators.relaxation import Relaxation, gumbel_relaxation
from structmax.estimators.score_function import ScoreFunction
from structmax.estimators.sparse import SparseSupport, SparseTopK
from structmax.estimators.spigot import Spigot, SpigotCE, SpigotEG
from structmax.estimators.straight_through import StraightThrough
from structmax.estimators.sum_and_sample import SumAndSample
from structmax.estimators.surrogate import AbstractChoice, AbstractSurrogate
from structmax.estimators.vimco import Vimco
from structmax.estimators.without_replacement import SampleWithoutReplacement

__all__ = [
    "PPO",
    "AbstractBaseline",
    "AbstractChoice",
    "AbstractEstimator",
    "AbstractProjection",
    "AbstractSurrogate",
    "BlackboxInterpolation",
    "Box",
    "Enumerate",
    "Evaluations",
    "Expectation",
    "GumbelRecursion",
    "Identity",
    "ImplicitMLE",
    "Learned",
    "LeaveOneOut",
    "PerturbAndMAP",
    "Perturbed",
    "Polytope",
    "Pullback",
    "Rebar",
    "ReinMax",
    "Relax",
    "Relaxation",
    "Rollout",
    "RowSoftmax",
    "RunningMean",
    "RunningScale",
    "SampleWithoutReplacement",
    "ScoreFunction",
    "SelfCritical",
    "Simplices",
    "SparseSupport",
    "SparseTopK",
    "Spigot",
    "SpigotCE",
    "SpigotEG",
    "StraightThrough",
    "SumAndSample",
    "Vimco",
    "WholeSpace",
    "credited",
    "drawn",
    "gumbel_relaxation",
    "log_probs",
    "possible",
    "straight_through_gumbel",
]
