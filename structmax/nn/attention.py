"""Scaled dot-product attention whose weights are any mapping of the simplex: dense, sparse, bounded, clustered."""

import functools
from abc import ABC
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from structmax import check
from structmax.nn.mappings import named
from structmax.outline import outline


class Attended(NamedTuple):
    """What an attention read, and with which weights."""

    # (…, Q, size)
    output: Tensor
    # (…, heads, Q, K)
    weights: Tensor

    def __repr__(self) -> str:
        return outline(self)


class AbstractAttention(nn.Module, ABC):
    """Projections to the heads and back. Parameters have the names and initial values of torch's MultiheadAttention."""

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        check.whole("size", size, 1)
        check.whole("heads", heads, 1)
        if size % heads:
            raise ValueError(f"`heads` should divide `size` = {size}, but is {heads}.")
        check.positive("dropout", dropout, or_zero=True)
        if dropout > 1:
            raise ValueError(f"`dropout` should be between 0 and 1, but is {dropout}.")
        self.size, self.heads, self.dropout = size, heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(…, N, size) to (…, heads, N, size / heads); the query is scaled."""
        if query is key is value:
            all_three = functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            parameters = zip(self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
            all_three = tuple(functional.linear(x, *p) for x, p in zip((query, key, value), parameters, strict=True))
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for x in all_three)
        return q * q.shape[-1] ** -0.5, k, v

    def read(self, weights: Tensor, v: Tensor) -> Attended:
        """Weights (…, heads, Q, K), of which training leaves some out, times values (…, heads, K, size / heads)."""
        kept = functional.dropout(weights, self.dropout, self.training)
        return Attended(self.out_proj((kept @ v).transpose(-2, -3).flatten(-2)), weights)

    def sequences(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        lengths: Tensor | None,
        query_lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, the latter by default those before them, with zeros past their lengths."""
        others = {name: x for name, x in (("key", key), ("value", value)) if x is not None}
        for name, x in {"query": query, **others}.items():
            if name != "query" and isinstance(x, Tensor) and not x.is_floating_point():
                raise TypeError(
                    f"`{name}` should be floating point, but has dtype {x.dtype}. If these are lengths or a mask, give "
                    "them by name: lengths=… or mask=…."
                )
            check.floating(name, x)
            if x.dim() < 2 or x.shape[-1] != self.size or x.shape[-2] == 0:
                raise ValueError(
                    f"`{name}` should have shape (…, N, {self.size}) with N ≥ 1, but has {tuple(x.shape)}."
                )
            sizes = zip(reversed(x.shape[:-2]), reversed(query.shape[:-2]), strict=False)
            if not all(a == b or 1 in (a, b) for a, b in sizes):
                raise ValueError(
                    f"`{name}` should have a batch that broadcasts with {tuple(query.shape[:-2])}, that of `query`, "
                    f"but has shape {tuple(x.shape)}."
                )
        itself = key is None and query_lengths is None
        query = query if itself else _without_padding("query_lengths", query_lengths, query)
        key = _without_padding("lengths", lengths, query if key is None else key)
        value = key if value is None else _without_padding("lengths", lengths, value)
        if value.shape[-2] != key.shape[-2]:
            raise ValueError(
                f"`value` should have a row for each of the {key.shape[-2]} keys, but has shape {tuple(value.shape)}."
            )
        return key if itself else query, key, value

    def extra_repr(self) -> str:
        return f"{self.size}, heads={self.heads}" + (f", dropout={self.dropout}" if self.dropout else "")


def _without_padding(name: str, lengths: Tensor | None, sequence: Tensor) -> Tensor:
    """Zeros past the lengths: what they hold there, even NaN, reaches no result and gets no gradient."""
    if lengths is None:
        return sequence
    check.lengths(name, lengths, sequence.shape[:-2], sequence.shape[-2], "its items")
    return torch.where(check.prefix(lengths, sequence[..., 0]).unsqueeze(-1), sequence, 0.0)


class Attention(AbstractAttention):
    """Multi-head attention: output = p(Q Kᵀ / √d) V for any mapping p.

    With `Softmax()` it is `torch.nn.MultiheadAttention(size, heads, batch_first=True)`, and loads its state. Sparse
    mappings read few keys, and say exactly which; `Entmax(alpha=Parameter)` learns how few, head by head.

    Args:
        size: of queries, keys, values and outputs; the heads share it evenly.
        heads: how many.
        mapping: "softmax", "sparsemax", "entmax15", "fusedmax" or another by its name, or a module of scores
            (…, heads, Q, K) and a `mask` to weights.
        dropout: the share of weights that training leaves out, as in torch's; the weights that are returned are whole.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Attention(16, heads=4, mapping="entmax15")
        Attention(
          16, heads=4
          (out_proj): Linear(in_features=16, out_features=16, bias=True)
          (mapping): Entmax15(dim=-1)
        )
        >>> mapping = structmax.nn.Entmax(alpha=torch.nn.Parameter(torch.full((4,), 1.5)))
        >>> attention = structmax.nn.Attention(16, heads=4, mapping=mapping)
        >>> output, weights = attention(torch.randn(2, 6, 16), lengths=torch.tensor([6, 3]))
        >>> output.shape, weights.shape
        (torch.Size([2, 6, 16]), torch.Size([2, 4, 6, 6]))
        >>> weights[1, ..., 3:].any()
        tensor(False)

    Reference: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; with learnt alpha Correia, Niculae & Martins 2019,
    https://arxiv.org/abs/1909.00015.
    """

    def __init__(
        self, size: int, heads: int = 1, mapping: nn.Module | str = "softmax", *, dropout: float = 0.0
    ) -> None:
        super().__init__(size, heads, dropout)
        self.mapping = mapping if isinstance(mapping, nn.Module) else named(mapping)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Attended:
        """What each query reads.

        Args:
            query: (…, Q, size), with any leading batch dimensions.
            key: (…, K, size); by default the query: self-attention.
            value: (…, K, size); by default the key.
            lengths: how many keys each instance has, at most K; integers that broadcast to the batch. Entries
                past them have weight and gradient 0, whatever they hold. In self-attention they are the query's too:
                queries past them count as zeros, and their weights sum to 1 like those of the others.
            mask: bool, True where a query may read a key; broadcasts to (…, Q, K). One of keys alone, (B, K), is given
                as `mask[:, None]`.
            causal: whether a query reads no key after its own position.

        Returns:
            `Attended(output, weights)`: (…, Q, size) and (…, heads, Q, K). A query that may read nothing has weights 0.
        """
        query, key, value = self.sequences(query, key, value, lengths, None)
        may = _may_read(query, key, lengths, mask, causal)
        q, k, v = self.projected(query, key, value)
        weights = self.mapping(q @ k.mT, mask=None if may is None else may.unsqueeze(-3))
        return self.read(weights, v)


def _may_read(query: Tensor, key: Tensor, lengths: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor | None:
    """Which query may read which key: bool, broadcasts to (…, Q, K), None for all."""
    Q, K = query.shape[-2], key.shape[-2]
    rules = []
    if lengths is not None:
        rules.append(check.prefix(lengths, key[..., 0]).unsqueeze(-2))
    if mask is not None:
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        hint = " For keys that are padding try mask[:, None], of shape (…, 1, K), or `lengths`."
        check.mask_like("mask", mask, query.new_empty(()).expand(*batch, Q, K), hint)
        rules.append(mask)
    if causal:
        rules.append(torch.ones(Q, K, dtype=torch.bool, device=query.device).tril())
    return torch.atleast_2d(functools.reduce(torch.logical_and, rules)) if rules else None
