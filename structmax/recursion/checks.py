"""What a table of edges promises: all that indexes memory lies inside of it."""

import torch
from torch import Tensor

from structmax import check

# Kernels count nodes and parts in int32.
LARGEST_ID = 2**31 - 1


def hyperedges(nodes: int | None = None, **columns: Tensor | None) -> None:
    """Edges in any order: integers head (E,), tails (E, T) or (E,), parts (E, P) or (E,), with tails before heads.

    Error messages use the given names. Without `nodes`, their number follows from the edges, at least one.
    """
    (head_name, head), (_, tails), _ = columns.items()
    for name, tensor in columns.items():
        if tensor is not None:
            check.whole_numbers(name, tensor)
    assert head is not None
    assert tails is not None
    edges = head.shape[0] if head.dim() else 0
    for name, tensor in columns.items():
        if tensor is None:
            continue
        dims = (1,) if name == head_name else (1, 2)
        if tensor.dim() not in dims or len(tensor) != edges or (nodes is None and not edges):
            shape = "(E,)" if name == head_name else "(E,) or (E, …)"
            each = "of at least one edge" if nodes is None else "edge"
            raise ValueError(
                f"`{name}` should have shape {shape} with one row for each {each}, E = {edges}, "
                f"but has {tuple(tensor.shape)}."
            )
        if name != head_name:
            ids(name, tensor)
    last = LARGEST_ID - 1 if nodes is None else nodes - 1
    wrong = (head.long() < 0) | (head.long() > last)
    if bool(wrong.any()):
        edge = int(wrong.nonzero()[0])
        counted = "" if nodes is None else f", the last of {nodes} nodes"
        raise ValueError(
            f"`{head_name}` should be between 0 and {last}{counted}, but edge {edge} has {int(head[edge])}."
        )
    _in_order(head, tails)


def on_host(**columns: Tensor) -> None:
    for name, tensor in columns.items():
        if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
            raise ValueError(f"`{name}` should be on the CPU, like all edges, but is on {tensor.device}.")


def ids(name: str, given: Tensor) -> None:
    """Numbers of nodes or parts, one row for each edge: at least −1, and small enough for the kernels."""
    given = given.long()
    wrong = (given < -1) | (given >= LARGEST_ID)
    if bool(wrong.any()):
        edge, number = int(wrong.nonzero()[0, 0]), int(given[wrong][0])
        raise ValueError(
            f"`{name}` should be between −1, for none, and {LARGEST_ID - 1}, but edge {edge} has {number}."
        )


def grouped_hyperedges(first: Tensor, tails: Tensor, parts: Tensor) -> None:
    """int32 tensors first (V + 1,), tails (E, T), parts (E, P): edges by head, with tails before heads."""
    for name, tensor in (("first", first), ("tails", tails), ("parts", parts)):
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.int32:
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"`{name}` should be an int32 tensor, but is {kind}. Try Hyperedges.of.")
    on_host(first=first, tails=tails, parts=parts)
    edges = len(tails)
    counts = first.diff()
    shaped = first.dim() == 1 and len(first) and tails.dim() == parts.dim() == 2 and len(parts) == edges
    if not shaped or int(first[0]) != 0 or int(first[-1]) != edges or bool((counts < 0).any()):
        raise ValueError(
            f"heads should be nodes between 0 and {len(first) - 2}, with each of the {edges} edges at one of them, "
            f"but the nodes have {counts.tolist()[:10]} edges. Try Hyperedges.of with all nodes counted."
        )
    for name, tensor in (("tails", tails), ("parts", parts)):
        ids(name, tensor)
    _in_order(torch.arange(len(counts)).repeat_interleave(counts), tails)


def _in_order(head: Tensor, tails: Tensor) -> None:
    rows = tails.unsqueeze(1) if tails.dim() == 1 else tails
    late = (rows >= head.unsqueeze(1)).any(1)
    if bool(late.any()):
        edge = int(late.nonzero()[0])
        raise ValueError(
            f"`tails` should come before `head` in the order of the nodes, but edge {edge} builds node "
            f"{int(head[edge])} from {rows[edge].tolist()}. Number the nodes in the order in which they are computed."
        )


def noise_of_edges(gumbel: Tensor, x: Tensor, tails: Tensor) -> None:
    """A number for each edge of each instance."""
    wanted = len(x), len(tails)
    if gumbel.shape != wanted:
        raise ValueError(
            f"`gumbel` should have shape {wanted}, a number for each edge of each instance, but has "
            f"{tuple(gumbel.shape)}."
        )


SHARED_CHOICE = (
    "`hard` should be False for a recursion whose derivations come to one node several times: it would choose there "
    "once for all of them, and the draw would not be exact. Try GumbelRecursion(hard=False), or ReinMax()."
)
