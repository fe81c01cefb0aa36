"""LSTMs over binary trees, given as parts of a `BinaryTree`."""

import torch
from torch import Tensor, nn

from structmax import check
from structmax.nn.leaves import count_leaves
from structmax.nn.tree_cell import Pair, State
from structmax.nn.tree_chart import Chart
from structmax.nn.tree_levels import ByLevel, Levels


class BinaryTreeLSTM(nn.Module):
    """An LSTM over binary trees, all trees of a batch at once, level by level.

    Args:
        input_size: D, features of a leaf.
        hidden_size: H, of a state.

    Examples:
        >>> import torch, structmax
        >>> _ = torch.manual_seed(0)
        >>> lstm, words, scores = structmax.nn.BinaryTreeLSTM(4, 3), torch.randn(2, 5, 4), torch.randn(2, 5, 5)
        >>> trees = structmax.BinaryTree(torch.tensor([5, 3]))
        >>> lstm(words, structmax.argmax(scores, trees)).shape
        torch.Size([2, 3])
        >>> lstm(words, structmax.marginals(scores, trees), relaxed=True).shape
        torch.Size([2, 3])

    Reference: Tai, Socher & Manning 2015, https://arxiv.org/abs/1503.00075.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        check.whole("input_size", input_size, 1)
        check.whole("hidden_size", hidden_size, 1)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.leaf = nn.Linear(input_size, 2 * hidden_size)
        self.pair = nn.Linear(2 * hidden_size, 5 * hidden_size)
        with torch.no_grad():
            self.pair.bias.zero_()
            # The forget gate starts open.
            self.pair.bias[hidden_size : 3 * hidden_size] = 1.0

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def leaves(self, inputs: Tensor) -> State:
        """The states of single leaves, from inputs (…, D)."""
        # In the precision of the parameters, whatever autocast makes of them.
        return State(*self.leaf(inputs).to(self.pair.weight.dtype).chunk(2, -1))

    def compose(self, left: State, right: State) -> State:
        """The states of pairs."""
        pair = torch.cat([left.h, right.h], -1)
        with torch.autocast(pair.device.type, enabled=False):
            return State(*Pair.apply(pair, left.c, right.c, self.pair.weight, self.pair.bias))

    def forward(self, inputs: Tensor, spans: Tensor, *, relaxed: bool = False) -> Tensor:
        """The state h of each whole tree.

        Args:
            inputs: the leaves, (…, N, D).
            spans: parts of a `BinaryTree`, (…, N, N): 0/1 trees, or with `relaxed` any mixture of trees.
            relaxed: whether spans are soft, or need a gradient. It composes all O(N²) spans in place of N − 1.

        Returns:
            (…, H), zeros for an instance without leaves.
        """
        rows, trees = self._flat(inputs, spans)
        roots = self._relaxed(rows, trees) if relaxed else self._roots(rows, trees)
        return roots.reshape(*spans.shape[:-2], self.hidden_size)

    def nodes(self, inputs: Tensor, spans: Tensor) -> Tensor:
        """The states h of all spans of 0/1 trees, (…, 2N − 1, H), in the order of `BinaryTree.decode`, then zeros."""
        N = spans.shape[-1]
        rows, trees = self._flat(inputs, spans)
        levels, (states, _) = self.by_level(rows, trees)
        # a parent before its children, the left child before the right
        order = ((levels.row * N + levels.first) * N + N - 1 - levels.last).argsort()
        row = levels.row[order]
        begins = torch.searchsorted(row, torch.arange(len(trees), device=row.device))
        place = torch.arange(len(row), device=row.device) - begins[row]
        nodes = states.new_zeros(len(trees), 2 * N - 1, self.hidden_size)
        return nodes.index_put((row, place), states[order]).reshape(*spans.shape[:-2], 2 * N - 1, self.hidden_size)

    def _flat(self, inputs: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
        """Both with one batch dimension."""
        batch = count_leaves("inputs", inputs, None, self.input_size).shape
        check.same_device("spans", spans, inputs)
        N = inputs.shape[-2]
        if spans.shape != (*batch, N, N):
            hint = " Labelled spans are summed over their labels: try `spans.sum(-1)`." * (spans.dim() > inputs.dim())
            raise ValueError(
                f"`spans` should have shape (…, N, N) = {(*batch, N, N)} to match `inputs` {tuple(inputs.shape)}, but "
                f"have {tuple(spans.shape)}.{hint}"
            )
        rows = batch.numel()
        return inputs.reshape(rows, *inputs.shape[-2:]), spans.reshape(rows, *spans.shape[-2:])

    def by_level(self, inputs: Tensor, spans: Tensor) -> tuple[Levels, State]:
        """The spans of 0/1 trees (B, N, N), M in all, by depth, and their states (M, H)."""
        if spans.requires_grad:
            raise ValueError(
                "`spans` require a gradient, but composing the spans of a tree gives them none. Try relaxed=True, or "
                "spans.detach()."
            )
        levels = Levels.of(spans)
        leaves = self.leaves(inputs[levels.row[levels.leaf], levels.first[levels.leaf]])
        with torch.autocast(inputs.device.type, enabled=False):
            return levels, State(*ByLevel.apply(levels, *leaves, self.pair.weight, self.pair.bias))

    def _roots(self, inputs: Tensor, spans: Tensor) -> Tensor:
        levels, (states, _) = self.by_level(inputs, spans)
        # The first level has the roots, in the order of their instances.
        count = levels.sizes[0] if levels.sizes else 0
        roots = states.new_zeros(len(spans), self.hidden_size)
        return roots.index_put((levels.row[:count],), states[:count])

    def _relaxed(self, inputs: Tensor, spans: Tensor) -> Tensor:
        present = spans.diagonal(dim1=-2, dim2=-1) > 0
        # Padding may hold anything.
        leaves = self.leaves(inputs.masked_fill(~present.unsqueeze(-1), 0.0))
        with torch.autocast(inputs.device.type, enabled=False):
            states = Chart.apply(spans.to(leaves.h.dtype), *leaves, self.pair.weight, self.pair.bias)
        lengths = present.sum(-1)
        roots = states[0, torch.arange(len(spans), device=spans.device), (lengths - 1).clamp_min(0)]
        return roots.masked_fill((lengths == 0).unsqueeze(-1), 0.0)
