"""Trees built from the leaves up: of all neighbours, two are chosen and merged, until one is left."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from structmax import incremental
from structmax.incremental import Chooser
from structmax.nn.binary_tree_lstm import BinaryTreeLSTM
from structmax.nn.leaves import count_leaves
from structmax.nn.tree_cell import State, liking
from structmax.outline import outline


class Pyramid(NamedTuple):
    """What was built: the state of the whole (…, H), and the tree as parts of a `BinaryTree` (…, N, N)."""

    root: Tensor
    spans: Tensor

    def __repr__(self) -> str:
        return outline(self)


class PyramidTreeLSTM(nn.Module):
    """A Tree-LSTM that chooses its tree: at each layer the neighbours with the best score merge.

        a = choose(⟨q, h(pair)⟩ of all pairs)          next layer = left of a, the pair, right of a

    The choice is one-hot forward; backward it has the gradient of a softmax, so that q and what is below learn from
    the loss of the root.

    Args:
        input_size: D, features of a leaf.
        hidden_size: H, of a state.

    Examples:
        >>> import torch, structmax
        >>> _ = torch.manual_seed(0)
        >>> pyramid = structmax.nn.PyramidTreeLSTM(4, 3)
        >>> built = pyramid(torch.randn(2, 5, 4), torch.tensor([5, 3]))
        >>> built.root.shape
        torch.Size([2, 3])
        >>> structmax.BinaryTree().decode(built.spans[1]).tolist()[:5]
        [[0, 2], [0, 1], [0, 0], [1, 1], [2, 2]]

    Reference: Choi, Yoo & Lee 2018, Learning to compose task-specific tree structures, https://arxiv.org/abs/1707.02786.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.tree = BinaryTreeLSTM(input_size, hidden_size)
        self.query = nn.Parameter(torch.randn(hidden_size) * 0.01)

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        *,
        choose: Chooser | None = None,
        generator: torch.Generator | None = None,
    ) -> Pyramid:
        """Builds trees.

        Args:
            inputs: the leaves, (…, N, D), with any leading batch dimensions, B instances in all.
            lengths: the number of leaves of each instance, at most N; integers that broadcast to the batch. N by
                default. Without leaves the state and the tree are zeros.
            choose: from scores (B, K) of K pairs, and whether each is there (B, K), to one-hot choices (B, K): one of
                `structmax.incremental`. By default `gumbel` in training and `greedy` in evaluation.
            generator: random number generator of the default.
        """
        counts = count_leaves("inputs", inputs, lengths, self.tree.input_size)
        batch, B, N = counts.shape, counts.numel(), inputs.shape[-2]
        if choose is None:
            choose = functools.partial(incremental.gumbel, generator=generator) if self.training else incremental.greedy
        place = torch.arange(N, device=inputs.device)
        left = counts.reshape(B)
        inside = place < left.unsqueeze(-1)
        # Padding may hold anything.
        layer = self.tree.leaves(inputs.reshape(B, N, inputs.shape[-1]).masked_fill(~inside.unsqueeze(-1), 0.0))
        spans = torch.diag_embed(inside.to(layer.h.dtype))
        row = torch.arange(B, device=inputs.device)
        first = place.expand(B, N)
        last = first
        for count in range(N - 1, 0, -1):
            pairs = self.tree.compose(_at(layer, slice(count)), _at(layer, slice(1, count + 1)))
            there = place[1 : count + 1] < left.unsqueeze(-1)
            action = choose(liking(self.query, pairs), there)
            after = action.cumsum(-1) - action
            layer = State(*(_mixed(action, after, old, new) for old, new in zip(layer, pairs, strict=True)))
            # the same for the borders of spans, where it is exact
            chosen, passed = action.detach() > 0.5, after.detach() > 0.5
            spans[row, (first[:, :-1] * chosen).sum(-1), (last[:, 1:] * chosen).sum(-1)] = 1.0
            first = torch.where(passed, first[:, 1:], first[:, :-1])
            last = torch.where(passed | chosen, last[:, 1:], last[:, :-1])
            left = left - chosen.any(-1).long()
        root, spans = layer.h[:, 0].masked_fill(~inside[:, :1], 0.0), spans * inside[:, :1, None]
        return Pyramid(root.reshape(*batch, root.shape[-1]), spans.reshape(*batch, N, N))


def _at(states: State, where: slice) -> State:
    return State(*(t[:, where] for t in states))


def _mixed(action: Tensor, after: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """One state fewer: the old ones before the action, the new one at it, and the old ones behind it moved up."""
    a, b = action.unsqueeze(-1), after.unsqueeze(-1)
    before = 1 - a - b
    return torch.addcmul(before * old[:, :-1], a, new).addcmul(b, old[:, 1:])
