"""Graph convolution along the arcs of dependency trees, discrete or soft."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from structmax import check
from structmax.nn.words_and_arcs import check_arcs, check_words


class TreeGCN(nn.Module):
    """Graph convolution over dependency trees: a node hears from its head, from the words it heads and from itself.

    Each layer sends messages v_d = g_d (V_d h + b_d) in three directions d, with gates g_d = σ(⟨w_d, h⟩ + β_d):

        h ← relu(v_self + Aᵀ v_down + A v_up),          A[h, m] the arc from head h to its word m

    It is linear in the arcs of each layer, so soft trees (`marginals`, `sparsemap`, …) are as welcome as discrete ones,
    and all arcs get their exact gradient. The root is a node too, with a learnt vector to begin with.

    Args:
        size: D, features of a word, and of every state.
        layers: how many arcs away a word hears.
        gated: whether messages have gates, one number each; without, g = 1.

    Examples:
        >>> import torch, structmax
        >>> gcn, words = structmax.nn.TreeGCN(4, layers=2), torch.randn(2, 5, 4)
        >>> scores = torch.randn(2, 6, 6, requires_grad=True)
        >>> structure = structmax.SpanningTree(torch.tensor([5, 3]), single_root=True)
        >>> states = gcn(words, structmax.marginals(scores, structure))
        >>> states.shape
        torch.Size([2, 6, 4])
        >>> states.sum().backward()
        >>> scores.grad.shape
        torch.Size([2, 6, 6])

    Reference:
        Marcheggiani and Titov 2017, Encoding sentences with graph convolutional networks for semantic role labeling.
    """

    def __init__(self, size: int, layers: int = 1, *, gated: bool = True) -> None:
        super().__init__()
        check.whole("size", size, 1)
        check.whole("layers", layers, 1)
        self.size = size
        self.root = nn.Parameter(torch.randn(size) / size**0.5)
        # self, down and up, in this order
        self.messages = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(size, 3) for _ in range(layers)) if gated else None

    def extra_repr(self) -> str:
        return f"{self.size}, layers={len(self.messages)}, gated={self.gates is not None}"

    def forward(self, words: Tensor, arcs: Tensor) -> Tensor:
        """The states of all nodes.

        Args:
            words: (…, N, D).
            arcs: (…, N + 1, N + 1), arc[h, m] is h as the head of m, node 0 is the root: parts of a `SpanningTree` or a
                `ProjectiveTree`, or any mixture of such. A word that has no head at all is padding.

        Returns:
            (…, N + 1, D), numbered like the arcs: node 0 is the root, words are 1 … N, with zeros for padding.
        """
        check_words(words, self.size)
        check.floating("arcs", arcs)
        check_arcs("arcs", arcs, words)
        # The root has no head and is always there.
        padding = pad((arcs[..., 1:] == 0).all(-2), (1, 0), value=False).unsqueeze(-1)
        root = self.root.to(words.dtype).expand(*words.shape[:-2], 1, self.size)
        # Padding may hold anything, and 0 · NaN is not 0.
        states = torch.cat([root, words], -2).masked_fill(padding, 0.0)
        arcs = arcs.to(states.dtype)
        for layer, message in enumerate(self.messages):
            sent = message(states).unflatten(-1, (3, self.size))
            if self.gates is not None:
                sent = sent * self.gates[layer](states).sigmoid().unsqueeze(-1)
            own, down, up = sent.masked_fill(padding.unsqueeze(-1), 0.0).unbind(-2)
            states = (own + arcs.transpose(-1, -2) @ down + arcs @ up).relu()
        return states
