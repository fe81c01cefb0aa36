"""Modules: parameters → scores → a question. Each has the name of its function, capitalised."""

from structmax.nn.attention import Attention
from structmax.nn.biaffine import Biaffine
from structmax.nn.binary_tree_lstm import BinaryTreeLSTM
from structmax.nn.child_sum_tree_lstm import ChildSumTreeLSTM
from structmax.nn.crf import CRF
from structmax.nn.crf_decoder import CRFDecoder
from structmax.nn.losses import Entmax15Loss, EntmaxLoss, LinearEntmaxLoss, NormmaxLoss, SparsemaxLoss
from structmax.nn.mappings import (
    Budget,
    Csoftmax,
    Csparsemax,
    Entmax,
    Entmax15,
    Fusedmax,
    GumbelEntmax,
    GumbelSoftmax,
    GumbelSparsemax,
    Normmax,
    Oscarmax,
    ProxOWL,
    ProxTV,
    SmoothedMax,
    Softmax,
    Sparsemax,
    TopKSparsemax,
)
from structmax.nn.merge_parser import MergeParser
from structmax.nn.pyramid_tree_lstm import PyramidTreeLSTM
from structmax.nn.sinkhorn_attention import SinkhornAttention
from structmax.nn.soft_dtw import SoftDTWLoss
from structmax.nn.spinn import Spinn
from structmax.nn.structured_attention import Pairs, Segments, Steps, StructuredAttention, Trees
from structmax.nn.structured_losses import (
    CRFLoss,
    FenchelYoungLoss,
    MarginSparseMAPLoss,
    PerceptronLoss,
    PerturbedLoss,
    SoftmaxMarginLoss,
    SparseMAPLoss,
    SVMLoss,
)
from structmax.nn.tree_gcn import TreeGCN

__all__ = [
    "CRF",
    "Attention",
    "Biaffine",
    "BinaryTreeLSTM",
    "Budget",
    "CRFDecoder",
    "CRFLoss",
    "ChildSumTreeLSTM",
    "Csoftmax",
    "Csparsemax",
    "Entmax",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxLoss",
    "FenchelYoungLoss",
    "Fusedmax",
    "GumbelEntmax",
    "GumbelSoftmax",
    "GumbelSparsemax",
    "LinearEntmaxLoss",
    "MarginSparseMAPLoss",
    "MergeParser",
    "Normmax",
    "NormmaxLoss",
    "Oscarmax",
    "Pairs",
    "PerceptronLoss",
    "PerturbedLoss",
    "ProxOWL",
    "ProxTV",
    "PyramidTreeLSTM",
    "SVMLoss",
    "Segments",
    "SinkhornAttention",
    "SmoothedMax",
    "SoftDTWLoss",
    "Softmax",
    "SoftmaxMarginLoss",
    "SparseMAPLoss",
    "Sparsemax",
    "SparsemaxLoss",
    "Spinn",
    "Steps",
    "StructuredAttention",
    "TopKSparsemax",
    "TreeGCN",
    "Trees",
]
