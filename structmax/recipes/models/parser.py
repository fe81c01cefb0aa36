"""A dependency parser: words in their sentences, scores of all arcs, and scores of labels for chosen arcs."""

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

import structmax
from structmax.recipes.models.words import Words


class ArcLabels(nn.Module):
    """Scores of C labels for one arc into each word: a biaffine form of head and dependent for each label.

    A tree over N words has N arcs out of (N + 1)², so the labels of all others are never scored.

    Args:
        input_size: D, features of a word.
        hidden_size: H, features of a head and of a dependent.
        labels: C.
        dropout: the share of hidden features that training leaves out.

    Examples:
        >>> import torch
        >>> from structmax.recipes.models.parser import ArcLabels
        >>> words, heads = torch.randn(2, 3, 8), torch.tensor([[2, 0, 2], [0, 1, -1]])
        >>> ArcLabels(8, 16, labels=5)(words, heads).shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, input_size: int, hidden_size: int, labels: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        # as head and as dependent, in this order
        self.project = nn.Linear(input_size, 2 * hidden_size)
        self.root = nn.Parameter(torch.randn(hidden_size) / hidden_size**0.5)
        self.weight = nn.Parameter(torch.randn(hidden_size + 1, labels, hidden_size + 1) / hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, heads: Tensor) -> Tensor:
        """(B, N, C).

        Args:
            words: features (B, N, D), without the root.
            heads: of each word, (B, N), 0 for the root; less than 0 past the last word, where any scores come out.
        """
        hidden = self.dropout(leaky_relu(self.project(words), 0.1))
        head, dependent = hidden.chunk(2, -1)
        nodes = torch.cat([self.root.to(head.dtype).expand(len(head), 1, -1), head], 1)
        chosen = nodes.gather(1, heads.clamp_min(0).unsqueeze(-1).expand_as(head))
        chosen, dependent = pad(chosen, (0, 1), value=1.0), pad(dependent, (0, 1), value=1.0)
        # (B, N, C, H + 1)
        weighed = (chosen @ self.weight.flatten(1)).unflatten(-1, self.weight.shape[1:])
        return (weighed @ dependent.unsqueeze(-1)).squeeze(-1)


class Parser(nn.Module):
    """Words to scores of arcs, as dependency trees take them, and to labels of arcs once they are chosen.

    Args:
        words: the module that reads sentences.
        hidden_size: features of a head and of a dependent.
        labels: number of labels; 0 for a parser without them.
        dropout: the share of hidden features that training leaves out.

    Examples:
        >>> import torch, structmax
        >>> from structmax.recipes.models.parser import Parser
        >>> from structmax.recipes.models.words import Words
        >>> parser, lengths = Parser(Words(10, 8, 8), 16, labels=3), torch.tensor([4, 2])
        >>> words, arcs = parser(torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]]), lengths)
        >>> tree = structmax.SpanningTree(lengths, single_root=True)
        >>> heads = tree.decode(structmax.argmax(arcs, tree))
        >>> heads.shape, parser.labels(words, heads).shape
        (torch.Size([2, 4]), torch.Size([2, 4, 3]))

    Reference: Dozat and Manning 2017, Deep biaffine attention for neural dependency parsing.
    """

    def __init__(self, words: Words, hidden_size: int, labels: int = 0, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = words
        self.arcs = structmax.nn.Biaffine(words.output_size, hidden_size, dropout=dropout)
        if labels:
            self.labels = ArcLabels(words.output_size, hidden_size, labels, dropout=dropout)

    def forward(
        self, words: Tensor, lengths: Tensor, spellings: Tensor | None = None, tags: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features of the words, (B, N, D), and scores arc[h, m], (B, N + 1, N + 1), node 0 the root.

        The arguments are those of `Words`.
        """
        features = self.words(words, lengths, spellings, tags)
        return features, self.arcs(features)
