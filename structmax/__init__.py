"""Structures inside neural networks: scores in; a discrete, sparse or soft structure out; the right gradient back.

This is the only list of public names.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from structmax import estimators, factors, noise, omega, recursion
from structmax.applications.barycentre import Barycentre, soft_dtw_barycentre
from structmax.applications.sinkhorn import EntropicMatching, sinkhorn
from structmax.applications.soft_dtw import soft_dtw, soft_dtw_alignment, soft_dtw_divergence, squared_distance
from structmax.applications.sorting import soft_permutation, soft_rank, soft_sort
from structmax.backends import Refusal
from structmax.contract import AbstractStructure, returns
from structmax.diagnose import Diagnosis, diagnose
from structmax.distribution import Distribution
from structmax.estimators.expectation import expect
from structmax.estimators.gumbel import gumbel_entmax, gumbel_softmax, gumbel_sparsemax, gumbel_topk
from structmax.estimators.gumbel_sinkhorn import gumbel_sinkhorn
from structmax.estimators.perturbed import perturbed_value
from structmax.estimators.surrogate import surrogate
from structmax.factor_graph import FactorGraph
from structmax.factor_graph.beliefs import Beliefs, belief_propagation
from structmax.factor_graph.beliefs.mean_field import mean_field
from structmax.hidden_states import hidden_markov, hidden_semi_markov
from structmax.loading import loading_seconds
from structmax.losses import (
    crf_loss,
    entmax15_loss,
    entmax_loss,
    linear_entmax_loss,
    margin_sparsemap_loss,
    normmax_loss,
    perceptron_loss,
    perturbed_loss,
    risk,
    softmax_margin_loss,
    sparsemap_loss,
    sparsemax_loss,
    svm_loss,
)
from structmax.losses.fenchel_young import fenchel_young
from structmax.mappings.attention import entmax_attention
from structmax.mappings.capped import budget, csoftmax, csparsemax
from structmax.mappings.entmax import entmax, entmax15, smoothed_max, softmax, sparsemax, topk_sparsemax
from structmax.mappings.normmax import normmax
from structmax.mappings.proximal import fusedmax, oscarmax, prox_owl, prox_tv
from structmax.problem import Problem
from structmax.questions.argmax import argmax
from structmax.questions.entropy import cross_entropy, entropy, kl_divergence, log_count, log_prob
from structmax.questions.log_partition import log_partition, marginals
from structmax.questions.max_marginals import max_marginals
from structmax.questions.minimum_bayes_risk import minimum_bayes_risk
from structmax.questions.perturb import perturb_and_map
from structmax.questions.sample import Drawn, sample, sample_without_replacement
from structmax.questions.semiring import semiring_value
from structmax.questions.smoothed import (
    smoothed,
    smoothed_log_prob,
    smoothed_marginals,
    smoothed_sample,
    smoothed_topk,
)
from structmax.questions.sparse_marginals import sparse_marginals
from structmax.questions.sparsemap import Relaxed, SparseMAP, sparsemap
from structmax.questions.topk import TopK, topk
from structmax.questions.topk_sparsemap import TopKSparseMAP, topk_sparsemap
from structmax.structures.bilexical_tree import BilexicalTree
from structmax.structures.binary_tree import BinaryTree
from structmax.structures.bits import Bits
from structmax.structures.ctc import CTC
from structmax.structures.head_automaton import HeadAutomaton
from structmax.structures.hypergraph import Hypergraph
from structmax.structures.jump_alignment import JumpAlignment
from structmax.structures.labelled_tree import LabelledTree
from structmax.structures.lattice import Lattice
from structmax.structures.linear_chain import LinearChain
from structmax.structures.linear_chain.budget import BudgetChain
from structmax.structures.linear_chain.tags import TagConstraints, tag_constraints
from structmax.structures.low_rank_pcfg import LowRankPCFG
from structmax.structures.matching import Matching
from structmax.structures.monotone_alignment import MonotoneAlignment
from structmax.structures.pcfg import PCFG
from structmax.structures.projective_tree import ProjectiveTree
from structmax.structures.second_order_tree import SecondOrderTree
from structmax.structures.semi_markov import SemiMarkov
from structmax.structures.shift_reduce import ShiftReduce
from structmax.structures.simplex import Simplex
from structmax.structures.small_matching import SmallMatching
from structmax.structures.spanning_tree import SpanningTree
from structmax.structures.subset import Subset
from structmax.warm_up import warm_up
from structmax.which import which

if TYPE_CHECKING:
    from structmax import incremental, lab, nn

__version__ = "0.1.0"

__all__ = [
    "CTC",
    "PCFG",
    "AbstractStructure",
    "Barycentre",
    "Beliefs",
    "BilexicalTree",
    "BinaryTree",
    "Bits",
    "BudgetChain",
    "Diagnosis",
    "Distribution",
    "Drawn",
    "EntropicMatching",
    "FactorGraph",
    "HeadAutomaton",
    "Hypergraph",
    "JumpAlignment",
    "LabelledTree",
    "Lattice",
    "LinearChain",
    "LowRankPCFG",
    "Matching",
    "MonotoneAlignment",
    "Problem",
    "ProjectiveTree",
    "Refusal",
    "Relaxed",
    "SecondOrderTree",
    "SemiMarkov",
    "ShiftReduce",
    "Simplex",
    "SmallMatching",
    "SpanningTree",
    "SparseMAP",
    "Subset",
    "TagConstraints",
    "TopK",
    "TopKSparseMAP",
    "argmax",
    "belief_propagation",
    "budget",
    "crf_loss",
    "cross_entropy",
    "csoftmax",
    "csparsemax",
    "diagnose",
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_attention",
    "entmax_loss",
    "entropy",
    "estimators",
    "expect",
    "factors",
    "fenchel_young",
    "fusedmax",
    "gumbel_entmax",
    "gumbel_sinkhorn",
    "gumbel_softmax",
    "gumbel_sparsemax",
    "gumbel_topk",
    "hidden_markov",
    "hidden_semi_markov",
    "incremental",
    "kl_divergence",
    "lab",
    "linear_entmax_loss",
    "loading_seconds",
    "log_count",
    "log_partition",
    "log_prob",
    "margin_sparsemap_loss",
    "marginals",
    "max_marginals",
    "mean_field",
    "minimum_bayes_risk",
    "nn",
    "noise",
    "normmax",
    "normmax_loss",
    "omega",
    "oscarmax",
    "perceptron_loss",
    "perturb_and_map",
    "perturbed_loss",
    "perturbed_value",
    "prox_owl",
    "prox_tv",
    "recursion",
    "returns",
    "risk",
    "sample",
    "sample_without_replacement",
    "semiring_value",
    "sinkhorn",
    "smoothed",
    "smoothed_log_prob",
    "smoothed_marginals",
    "smoothed_max",
    "smoothed_sample",
    "smoothed_topk",
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
