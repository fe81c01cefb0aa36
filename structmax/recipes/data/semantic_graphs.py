"""Sentences with trees, semantic graphs and classes as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax.recipes.data import treebank
from structmax.recipes.data.conllu import Sentence
from structmax.recipes.data.text import Ragged, Vocabulary


def labels(sentences: Sequence[Sentence]) -> Vocabulary:
    """Those of all arcs of graphs, from 2; the number 0 is that there is no arc, 1 a label that is not known."""
    return Vocabulary.of((label for _, label in arcs) for sentence in sentences for arcs in sentence.graph)


class Graphs:
    """The graphs of sentences on a device.

    Args:
        sentences: those they are of.
        known: numbers of labels.
        device: where to keep them.
        most_heads: of a word; further heads are left out, the root last of all. By default all stay.

    Examples:
        >>> import torch
        >>> from structmax.recipes.data import semantic_graphs
        >>> from structmax.recipes.data.conllu import Sentence
        >>> graph = (((2, "agent"), (3, "agent")), ((0, "top"),), ((2, "content"),))
        >>> she = Sentence(("she", "hopes", "to-swim"), ("_",) * 3, (2, 0, 2), ("_",) * 3, graph)
        >>> known = semantic_graphs.labels([she])
        >>> known.words[2:]
        ['agent', 'content', 'top']
        >>> semantic_graphs.Graphs([she], known, torch.device("cpu")).at(torch.tensor([0]), 3)
        tensor([[[0, 4, 0],
                 [0, 0, 0],
                 [2, 0, 3],
                 [2, 0, 0]]])
    """

    def __init__(
        self, sentences: Sequence[Sentence], known: Vocabulary, device: torch.device, most_heads: int | None = None
    ) -> None:
        rows = [
            [
                number
                for word, arcs in enumerate(sentence.graph, 1)
                for head, label in sorted(arcs)[:most_heads]
                for number in (head, word, *known.numbers([label]))
            ]
            for sentence in sentences
        ]
        self.arcs = Ragged(rows, device)

    def at(self, indices: Tensor, N: int) -> Tensor:
        """Labels of arcs from heads to words, (B, N + 1, N), with the root as head 0; 0 where there is no arc."""
        head, word, label = self.arcs.at(indices).unflatten(1, (-1, 3)).unbind(-1)
        graph = torch.zeros(len(indices), (N + 1) ** 2, dtype=torch.long, device=label.device)
        # words count from 1: padding goes to a word 0, which is cut off
        return graph.scatter(1, head * (N + 1) + word, label).unflatten(1, (N + 1, N + 1))[..., 1:]


@dataclass(frozen=True)
class Batch(treebank.Batch):
    """Of B sentences of up to N words, with what is to be predicted."""

    # as `Graphs.at` gives them, (B, N + 1, N)
    graph: Tensor
    # (B,)
    classes: Tensor


class Corpus:
    """Sentences on a device, with graphs or classes; all of them 0 for sentences that have none.

    Args:
        sentences: of a file or a generator.
        graphs: of the same sentences.
        classes: of the same sentences.
        vocabularies: numbers of all that is written.
        device: where to keep them.
    """

    def __init__(
        self,
        sentences: Sequence[Sentence],
        graphs: Graphs,
        classes: Sequence[int],
        vocabularies: treebank.Vocabularies,
        device: torch.device,
    ) -> None:
        self.sentences = sentences
        self.trees = treebank.Treebank(sentences, vocabularies, device)
        self.graphs = graphs
        self.classes = torch.tensor(classes, device=device)

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def lengths(self) -> Tensor:
        return self.trees.lengths

    def batch(self, indices: Tensor) -> Batch:
        """Those sentences, padded to the longest of them."""
        read = self.trees.batch(indices)
        graph = self.graphs.at(indices, read.words.shape[-1])
        return Batch(**vars(read), graph=graph, classes=self.classes[indices])
