"""A policy over trees that are built from the leaves up, merge by merge.

    p(tree and order) = Π_t softmax over neighbours of ⟨q, h(pair)⟩

Drawing goes step by step, and composes only the two pairs that each merge makes. What was drawn tells all pairs that
were ever neighbours: their scores, under whatever the parameters are by then, are asked all at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from structmax import incremental
from structmax.incremental import Chooser
from structmax.nn.binary_tree_lstm import BinaryTreeLSTM
from structmax.nn.leaves import count_leaves
from structmax.nn.tree_cell import State


class Derivation(NamedTuple):
    """How trees were built. K pairs of an instance were neighbours at some time; pair −1 is none."""

    # (…, N, N), parts of a BinaryTree
    spans: Tensor
    # (…, K, 3): first leaf, last leaf of the left half, last leaf of the right half
    pairs: Tensor
    # (…, N − 1, N − 1): the pairs that were neighbours at each step
    choices: Tensor
    # (…, N − 1): which of them was merged; −1 when all was done
    chosen: Tensor


class Steps(NamedTuple):
    """Of each step, (…, N − 1): log p of what was chosen, and the entropy of the choice; 0 when all was done."""

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
    def derive(self, inputs: Tensor, lengths: Tensor | None, choose: Chooser) -> Derivation:
        """Builds trees.

        Args:
            inputs: the leaves, (…, N, D), with any leading batch dimensions, B instances in all.
            lengths: the number of leaves of each instance, at most N; integers that broadcast to the batch. None for N.
            choose: from scores (B, K) of K pairs, and whether each is there (B, K), to one-hot choices (B, K):
                `structmax.incremental.sample` or `greedy`.
        """
        counts = count_leaves("inputs", inputs, lengths, self.tree.input_size)
        batch, B, N, device = counts.shape, counts.numel(), inputs.shape[-2], inputs.device
        place, row = torch.arange(N, device=device), torch.arange(B, device=device)
        left = counts.reshape(B)
        inside = place < left.unsqueeze(-1)
        # Nodes are the leaves, then what each step makes; a layer is a list of their numbers, so that nothing moves.
        leaves = self.tree.leaves(inputs.reshape(B, N, inputs.shape[-1]).masked_fill(~inside.unsqueeze(-1), 0.0))
        nodes = State(*(torch.cat([t, t.new_zeros(B, N - 1, t.shape[-1])], 1) for t in leaves))
        first, last = (torch.cat([place, place.new_zeros(N - 1)]).repeat(B, 1) for _ in range(2))
        layer = place.repeat(B, 1)
        # So are pairs: those of leaves, then two of each step, before the new node and behind it.
        made = self.tree.compose(*(State(*(t[:, at] for t in leaves)) for at in (slice(-1), slice(1, None))))
        known = State(*(torch.cat([t, t.new_zeros(B, 2 * (N - 1), t.shape[-1])], 1) for t in made))
        scores = self._scores(known)
        pairs = torch.full((B, 3 * (N - 1), 3), -1, device=device)
        pairs[:, : N - 1] = torch.where(inside[:, 1:, None], torch.stack([place[:-1], place[:-1], place[1:]], -1), -1)
        options = place[:-1].repeat(B, 1)
        choices = torch.full((B, N - 1, N - 1), -1, device=device)
        chosen = torch.full((B, N - 1), -1, device=device)
        for step in range(N - 1):
            count = N - 1 - step
            there = place[1 : count + 1] < left.unsqueeze(-1)
            action = choose(scores.gather(1, options), there)
            going, at = action.any(-1), action.argmax(-1)
            choices[:, step, :count] = torch.where(there, options, -1)
            chosen[:, step] = torch.where(going, at, -1)
            left = left - going.long()
            # the new node
            for node, pair in zip(nodes, known, strict=True):
                node[:, N + step] = pair[row, options[row, at]]
            first[:, N + step] = first[row, layer[row, at]]
            last[:, N + step] = last[row, layer[row, at + 1]]
            # What is behind it moves up; where nothing is left to merge, all stay.
            moved = place[:count] + ((place[:count] > at.unsqueeze(-1)) & going.unsqueeze(-1))
            layer = layer.gather(1, moved)
            layer[row, at] = torch.where(going, N + step, layer[row, at])
            if count == 1:
                break
            # the new pairs, with a place behind all others for one that does not exist
            begins = torch.stack([at - 1, at], -1)
            exists = (begins >= 0) & (begins + 1 < left.unsqueeze(-1)) & going.unsqueeze(-1)
            new = slice(N - 1 + 2 * step, N + 1 + 2 * step)
            numbers = torch.arange(new.start, new.stop, device=device).expand(B, 2)
            options = options.gather(1, moved.clamp_max(count - 1)).scatter(
                1, torch.where(exists, begins, count - 1), numbers
            )[:, :-1]
            begins = begins.clamp(0, count - 2)
            halves = [layer.gather(1, begins + k) for k in range(2)]
            made = self.tree.compose(*(State(*(t[row.unsqueeze(-1), half] for t in nodes)) for half in halves))
            for pair, state in zip(known, made, strict=True):
                pair[:, new] = state
            scores[:, new] = self._scores(made)
            borders = [first.gather(1, halves[0]), last.gather(1, halves[0]), last.gather(1, halves[1])]
            pairs[:, new] = torch.stack(borders, -1).masked_fill(~exists.unsqueeze(-1), -1)
        spans = torch.diag_embed(inside.to(nodes.h.dtype))
        is_merged = (chosen >= 0).to(spans.dtype)
        spans.index_put_((row.unsqueeze(-1), first[:, N:], last[:, N:]), is_merged, accumulate=True)
        return Derivation(*(t.reshape(*batch, *t.shape[1:]) for t in (spans, pairs, choices, chosen)))

    def forward(self, inputs: Tensor, derivation: Derivation) -> Steps:
        """How probable each merge of derivations is, with its gradient.

        Args:
            inputs: the leaves, (…, N, D).
            derivation: as `derive` returns it, under these parameters or others.
        """
        batch = count_leaves("inputs", inputs, None, self.tree.input_size).shape
        if derivation.spans.shape[:-1] != inputs.shape[:-1]:
            raise ValueError(
                f"`derivation` should be of the leaves of `inputs` {tuple(inputs.shape)}, but its spans have shape "
                f"{tuple(derivation.spans.shape)}. Try the one that `derive` makes of them."
            )
        spans, pairs, choices, chosen = (t.reshape(batch.numel(), *t.shape[len(batch) :]) for t in derivation)
        inputs = inputs.reshape(batch.numel(), *inputs.shape[-2:])
        levels, states = self.tree.by_level(inputs, spans)
        place = torch.zeros(spans.shape, dtype=torch.long, device=spans.device)
        place[levels.row, levels.first, levels.last] = torch.arange(len(levels.row), device=spans.device)
        instance, which = (pairs[..., 0] >= 0).nonzero(as_tuple=True)
        first, middle, last = pairs[instance, which].unbind(-1)
        halves = place[instance, first, middle], place[instance, middle + 1, last]
        made = self.tree.compose(*(State(states.h[half], states.c[half]) for half in halves))
        found = self._scores(made)
        scores = found.new_zeros(pairs.shape[:2]).index_put((instance, which), found)
        there = choices >= 0
        options = scores.unsqueeze(1).expand(-1, choices.shape[1], -1).gather(-1, choices.clamp_min(0))
        log_p = incremental.log_probs(options, there)
        done = chosen < 0
        own = log_p.gather(-1, chosen.clamp_min(0).unsqueeze(-1)).squeeze(-1).masked_fill(done, 0.0)
        finite = log_p.masked_fill(~there, 0.0)
        entropies = -(finite.exp() * finite).sum(-1).masked_fill(done, 0.0)
        return Steps(*(t.reshape(*batch, t.shape[-1]) for t in (own, entropies)))

    def _scores(self, pairs: State) -> Tensor:
        """⟨q, h⟩ of pairs. Not under autocast: log-probabilities are summed over all steps."""
        with torch.autocast(pairs.h.device.type, enabled=False):
            return self.query(pairs.h).squeeze(-1)
