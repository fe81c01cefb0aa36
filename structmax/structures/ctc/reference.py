"""Connectionist temporal classification as a recursion, from which every question is answered. Derivation: README.md.

Functions take scores (B, T, V), labels (B, L), label_lengths (B,), lengths (B,) and the number of the blank.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion

# The empty string, and what cannot be derived: labels without a frame.
EMPTY, NOTHING = 0, 1
# The labels make the edges: an engine that prepares tables of them would do so for each batch.
EDGES_OF_VALUES = True


def recursion(scores: Tensor, labels: Tensor, label_lengths: Tensor, lengths: Tensor, blank: int) -> Recursion:
    """Nodes for the states of each frame, and for strings that end there, of each label sequence in the batch.

    Which symbol a state has, and whether the one before its blank may be followed at once, depends on the labels: each
    different sequence has nodes of its own, so that a part is a symbol at a frame, whichever states have it.
    """
    T, V = scores.shape[1:]
    L = labels.shape[1]
    S = 2 * L + 1
    counts = label_lengths.cpu().unsqueeze(1)
    padded = torch.where(torch.arange(L) < counts, labels.cpu(), -1)
    sequences, which = torch.cat([counts, padded], 1).unique(dim=0, return_inverse=True)
    K, count, sequences = len(sequences), sequences[:, 0], sequences[:, 1:]
    # (K, S): the symbol of each state, whether there is such a state, and whether it may follow the one two before
    symbol = torch.full((K, S), blank)
    symbol[:, 1::2] = sequences
    exists = torch.arange(S) <= 2 * count.unsqueeze(1)
    skips = torch.zeros(K, S, dtype=torch.bool)
    skips[:, 3::2] = sequences[:, 1:] != sequences[:, :-1]

    k, t, s = (i.flatten() for i in torch.meshgrid(torch.arange(K), torch.arange(T), torch.arange(S), indexing="ij"))
    # the first frame in which a state can be: one after the other, unless it follows the one two before
    early = torch.zeros(K, S, dtype=torch.int64)
    for later in range(2, S):
        early[:, later] = 1 + torch.where(skips[:, later], early[:, later - 2], early[:, later - 1])
    usable = exists[k, s] & (t >= early[k, s])
    k, t, s = (i[usable] for i in (k, t, s))
    first_node = NOTHING + 1 + k * T * (S + 1)
    state, part = first_node + t * S + s, t * V + symbol[k, s]
    # The ways into a state: from two before it, from the one before, from itself; in the first frame from nowhere.
    edges = [(torch.tensor([EMPTY]), torch.tensor([-1]), torch.tensor([-1]))]
    for back, allowed in ((2, skips[k, s]), (1, s >= 1), (0, s >= 0)):
        here = allowed & (t > 0)
        edges.append((state[here], state[here] - S - back, part[here]))
    here = (t == 0) & (s <= 1)
    edges.append((state[here], torch.full_like(state[here], -1), part[here]))
    # A string ends in the last label or in the blank behind it.
    here = s >= 2 * count[k] - 1
    final = first_node + T * S + t
    edges.append((final[here], state[here], torch.full_like(state[here], -1)))
    head, tail, part = (torch.cat(column) for column in zip(*edges, strict=True))
    nodes = NOTHING + 1 + K * T * (S + 1)
    goal = NOTHING + 1 + which * T * (S + 1) + T * S + lengths.cpu() - 1
    without_frames = torch.where(label_lengths == 0, EMPTY, NOTHING).cpu()
    goal = torch.where(lengths.cpu() > 0, goal, without_frames)
    return Recursion(Hyperedges.of(head, tail.unsqueeze(1), part.unsqueeze(1), nodes), goal)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls of all compiled functions."""
    scores, one = x.new_zeros(1, 2, 2), torch.ones(1, dtype=torch.int64, device=x.device)
    given = {"labels": one.unsqueeze(1), "label_lengths": one, "lengths": 2 * one, "blank": 0}
    for name in ("log_partition", "log_partition_and_marginals", "argmax"):
        yield name, (scores,), given
    yield "marginals_jvp", (scores, scores), given
    yield "sample", (scores,), {"noise": x.new_zeros(1, 1, 2), **given}
