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
from structmax.inference.entropy import cross_entropy, entropy, kl_divergence, log_prob
from structmax.inference.log_partition import log_partition, marginals
from structmax.inference.max_marginals import max_marginals
from structmax.inference.normmax import normmax
from structmax.inference.proximal import fusedmax, oscarmax, prox_owl, prox_tv
from structmax.inference.sample import sample
from structmax.inference.topk import TopK, topk
from structmax.losses import entmax15_loss, entmax_loss, normmax_loss, sparsemax_loss
from structmax.structures.simplex import Simplex

__version__ = "0.1.0"

__all__ = [
    "AbstractStructure",
    "Diagnosis",
    "Distribution",
    "Refusal",
    "Simplex",
    "TopK",
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
    "smoothed_max",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
    "topk",
    "topk_sparsemax",
    "warm_up",
    "which",
]
