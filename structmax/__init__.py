"""Structures inside neural networks: scores in; a discrete, sparse or soft structure out; the right gradient back.

This is the only list of public names.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from structmax.backends import Refusal, loading_seconds, warm_up, which
from structmax.contract import AbstractStructure
from structmax.diagnose import Diagnosis, diagnose
from structmax.distribution import Distribution
from structmax.estimators.baselines import Learned, LeaveOneOut, RunningMean, RunningScale, SelfCritical
from structmax.estimators.enumerate_all import Enumerate
from structmax.estimators.expectation import Expectation, expect
from structmax.estimators.gumbel import gumbel_entmax, gumbel_softmax, gumbel_sparsemax, gumbel_topk
from structmax.estimators.gumbel_sinkhorn import gumbel_sinkhorn
from structmax.estimators.implicit_mle import ImplicitMLE, SumOfGamma
from structmax.estimators.interpolation import BlackboxInterpolation
from structmax.estimators.perturb_and_map import PerturbAndMap, StraightThroughGumbel
from structmax.estimators.perturbed import Perturbed, perturbed_value
from structmax.estimators.ppo import Ppo
from structmax.estimators.projections import Box, Polytope, Simplices, WholeSpace
from structmax.estimators.pullbacks import Identity, Marginals, Smoothed, Softmax, SparseMarginals
from structmax.estimators.rebar import Rebar
from structmax.estimators.reinmax import ReinMax
from structmax.estimators.relax import Relax
from structmax.estimators.relaxation import GumbelSoftmax, Relaxation
from structmax.estimators.score_function import ScoreFunction
from structmax.estimators.sparse import SparseSupport, SparseTopK
from structmax.estimators.spigot import Spigot, SpigotCE, SpigotEG
from structmax.estimators.straight_through import StraightThrough
from structmax.estimators.sum_and_sample import SumAndSample
from structmax.estimators.surrogate import surrogate
from structmax.estimators.vimco import Vimco
from structmax.estimators.without_replacement import SampleWithoutReplacement
from structmax.factor_graph.factors import (
    AbstractFactor,
    AndOut,
    AtMostOne,
    Budget,
    Dense,
    Factor,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)
from structmax.factor_graph.graph import FactorGraph
from structmax.factor_graph.relaxation import Relaxed
from structmax.factor_graph.search import Best
from structmax.factor_graph.variables import Literals, Variables
from structmax.inference.argmax import argmax
from structmax.inference.capped import budget, csoftmax, csparsemax
from structmax.inference.entmax import entmax, entmax15, smoothed_max, softmax, sparsemax, topk_sparsemax
from structmax.inference.entropy import cross_entropy, entropy, kl_divergence, log_count, log_prob
from structmax.inference.frank_wolfe import AwaySteps, FrankWolfe, PairwiseSteps
from structmax.inference.log_partition import log_partition, marginals
from structmax.inference.max_marginals import max_marginals
from structmax.inference.normmax import normmax
from structmax.inference.perturb import Gumbel, Logistic, Normal, perturb_and_map
from structmax.inference.proximal import fusedmax, oscarmax, prox_owl, prox_tv
from structmax.inference.sample import Drawn, sample, sample_without_replacement
from structmax.inference.sinkhorn import Sinkhorn, sinkhorn
from structmax.inference.smoothed import (
    L2,
    Entropy,
    Tsallis,
    smoothed,
    smoothed_log_prob,
    smoothed_marginals,
    smoothed_sample,
)
from structmax.inference.soft_dtw import (
    Barycentre,
    soft_dtw,
    soft_dtw_alignment,
    soft_dtw_barycentre,
    soft_dtw_divergence,
    squared_distance,
)
from structmax.inference.sorting import soft_permutation, soft_rank, soft_sort
from structmax.inference.sparse_marginals import sparse_marginals
from structmax.inference.sparsemap import ActiveSet, SparseMAP, sparsemap
from structmax.inference.topk import TopK, topk
from structmax.inference.topk_sparsemap import TopKSparse, topk_sparsemap
from structmax.losses import (
    crf_loss,
    entmax15_loss,
    entmax_loss,
    fenchel_young,
    margin_sparsemap_loss,
    normmax_loss,
    perceptron_loss,
    perturbed_loss,
    risk,
    smoothed_loss,
    softmax_margin_loss,
    sparsemap_loss,
    sparsemax_loss,
    svm_loss,
)
from structmax.losses.fenchel_young import DistributionEntropy, Local, SquaredNorm, Zero
from structmax.structures.binary_tree import BinaryTree
from structmax.structures.bits import Bits
from structmax.structures.ctc import Ctc
from structmax.structures.hypergraph import Hypergraph
from structmax.structures.lattice import Lattice
from structmax.structures.linear_chain import LinearChain
from structmax.structures.linear_chain.tags import TagConstraints, tag_constraints
from structmax.structures.matching import Matching
from structmax.structures.monotone_alignment import MonotoneAlignment
from structmax.structures.pcfg import Pcfg
from structmax.structures.projective_tree import ProjectiveTree
from structmax.structures.semi_markov import SemiMarkov
from structmax.structures.shift_reduce import ShiftReduce
from structmax.structures.simplex import Simplex
from structmax.structures.small_matching import SmallMatching
from structmax.structures.spanning_tree import SpanningTree
from structmax.structures.subset import Subset

if TYPE_CHECKING:
    from structmax import incremental, lab, nn

__version__ = "0.1.0"

__all__ = [
    "L2",
    "AbstractFactor",
    "AbstractStructure",
    "ActiveSet",
    "AndOut",
    "AtMostOne",
    "AwaySteps",
    "Barycentre",
    "Best",
    "BinaryTree",
    "Bits",
    "BlackboxInterpolation",
    "Box",
    "Budget",
    "Ctc",
    "Dense",
    "Diagnosis",
    "Distribution",
    "DistributionEntropy",
    "Drawn",
    "Entropy",
    "Enumerate",
    "Expectation",
    "Factor",
    "FactorGraph",
    "FrankWolfe",
    "Gumbel",
    "GumbelSoftmax",
    "Hypergraph",
    "Identity",
    "ImplicitMLE",
    "Imply",
    "Knapsack",
    "Lattice",
    "Learned",
    "LeaveOneOut",
    "LinearChain",
    "Literals",
    "Local",
    "Logistic",
    "Marginals",
    "Matching",
    "MonotoneAlignment",
    "Normal",
    "Or",
    "OrOut",
    "Pair",
    "PairwiseSteps",
    "Pcfg",
    "PerturbAndMap",
    "Perturbed",
    "Polytope",
    "Ppo",
    "ProjectiveTree",
    "Rebar",
    "Refusal",
    "ReinMax",
    "Relax",
    "Relaxation",
    "Relaxed",
    "RunningMean",
    "RunningScale",
    "SampleWithoutReplacement",
    "ScoreFunction",
    "SelfCritical",
    "SemiMarkov",
    "ShiftReduce",
    "Simplex",
    "Simplices",
    "Sinkhorn",
    "SmallMatching",
    "Smoothed",
    "Softmax",
    "SpanningTree",
    "SparseMAP",
    "SparseMarginals",
    "SparseSupport",
    "SparseTopK",
    "Spigot",
    "SpigotCE",
    "SpigotEG",
    "SquaredNorm",
    "StraightThrough",
    "StraightThroughGumbel",
    "Subset",
    "SumAndSample",
    "SumOfGamma",
    "TagConstraints",
    "TopK",
    "TopKSparse",
    "Tsallis",
    "Variables",
    "Vimco",
    "WholeSpace",
    "Xor",
    "XorOut",
    "Zero",
    "argmax",
    "budget",
    "crf_loss",
    "cross_entropy",
    "csoftmax",
    "csparsemax",
    "diagnose",
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_loss",
    "entropy",
    "expect",
    "fenchel_young",
    "fusedmax",
    "gumbel_entmax",
    "gumbel_sinkhorn",
    "gumbel_softmax",
    "gumbel_sparsemax",
    "gumbel_topk",
    "incremental",
    "kl_divergence",
    "lab",
    "loading_seconds",
    "log_count",
    "log_partition",
    "log_prob",
    "margin_sparsemap_loss",
    "marginals",
    "max_marginals",
    "nn",
    "normmax",
    "normmax_loss",
    "oscarmax",
    "perceptron_loss",
    "perturb_and_map",
    "perturbed_loss",
    "perturbed_value",
    "prox_owl",
    "prox_tv",
    "risk",
    "sample",
    "sample_without_replacement",
    "sinkhorn",
    "smoothed",
    "smoothed_log_prob",
    "smoothed_loss",
    "smoothed_marginals",
    "smoothed_max",
    "smoothed_sample",
    "soft_dtw",
    "soft_dtw_alignment",
    "soft_dtw_barycentre",
    "soft_dtw_divergence",
    "soft_permutation",
    "soft_rank",
    "soft_sort",
    "softmax",
    "softmax_margin_loss",
    "sparse_marginals",
    "sparsemap",
    "sparsemap_loss",
    "sparsemax",
    "sparsemax_loss",
    "squared_distance",
    "surrogate",
    "svm_loss",
    "tag_constraints",
    "topk",
    "topk_sparsemap",
    "topk_sparsemax",
    "warm_up",
    "which",
]


def __getattr__(name: str) -> ModuleType:
    """Submodules that not every program needs are loaded when they are first named."""
    if name in ("incremental", "lab", "nn"):
        return importlib.import_module(f"structmax.{name}")
    raise AttributeError(f"module 'structmax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
