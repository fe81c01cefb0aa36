"""Scores of arcs between words, one product for all pairs."""

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

from structmax import check
from structmax.nn.words_and_arcs import check_words


class Biaffine(nn.Module):
    """The deep biaffine scorer: from features of words to scores of arcs, as dependency trees take them.

    Each word is projected twice, as a head and as a dependent, and each pair gets a biaffine form of both:

        a = leaky_relu(V_head x + b_head),  d = leaky_relu(V_dependent x + b_dependent)
        arc[h, m] = [a_h; 1]ᵀ U [d_m; 1],          with one matrix U for each label

    Node 0 is the root: in place of a_0 it has a vector that is learnt.

    Args:
        input_size: D, features of a word.
        hidden_size: H, features of a head and of a dependent.
        labels: C, for labelled arcs; by default arcs have none.
        dropout: the share of hidden features that training leaves out.

    Examples:
        >>> import torch, structmax
        >>> biaffine = structmax.nn.Biaffine(8, 16)
        >>> words, heads = torch.randn(2, 5, 8), torch.tensor([[2, 0, 2, 3, 4], [0, 1, 2, -1, -1]])
        >>> structure = structmax.SpanningTree(torch.tensor([5, 3]), single_root=True)
        >>> scores = biaffine(words)
        >>> scores.shape
        torch.Size([2, 6, 6])
        >>> loss = -structmax.log_prob(scores, structure, structure.encode(heads)).mean()
        >>> loss.backward()
        >>> structmax.nn.Biaffine(8, 16, labels=7)(words).shape
        torch.Size([2, 6, 6, 7])

    Reference:
        Dozat and Manning 2017, Deep biaffine attention for neural dependency parsing.
    """

    def __init__(self, input_size: int, hidden_size: int, labels: int | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        check.whole("input_size", input_size, 1)
        check.whole("hidden_size", hidden_size, 1)
        if labels is not None:
            check.whole("labels", labels, 1)
        self.input_size, self.hidden_size, self.labels = input_size, hidden_size, labels
        # as head and as dependent, in this order
        self.project = nn.Linear(input_size, 2 * hidden_size)
        self.root = nn.Parameter(torch.empty(hidden_size))
        self.weight = nn.Parameter(torch.empty(hidden_size + 1, labels or 1, hidden_size + 1))
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, labels={self.labels}"

    def reset_parameters(self) -> None:
        """Draws the matrices such that scores begin with about the size of the hidden features."""
        self.project.reset_parameters()
        nn.init.normal_(self.root, std=self.hidden_size**-0.5)
        nn.init.normal_(self.weight, std=1 / self.hidden_size)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of all arcs.

        Args:
            words: (…, N, D), without the root.

        Returns:
            arc[h, m], (…, N + 1, N + 1) or, labelled, (…, N + 1, N + 1, C): h as the head of m, node 0 is the root.
            Column 0, the root as a dependent, is 0.
        """
        check_words(words, self.input_size)
        hidden = self.dropout(leaky_relu(self.project(words), 0.1))
        head, dependent = hidden.split(self.hidden_size, -1)
        root = self.root.to(head.dtype).expand(*head.shape[:-2], 1, self.hidden_size)
        # (…, N + 1, H + 1) and (…, N, H + 1)
        head, dependent = pad(torch.cat([root, head], -2), (0, 1), value=1.0), pad(dependent, (0, 1), value=1.0)
        # (…, (N + 1) C, H + 1) and (…, N + 1, C, N): labels stay next to the words, so that each is one product
        weighed = (head @ self.weight.flatten(1)).unflatten(-1, self.weight.shape[1:]).flatten(-3, -2)
        arcs = (weighed @ dependent.transpose(-1, -2)).unflatten(-2, (-1, self.weight.shape[1]))
        # (…, N + 1, N + 1, C)
        arcs = pad(arcs, (1, 0)).transpose(-1, -2)
        return arcs.squeeze(-1) if self.labels is None else arcs
