"""Structures inside neural networks: scores in; a discrete, sparse or soft structure out; the right gradient back.

This is the only list of public names.
"""

from structmax import nn
from structmax.backends import Refusal, warm_up, which
from structmax.contract import AbstractStructure
from structmax.diagnose import Diagnosis, diagnose
from structmax.distribution import Distribution
from structmax.estimators.gumbel import gumbel_entmax, gumbel_softmax, gumbel_sparsemax
from structmax.inference.argmax import argmax
from structmax.inference.capped import budget, csoftmax, csparsemax
from structmax.inference.entmax import entmax, entmax15, smoothed_max, softmax, sparsemax, topk_sparsemax
from structmax.inference.entropy import cross_entropy, entropy, kl_divergence, log_count, log_prob
from structmax.inference.log_partition import log_partition, marginals
from structmax.inference.max_marginals import max_marginals
from structmax.inference.normmax import normmax
from structmax.inference.proximal import fusedmax, oscarmax, prox_owl, prox_tv
from structmax.inference.sample import Drawn, sample, sample_without_replacement
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
from structmax.inference.topk import TopK, topk
from structmax.losses import entmax15_loss, entmax_loss, normmax_loss, sparsemax_loss
from structmax.structures.binary_tree import BinaryTree
from structmax.structures.ctc import Ctc
from structmax.structures.hypergraph import Hypergraph
from structmax.structures.lattice import Lattice
from structmax.structures.linear_chain import LinearChain
from structmax.structures.linear_chain.tags import TagConstraints, tag_constraints
from structmax.structures.monotone_alignment import MonotoneAlignment
from structmax.structures.pcfg import Pcfg
from structmax.structures.projective_tree import ProjectiveTree
from structmax.structures.semi_markov import SemiMarkov
from structmax.structures.simplex import Simplex

__version__ = "0.1.0"

__all__ = [
    "L2",
    "AbstractStructure",
    "Barycentre",
    "BinaryTree",
    "Ctc",
    "Diagnosis",
    "Distribution",
    "Drawn",
    "Entropy",
    "Hypergraph",
    "Lattice",
    "LinearChain",
    "MonotoneAlignment",
    "Pcfg",
    "ProjectiveTree",
    "Refusal",
    "SemiMarkov",
    "Simplex",
    "TagConstraints",
    "TopK",
    "Tsallis",
    "argmax",
    "budget",
    "cross_entropy",
    "csoftmax",
    "csparsemax",
    "diagnose",
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_loss",
    "entropy",
    "fusedmax",
    "gumbel_entmax",
    "gumbel_softmax",
    "gumbel_sparsemax",
    "kl_divergence",
    "log_count",
    "log_partition",
    "log_prob",
    "marginals",
    "max_marginals",
    "nn",
    "normmax",
    "normmax_loss",
    "oscarmax",
    "prox_owl",
    "prox_tv",
    "sample",
    "sample_without_replacement",
    "smoothed",
    "smoothed_log_prob",
    "smoothed_marginals",
    "smoothed_max",
    "smoothed_sample",
    "soft_dtw",
    "soft_dtw_alignment",
    "soft_dtw_barycentre",
    "soft_dtw_divergence",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
    "squared_distance",
    "tag_constraints",
    "topk",
    "topk_sparsemax",
    "warm_up",
    "which",
]
