"""Attention that is doubly stochastic: what queries read sums to 1 along both sides."""

import functools

from torch import Tensor

from structmax import check
from structmax.applications.sinkhorn import sinkhorn
from structmax.nn.attention import AbstractAttention
from structmax.nn.structured_attention import Pairs, StructuredAttention
from structmax.structures.matching import Matching


class SinkhornAttention(StructuredAttention):
    """Multi-head attention whose weights are `structmax.sinkhorn` of the scores: a soft matching of queries and keys.

    The weights of every query and of every key sum to 1; if there are more of one, each of those sums to at most 1. So
    no key is read by all queries, and none is ignored. The arguments of a call are those of `StructuredAttention`.

    Args:
        size: of queries, keys, values and outputs; the heads share it evenly.
        heads: how many.
        temperature: a number > 0; weights tend to the best matching as it falls.
        dropout: the share of weights that training leaves out; the weights that are returned are whole.

    Examples:
        >>> import torch, structmax
        >>> attention = structmax.nn.SinkhornAttention(16, heads=2)
        >>> weights = attention(torch.randn(3, 5, 16)).weights
        >>> [weights.sum(dim).allclose(torch.ones(3, 2, 5), atol=1e-4) for dim in (-1, -2)]
        [True, True]

    Reference: Mena, Belanger, Linderman & Snoek 2018, https://arxiv.org/abs/1802.08665; Sander, Ablin, Blondel & Peyré
    2022, https://arxiv.org/abs/2110.11773.
    """

    def __init__(self, size: int, heads: int = 1, temperature: float = 1.0, *, dropout: float = 0.0) -> None:
        check.positive("temperature", temperature)
        answer = functools.partial(_soft_matching, temperature=temperature)
        super().__init__(size, Pairs(Matching), answer, heads, dropout=dropout)
        self.temperature = temperature

    def extra_repr(self) -> str:
        return f"{AbstractAttention.extra_repr(self)}, temperature={self.temperature}"


def _soft_matching(scores: Tensor, matching: Matching, temperature: float) -> Tensor:
    return sinkhorn(scores, matching, temperature=temperature).marginals
