"""Losses: Fenchel-Young losses of the simplex and of structures, and the risk."""

from structmax.losses.entmax import entmax15_loss, entmax_loss, normmax_loss, sparsemax_loss
from structmax.losses.fenchel_young import fenchel_young
from structmax.losses.linear import linear_entmax_loss
from structmax.losses.structured import (
    crf_loss,
    margin_sparsemap_loss,
    perceptron_loss,
    perturbed_loss,
    risk,
    softmax_margin_loss,
    sparsemap_loss,
    svm_loss,
)

__all__ = [
    "crf_loss",
    "entmax15_loss",
    "entmax_loss",
    "fenchel_young",
    "linear_entmax_loss",
    "margin_sparsemap_loss",
    "normmax_loss",
    "perceptron_loss",
    "perturbed_loss",
    "risk",
    "softmax_margin_loss",
    "sparsemap_loss",
    "sparsemax_loss",
    "svm_loss",
]
