"""What reads an intermediate tree: words next to their heads, a parser of semantic graphs, a classifier of sentences.

All are differentiable in the arcs of the tree, (B, N + 1, N + 1), discrete or soft.
"""

import functools
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import structmax
from structmax.factors import Budget, Or, Variables
from structmax.recipes.data.semantic_graphs import Batch
from structmax.recipes.data.text import within


class HeadWords(nn.Module):
    """Features of each word next to those of its head: (B, N, D) and arcs to (B, N, 2 D).

    The head's features are Σ_h arc[h, m] x_h, an expectation if arcs are soft. The root's are learnt.

    Examples:
        >>> import torch
        >>> from structmax.recipes.models.semantics import HeadWords
        >>> words, arcs = torch.tensor([[[1.0], [2.0]]]), torch.zeros(1, 3, 3)
        >>> arcs[0, 0, 2] = arcs[0, 2, 1] = 1.0
        >>> HeadWords(1)(words, arcs)[0, 0]
        tensor([1., 2.], grad_fn=<SelectBackward0>)

    Reference: Peng, Thomson & Smith 2018, Backpropagating through structured argmax using a SPIGOT.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(size) / size**0.5)
        self.output_size = 2 * size

    def forward(self, words: Tensor, arcs: Tensor) -> Tensor:
        root = self.root.to(words.dtype).expand(len(words), 1, -1)
        heads = arcs[..., 1:].mT.to(words.dtype) @ torch.cat([root, words], 1)
        return torch.cat([words, heads], -1)


class EndTask(nn.Module, ABC):
    """What is predicted in the end, of features of words (B, N, D) and their tree's arcs (B, N + 1, N + 1)."""

    @abstractmethod
    def loss(self, words: Tensor, tree: Tensor, batch: Batch) -> Tensor:
        """A mean over sentences."""

    @abstractmethod
    def decode(self, words: Tensor, tree: Tensor, lengths: Tensor) -> Tensor:
        """The best answer for each sentence."""

    @abstractmethod
    def agreement(self, found: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Of each measure how much is right in what `decode` found, how much was found, and how much there is: (3,)."""


class GraphParser(EndTask):
    """Semantic graphs: any arcs between words such that a word has few heads, and the root has a word.

    An arc's score is a biaffine form of its words, plus weights for any arc, for one that the tree has, and for one
    whose inverse it has. They begin such that the tree is the best graph. The best graph is that of a
    `structmax.FactorGraph`, and the structured hinge loss asks for the right one to lead by a margin. The label of an
    arc is chosen by both of its words.

    Args:
        input_size: features of a word.
        hidden_size: features of a head and of a dependent.
        labels: number of labels, with one for no arc.
        most_heads: of a word.
        dropout: the share of hidden features that training leaves out.
    """

    def __init__(self, input_size: int, hidden_size: int, labels: int, most_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.most_heads = most_heads
        self.arcs = structmax.nn.Biaffine(input_size, hidden_size, dropout=dropout)
        # of any arc, of one in the tree, and of one whose inverse is
        self.weights = nn.Parameter(torch.tensor([-1.0, 2.0, 0.0]))
        self.root = nn.Parameter(torch.randn(input_size) / input_size**0.5)
        self.head = nn.Linear(input_size, hidden_size)
        self.dependent = nn.Linear(input_size, hidden_size)
        self.label = nn.Sequential(nn.LeakyReLU(0.1), nn.Dropout(dropout), nn.Linear(hidden_size, labels))

    def forward(self, words: Tensor, tree: Tensor) -> Tensor:
        """Scores of arcs from heads to words, (B, N + 1, N)."""
        any_arc, along, against = self.weights
        return (self.arcs(words) + any_arc + along * tree + against * tree.mT)[..., 1:].float()

    def loss(self, words: Tensor, tree: Tensor, batch: Batch) -> Tensor:
        """The hinge loss of arcs and the cross-entropy of their labels, summed over the arcs of a sentence."""
        there = batch.graph > 0
        graphs = self._graphs(batch.lengths, there.shape[-1])
        scores: Any = {"arc": self(words, tree)}
        target: Any = {"arc": there.float()}
        margin = structmax.svm_loss(scores, graphs, target)
        labels = cross_entropy(self._labels(words, there), batch.graph[there], reduction="sum")
        return margin + labels / len(there)

    def decode(self, words: Tensor, tree: Tensor, lengths: Tensor) -> Tensor:
        """The best graph: labels of arcs, (B, N + 1, N), 0 where there is none."""
        scores: Any = {"arc": self(words, tree)}
        there = structmax.argmax(scores, self._graphs(lengths, words.shape[1]))["arc"] > 0
        # 0 is no label
        labels = self._labels(words, there)[..., 1:].argmax(-1) + 1
        return torch.zeros_like(there, dtype=torch.long).masked_scatter(there, labels)

    def agreement(self, found: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Of labelled arcs, of arcs whatever their label, and of labelled arcs that are not in the gold tree."""
        gold = batch.graph
        beyond = torch.arange(gold.shape[1], device=gold.device).unsqueeze(-1) != batch.heads.unsqueeze(1)

        def counts(found: Tensor, gold: Tensor) -> Tensor:
            return torch.stack([((found == gold) & (gold > 0)).sum(), (found > 0).sum(), (gold > 0).sum()])

        return {
            "score": counts(found, gold),
            "unlabelled": counts((found > 0).long(), (gold > 0).long()),
            "beyond": counts(found * beyond, gold * beyond),
        }

    def _labels(self, words: Tensor, there: Tensor) -> Tensor:
        """Scores of labels for the arcs that are there, one after the other: (arcs, labels)."""
        sentence, head, word = there.nonzero(as_tuple=True)
        nodes = torch.cat([self.root.to(words.dtype).expand(len(words), 1, -1), words], 1)
        return self.label(self.head(nodes)[sentence, head] + self.dependent(words)[sentence, word]).float()

    def _graphs(self, lengths: Tensor, N: int) -> structmax.FactorGraph:
        """The graphs over sentences of these lengths: no arcs of padding, nor of a word to itself."""
        node = torch.arange(N + 1, device=lengths.device)
        heads, words = node.unsqueeze(-1), node[1:]
        inside = (torch.maximum(heads, words) <= lengths.reshape(-1, 1, 1)) & (heads != words)
        return constraints(N, self.most_heads).masked({"arc": inside})


@functools.lru_cache(maxsize=256)
def constraints(N: int, most_heads: int) -> structmax.FactorGraph:
    """Over arc[h, m] from head h, 0 the root, to word m + 1: no word has too many heads, and the root has a word."""
    arc = Variables("arc", (N + 1, N))
    few = (Budget(arc[:, m], at_most=min(most_heads, N + 1)) for m in range(N))
    return structmax.FactorGraph(*few, Or(arc[0]))


class Classifier(EndTask):
    """Classes of sentences, by the mean of what is learnt of each word.

    Args:
        input_size: features of a word.
        hidden_size: features of a sentence.
        classes: their number.
        dropout: the share of features that training leaves out.
    """

    def __init__(self, input_size: int, hidden_size: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(input_size, hidden_size), nn.ReLU(), nn.Dropout(dropout))
        self.classes = nn.Linear(hidden_size, classes)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Scores of classes, (B, classes)."""
        total = (self.hidden(words) * within(lengths, words.shape[1]).unsqueeze(-1)).sum(1)
        return self.classes(total / lengths.unsqueeze(-1)).float()

    def loss(self, words: Tensor, tree: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(self(words, batch.lengths), batch.classes)

    def decode(self, words: Tensor, tree: Tensor, lengths: Tensor) -> Tensor:
        """(B,)"""
        return self(words, lengths).argmax(-1)

    def agreement(self, found: Tensor, batch: Batch) -> dict[str, Tensor]:
        right = (found == batch.classes).sum()
        return {"score": torch.stack([right, *[torch.full_like(right, len(found))] * 2])}
