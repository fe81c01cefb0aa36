"""Arcs of trees over the words of a sentence: arc[h, m] is h as the head of m, node 0 is the root, words are 1 … N.

Column 0 and the diagonal are ignored: the root has no head, and no word is its own. With labels there is one more
dimension, the last.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from structmax import check
from structmax.contract import Scores

PADDED = " Try `lengths` to tell words from padding."


class ArcConventions:
    """Scores in the orders other libraries keep them, to and from arc[h, m] with the root as node 0."""

    @staticmethod
    def from_root_on_diagonal(scores: Tensor) -> Tensor:
        """Arcs (…, N + 1, N + 1) of scores (…, N, N) over words alone, with the root's arcs on the diagonal.

        Examples:
            >>> import torch, structmax
            >>> structmax.SpanningTree.from_root_on_diagonal(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            tensor([[0., 1., 4.],
                    [0., 0., 2.],
                    [0., 3., 0.]])
        """
        root = scores.diagonal(dim1=-2, dim2=-1)
        words = scores.masked_fill(_diagonal(scores), 0.0)
        return torch.nn.functional.pad(torch.cat([root.unsqueeze(-2), words], -2), (1, 0))

    @staticmethod
    def to_root_on_diagonal(arc: Tensor) -> Tensor:
        """The inverse: (…, N, N) of arcs (…, N + 1, N + 1), scores or parts.

        Examples:
            >>> import torch, structmax
            >>> scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
            >>> arc = structmax.SpanningTree.from_root_on_diagonal(scores)
            >>> torch.equal(structmax.SpanningTree.to_root_on_diagonal(arc), scores)
            True
        """
        words = arc[..., 1:, 1:]
        return torch.where(_diagonal(words), arc[..., :1, 1:], words)

    @staticmethod
    def from_dependent_first(scores: Tensor) -> Tensor:
        """Arcs (…, N + 1, N + 1) of scores [m, h], a row for each dependent; its own way back.

        Examples:
            >>> import torch, structmax
            >>> structmax.SpanningTree.from_dependent_first(torch.tensor([[0.0, 0.0], [5.0, 0.0]]))
            tensor([[0., 5.],
                    [0., 0.]])
        """
        return scores.transpose(-1, -2)


def _diagonal(square: Tensor) -> Tensor:
    return torch.eye(square.shape[-1], dtype=torch.bool, device=square.device)


# --- arcs of N words -----------------------------------------------------------------------------------------------


def check_arcs(structure: str, scores: Scores, labelled: bool, size: str, rows: str) -> None:
    """One square tensor, with labels or without; its `size` and what its `rows` are go into the message."""
    shape = f"(…, {size}, {size}, L)" if labelled else f"(…, {size}, {size})"
    if not isinstance(scores, Tensor):
        raise TypeError(f"`scores` of a {structure} should be one tensor {shape}, but are a {type(scores).__name__}.")
    if not _fits(scores, labelled):
        other = f" Try labelled={not labelled}." if _fits(scores, not labelled) else ""
        raise ValueError(
            f"`scores` of a {structure} with labelled={labelled} should have shape {shape}, {rows}, "
            f"but have {tuple(scores.shape)}.{other}"
        )


def _fits(scores: Tensor, labelled: bool) -> bool:
    event = scores.shape[-2 - labelled :]
    return len(event) == 2 + labelled and event[0] == event[1] >= 1 and event[-1] >= 1


def decode_arcs(parts: Tensor, labelled: bool) -> Tensor | tuple[Tensor, Tensor]:
    """The head of each word, 0 for the root, −1 if it has none: (…, N), word m at m − 1. And labels if `labelled`."""
    arc = (parts.sum(-1) if labelled else parts)[..., 1:]
    some = arc.sum(-2) > 0
    heads = torch.where(some, arc.argmax(-2), -1)
    if not labelled:
        return heads
    return heads, torch.where(some, parts.sum(-3)[..., 1:, :].argmax(-1), -1)


def encode_arcs(
    heads: Tensor, labelled: bool, labels: Tensor | None, count: int | None, lengths: Tensor | None
) -> Tensor:
    """Parts (…, N + 1, N + 1) of heads (…, N). With labels (…, N), of which `count` there are: a last dimension.

    Words past the length may have any.
    """
    check.whole_numbers("heads", heads)
    N = heads.shape[-1]
    last = N if lengths is None else lengths.to(heads.device).unsqueeze(-1)
    valid = (heads >= 0) & (heads <= last) & (heads != torch.arange(1, N + 1, device=heads.device))
    real = check.inside(lengths, N, heads)
    wanted = f"lie between 0, the root, and {N}, the last word, or the length, and be another than the word itself"
    here = check.encodable("heads", heads, valid, real, wanted, PADDED)
    arc = _one_hot(heads, here, N + 1).transpose(-1, -2)
    if not labelled:
        return arc
    if labels is None or count is None:
        raise ValueError(
            "`encode` of labelled trees should be given heads, labels and how many labels there are. "
            "Try `encode(heads, labels, count)`."
        )
    return arc.unsqueeze(-1) * _one_hot(labels, _named(labels, count, real), count).unsqueeze(-3)


def _named(labels: Tensor, count: int, real: Tensor | None) -> Tensor:
    """Which labels count."""
    check.whole_numbers("labels", labels)
    valid = (labels >= 0) & (labels < count)
    return check.encodable("labels", labels, valid, real, f"lie between 0 and {count - 1}", PADDED)


def _one_hot(index: Tensor, here: Tensor, size: int) -> Tensor:
    """Row m has a 1 at index[m − 1] if that is `here`, row 0 has none: (…, N + 1, size)."""
    rows = torch.nn.functional.pad(torch.where(here, index, -1), (1, 0), value=-1)
    return (rows.unsqueeze(-1) == torch.arange(size, device=index.device)).to(torch.get_default_dtype())


def usable(size: int, lengths: Tensor) -> Tensor:
    """Which arcs an instance can use: from any node to a word, not to itself, none past its length. (B, size, size)."""
    node = torch.arange(size, device=lengths.device)
    inside = node <= lengths.unsqueeze(-1)
    return inside.unsqueeze(-1) & inside.unsqueeze(-2) & (node > 0) & (node.unsqueeze(-1) != node)


def is_projective_tree(heads: Sequence[int], single_root: bool) -> bool:
    """Whether the heads of words 1, 2, … make a projective tree, by definition."""

    def governors(m: int) -> list[int]:
        """m, its head, the head of that, and so on to the root; or as far as n steps lead in a circle."""
        path = [m]
        while path[-1] != 0 and len(path) <= len(heads):
            path.append(heads[path[-1] - 1])
        return path

    arcs = [(h, m) for m, h in enumerate(heads, 1)]
    is_tree = all(governors(m)[-1] == 0 for m in range(1, len(heads) + 1))
    is_projective = all(h in governors(k) for h, m in arcs for k in range(min(h, m) + 1, max(h, m)))
    return is_tree and is_projective and (not single_root or heads.count(0) == min(1, len(heads)))


# --- edges of an undirected graph ----------------------------------------------------------------------------------
#
# A spanning tree without directions is an arborescence from node 0, read without them: N nodes are a root and N − 1
# words. Edge {i, j} stands at [i, j] with i < j; the rest of the square is ignored.


def as_arcs(scores: Tensor, lengths: Tensor, directed: bool) -> tuple[Tensor, Tensor]:
    """Arcs (B, N, N) or (B, N, N, L) and the number of words; for undirected scores both directions of each edge."""
    if directed:
        return scores, lengths
    upper = _upper(scores, scores.dim() == 4)
    return torch.where(upper, scores, scores.transpose(1, 2)), (lengths - 1).clamp_min(0)


def from_arcs(parts: Tensor, directed: bool, labelled: bool) -> Tensor:
    """The inverse for parts (…, N, N) or (…, N, N, L): both directions of an edge added up, zeros elsewhere."""
    if directed:
        return parts
    both = parts + parts.transpose(-2 - labelled, -1 - labelled)
    return torch.where(_upper(parts, labelled), both, 0.0)


def _upper(square: Tensor, labelled: bool) -> Tensor:
    node = torch.arange(square.shape[-1 - labelled], device=square.device)
    upper = node.unsqueeze(-1) < node
    return upper.unsqueeze(-1) if labelled else upper


def decode_edges(parts: Tensor, labelled: bool) -> Tensor | tuple[Tensor, Tensor]:
    """The edges (…, N − 1, 2) of parts (…, N, N), in order, rows of −1 past the last. And labels if `labelled`."""
    square = parts.sum(-1) if labelled else parts
    nodes = square.shape[-1]
    some, place = (square > 0).flatten(-2).to(torch.int8).sort(dim=-1, descending=True, stable=True)
    some, place = some[..., : nodes - 1, None] > 0, place[..., : nodes - 1, None]
    edges = torch.where(some, torch.cat([place // nodes, place % nodes], -1), -1)
    if not labelled:
        return edges
    labels = parts.argmax(-1).flatten(-2).unsqueeze(-1).gather(-2, place)
    return edges, torch.where(some, labels, -1).squeeze(-1)


def encode_edges(
    edges: Tensor, labelled: bool, labels: Tensor | None, count: int | None, lengths: Tensor | None
) -> Tensor:
    """Parts (…, N, N) of edges (…, N − 1, 2). With labels (…, N − 1), of which `count` there are: a last dimension.

    Edges past those of n nodes, the first n − 1, may hold anything.
    """
    check.whole_numbers("edges", edges)
    N = edges.shape[-2] + 1
    last = N if lengths is None else lengths.to(edges.device)[..., None, None]
    valid = ((edges >= 0) & (edges < last)).all(-1) & (edges[..., 0] != edges[..., 1])
    real = check.inside(None if lengths is None else lengths - 1, N - 1, edges)
    wanted = f"join two nodes from 0 to {N - 1}, below the length"
    here = check.encodable("edges", edges, valid, real, wanted, PADDED, columns=True)
    nodes = torch.arange(N, device=edges.device)
    found = here[..., None, None] & (edges.sort(-1).values.unsqueeze(-1) == nodes)
    ends = found.to(torch.get_default_dtype())
    if not labelled:
        return torch.einsum("...ei,...ej->...ij", ends[..., 0, :], ends[..., 1, :])
    if labels is None or count is None:
        raise ValueError(
            "`encode` of labelled trees should be given edges, labels and how many labels there are. "
            "Try `encode(edges, labels, count)`."
        )
    chosen = _named(labels, count, real).unsqueeze(-1)
    names = (chosen & (labels.unsqueeze(-1) == torch.arange(count, device=edges.device))).to(ends.dtype)
    return torch.einsum("...ei,...ej,...el->...ijl", ends[..., 0, :], ends[..., 1, :], names)
