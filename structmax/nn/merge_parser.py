"""A policy over trees that are built from the leaves up, merge by merge.

    p(tree and order) = Π_t softmax over neighbours of ⟨q, h(pair)⟩

Drawing goes step by step; after the pairs of leaves, it composes only the two that each merge makes. The result
records all pairs that were ever neighbours, so that their scores, under later parameters, are computed all at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from structmax import incremental
from structmax.incremental import Chooser
from structmax.nn.binary_tree_lstm import BinaryTreeLSTM
from structmax.nn.leaves import count_leaves
from structmax.nn.tree_cell import State, liking
from structmax.outline import outline


class Derivation(NamedTuple):
    """How trees were built. At most K pairs of an instance are neighbours at some time; −1 is none, anywhere."""

    # (…, N, N), parts of a BinaryTree
    spans: Tensor
    # (…, K, 3): first leaf, last leaf of the left half, last leaf of the right half
    pairs: Tensor
    # (…, N − 1, N − 1): which pairs were neighbours at each step; the last dimension is the leaf they met behind
    choices: Tensor
    # (…, N − 1): the leaf behind which a pair was merged; −1 when all was done
    chosen: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Steps(NamedTuple):
    """Of each step, (…, N − 1): log p of what was chosen, and the entropy of the choice; 0 when all was done."""

    log_probs: Tensor
    entropies: Tensor

    def __repr__(self) -> str:
        return outline(self)


class MergeParser(nn.Module):
    """Draws binary trees by merging neighbours, with probabilities that a policy gradient can follow.

    Args:
        input_size: D, features of a leaf.
        hidden_size: H, of a state.

    Examples:
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
            choose: from scores (B, N + 1) and whether there is a pair (B, N + 1) to one-hot choices (B, N + 1), zeros
                where no pair is left: `structmax.incremental.sample` or `greedy`. Column k is the gap before leaf k;
                the outer two never have a pair.
        """
        counts = count_leaves("inputs", inputs, lengths, self.tree.input_size)
        batch, B, N, device = counts.shape, counts.numel(), inputs.shape[-2], inputs.device
        inside = torch.arange(N, device=device) < counts.reshape(B, 1)
        rows = torch.arange(B, device=device).unsqueeze(-1)
        # Leaves lie in slots 1 … N, a node in the slots of its first and its last leaf: what meets at gap k, between
        # slots k and k + 1, are the nodes in those two. `ends` are the first and the last slot of the node in a slot.
        words = inputs.reshape(B, N, inputs.shape[-1]).masked_fill(~inside.unsqueeze(-1), 0.0)
        nodes = torch.cat(self.tree.leaves(nn.functional.pad(words, (0, 0, 1, 1))), -1)
        ends = torch.arange(N + 2, device=device).clamp(1, N).expand(B, 2, -1).mT.contiguous()
        # Of each gap: whether a pair meets there, what it would make, and its number.
        is_open = nn.functional.pad(inside[:, 1:], (1, 1))
        made, scores = self._merged(nodes.unfold(1, 2, 1).mT)
        number = torch.arange(N + 1, device=device).repeat(B, 1)
        # Numbers, gaps and slots that mean something are 1 or more; 0 is none, until 1 is subtracted at the end.
        pairs, choices = number.new_zeros(B, 3 * N - 2, 3), number.new_zeros(B, N - 1, N + 1)
        chosen, merged = number.new_zeros(B, N - 1), number.new_zeros(B, N - 1, 2)
        slot = torch.arange(1, N, device=device)
        pairs[:, 1:N] = torch.where(is_open[:, 1:-1, None], torch.stack([slot, slot, slot + 1], -1), 0)
        before, halves, borders = (torch.tensor(some, device=device) for some in ((1, 0), (0, 1), (0, 1, 3)))
        for step in range(N - 1):
            # When all is done, gap 0 is the first of no choices; what is written then is not used.
            at = choose(scores, is_open).argmax(-1, keepdim=True)
            choices[:, step], chosen[:, step] = torch.where(is_open, number, 0), at.squeeze(-1)
            is_open = is_open.scatter(1, at, False)
            # The new node goes from the first leaf of the left one to the last of the right one.
            outer = ends[rows, at + halves].diagonal(dim1=1, dim2=2)
            merged[:, step] = outer
            nodes[rows, outer], ends[rows, outer] = made[rows, at], outer.unsqueeze(1)
            # In the gaps before it and behind it, new pairs meet.
            gaps = outer - before
            slots = gaps.unsqueeze(-1) + halves
            made[rows, gaps], new_scores = self._merged(nodes[rows.unsqueeze(-1), slots])
            scores = scores.scatter(1, gaps, new_scores)
            new = slice(N + 2 * step, N + 2 * step + 2)
            number[rows, gaps] = torch.arange(new.start, new.stop, device=device)
            # of the two ends of both halves, all but where the right one begins
            met = ends[rows.unsqueeze(-1), slots].flatten(-2)[..., borders]
            pairs[:, new] = torch.where(is_open.gather(1, gaps).unsqueeze(-1), met, 0)
        spans = torch.diag_embed(inside.to(nodes.dtype))
        first, last = (merged - 1).unbind(-1)
        spans.index_put_((rows, first, last), (chosen > 0).to(spans.dtype), accumulate=True)
        built = spans, pairs[:, 1:] - 1, choices[..., 1:-1] - 1, chosen - 1
        return Derivation(*(t.reshape(*batch, *t.shape[1:]) for t in built))

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
                f"{tuple(derivation.spans.shape)}. Try the one that `derive` returns for them."
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

    def _merged(self, halves: Tensor) -> tuple[Tensor, Tensor]:
        """What pairs make, [h; c] (…, 2 H), and its scores (…), from [h; c] of their halves (…, 2, 2 H)."""
        left, right = (State(*half.chunk(2, -1)) for half in halves.unbind(-2))
        made = self.tree.compose(left, right)
        return torch.cat(made, -1), self._scores(made)

    def _scores(self, pairs: State) -> Tensor:
        return liking(self.query.weight.squeeze(0), pairs)
