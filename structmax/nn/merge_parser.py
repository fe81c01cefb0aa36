"""A policy over trees that are built from the leaves up, merge by merge.

    p(tree and order) = Π_t softmax over neighbours of ⟨q, h(pair)⟩

Drawing goes step by step, and composes only the two pairs that each merge makes. What was drawn tells all pairs that
were ever neighbours: their scores, under whatever the parameters are by then, are asked all at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from structmax import incremental
from structmax.nn.binary_tree_lstm import BinaryTreeLSTM
from structmax.nn.pyramid_tree_lstm import Chooser
from structmax.nn.tree_cell import State


class Derivation(NamedTuple):
    """How trees were built. K pairs of an instance were neighbours at some time; pair −1 is none."""

    # (B, N, N), parts of a BinaryTree
    spans: Tensor
    # (B, K, 3): first leaf, last leaf of the left half, last leaf of the right half
    pairs: Tensor
    # (B, N − 1, N − 1): the pairs that were neighbours at each step
    choices: Tensor
    # (B, N − 1): which of them was merged; −1 when all was done
    chosen: Tensor


class Steps(NamedTuple):
    """Of each step, (B, N − 1): log p of what was chosen, and the entropy of the choice; 0 when all was done."""

    log_probs: Tensor
    entropies: Tensor


class MergeParser(nn.Module):
    """Draws binary trees by merging neighbours, with probabilities that a policy gradient can follow.

    Args:
        input_size: D, features of a leaf.
        hidden_size: H, of a state.

    Example:
        >>> import torch, structmax
        >>> _ = torch.manual_seed(0)
        >>> parser, words = structmax.nn.MergeParser(4, 3), torch.randn(2, 5, 4)
        >>> drawn = parser.derive(words, torch.tensor([5, 3]), structmax.incremental.sample)
        >>> parser(words, drawn).log_probs.sum(-1).shape
        torch.Size([2])

    Reference: Havrylov, Kruszewski & Joulin 2019, Cooperative learning of disjoint syntax and semantics,
    https://arxiv.org/abs/1902.09393.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.tree = BinaryTreeLSTM(input_size, hidden_size)
        self.query = nn.Linear(hidden_size, 1, bias=False)

    @torch.no_grad()
    def derive(self, inputs: Tensor, lengths: Tensor, choose: Chooser) -> Derivation:
        """Builds trees.

        Args:
            inputs: the leaves, (B, N, D).
            lengths: the number of leaves of each instance, (B,), at least 1.
            choose: from scores (B, K) of K pairs, and whether each is there (B, K), to one-hot choices (B, K):
                `structmax.incremental.sample` or `greedy`.
        """
        B, N = inputs.shape[:2]
        device = inputs.device
        place = torch.arange(N, device=device)
        row = torch.arange(B, device=device)
        left = lengths.to(device)
        inside = place < left.unsqueeze(-1)
        h, c = self.tree.leaves(inputs.masked_fill(~inside.unsqueeze(-1), 0.0))
        # of each tree in the layer: its borders; of each pair: its number, its state, its score
        first = place.expand(B, N)
        last = first
        number = place[:-1].expand(B, N - 1)
        pair_h, pair_c = self.tree.compose(State(h[:, :-1], c[:, :-1]), State(h[:, 1:], c[:, 1:]))
        scores = self.query(pair_h).squeeze(-1)
        spans = torch.diag_embed(inside.to(h.dtype))
        pairs = torch.full((B, 3 * N, 3), -1, device=device)
        pairs[:, : N - 1] = torch.stack([first[:, :-1], last[:, :-1], last[:, 1:]], -1)
        choices = torch.full((B, N - 1, N - 1), -1, device=device)
        chosen = torch.full((B, N - 1), -1, device=device)
        for step in range(N - 1):
            count = N - 1 - step
            there = place[1 : count + 1] < left.unsqueeze(-1)
            action = choose(scores, there)
            going = action.any(-1)
            at = action.argmax(-1)
            choices[:, step, :count] = torch.where(there, number, -1)
            chosen[:, step] = torch.where(going, at, -1)
            spans[row, first[row, at], last[row, at + 1]] += going.to(h.dtype)
            left = left - going.long()
            # Trees behind the merge move up; where nothing is left to merge, all stay.
            moved = place[:count] + ((place[:count] > at.unsqueeze(-1)) & going.unsqueeze(-1))
            merged_h, merged_c = pair_h[row, at], pair_c[row, at]
            last = last.gather(1, moved + (place[:count] == at.unsqueeze(-1)) * going.unsqueeze(-1).long())
            first = first.gather(1, moved)
            h, c = (t.gather(1, moved.unsqueeze(-1).expand(-1, -1, t.shape[-1])) for t in (h, c))
            h[row, at] = torch.where(going.unsqueeze(-1), merged_h, h[row, at])
            c[row, at] = torch.where(going.unsqueeze(-1), merged_c, c[row, at])
            if count == 1:
                break
            # So do pairs. Two are new: the one before the merged tree, and the one that begins with it.
            moved = moved[:, : count - 1]
            number, scores = number.gather(1, moved), scores.gather(1, moved)
            pair_h, pair_c = (t.gather(1, moved.unsqueeze(-1).expand(-1, -1, t.shape[-1])) for t in (pair_h, pair_c))
            new = torch.stack([at - 1, at], -1)
            exists = (new >= 0) & (new < count - 1) & going.unsqueeze(-1)
            new = new.clamp(0, count - 2)
            both = row.unsqueeze(-1)
            made = self.tree.compose(State(h[both, new], c[both, new]), State(h[both, new + 1], c[both, new + 1]))
            numbers = N - 1 + 2 * step + torch.arange(2, device=device).expand(B, 2)
            borders = torch.stack([first[both, new], last[both, new], last[both, new + 1]], -1)
            pairs[both, numbers] = torch.where(exists.unsqueeze(-1), borders, -1)
            # one after the other: at the edge both may stand for the same place, and only one exists
            for k in range(2):
                where, is_there = new[:, k], exists[:, k]
                number = number.clone()
                number[row, where] = torch.where(is_there, numbers[:, k], number[row, where])
                value = self.query(made.h[:, k]).squeeze(-1)
                scores[row, where] = torch.where(is_there, value, scores[row, where])
                pair_h[row, where] = torch.where(is_there.unsqueeze(-1), made.h[:, k], pair_h[row, where])
                pair_c[row, where] = torch.where(is_there.unsqueeze(-1), made.c[:, k], pair_c[row, where])
        return Derivation(spans, pairs, choices, chosen)

    def forward(self, inputs: Tensor, derivation: Derivation) -> Steps:
        """How probable each merge of derivations is, with its gradient.

        Args:
            inputs: the leaves, (B, N, D).
            derivation: as `derive` returns it, under these parameters or others.
        """
        spans, pairs, choices, chosen = derivation
        levels, states = self.tree.by_level(inputs, spans)
        place = torch.zeros(spans.shape, dtype=torch.long, device=spans.device)
        place[levels.row, levels.first, levels.last] = torch.arange(len(levels.row), device=spans.device)
        instance, which = (pairs[..., 0] >= 0).nonzero(as_tuple=True)
        first, middle, last = pairs[instance, which].unbind(-1)
        halves = place[instance, first, middle], place[instance, middle + 1, last]
        made = self.tree.compose(*(State(states.h[half], states.c[half]) for half in halves))
        found = self.query(made.h).squeeze(-1)
        scores = found.new_zeros(pairs.shape[:2]).index_put((instance, which), found)
        there = choices >= 0
        options = scores.unsqueeze(1).expand(-1, choices.shape[1], -1).gather(-1, choices.clamp_min(0))
        log_p = incremental.log_probs(options, there)
        done = chosen < 0
        own = log_p.gather(-1, chosen.clamp_min(0).unsqueeze(-1)).squeeze(-1).masked_fill(done, 0.0)
        finite = log_p.masked_fill(~there, 0.0)
        return Steps(own, -(finite.exp() * finite).sum(-1).masked_fill(done, 0.0))
