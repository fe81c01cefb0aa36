"""Sentences with dependency trees as tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax.recipes.data.conllu import Sentence
from structmax.recipes.data.text import Ragged, Vocabulary, within


@dataclass(frozen=True)
class Vocabularies:
    """The numbers of words in lower case, of spellings, of parts of speech and of labels.

    Spellings are those of all sentences that are read, for a network that knows their characters. What training has not
    shown of the others is `Vocabulary.UNKNOWN`.
    """

    words: Vocabulary
    spellings: Vocabulary
    tags: Vocabulary
    labels: Vocabulary

    @classmethod
    def of(cls, train: Sequence[Sentence], held_out: Sequence[Sentence] = (), least: int = 2) -> "Vocabularies":
        """Words count that are in the training sentences at least so many times."""
        return cls(
            Vocabulary.of((map(str.lower, s.words) for s in train), least),
            Vocabulary.of(s.words for s in [*train, *held_out]),
            Vocabulary.of(s.tags for s in train),
            Vocabulary.of(s.labels for s in train),
        )


@dataclass(frozen=True)
class Batch:
    """Of B sentences of up to N words: numbers (B, N), 0 past the last word, and lengths (B,)."""

    words: Tensor
    spellings: Tensor
    tags: Tensor
    # the root is 0
    heads: Tensor
    labels: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def inside(self) -> Tensor:
        """Where there are words, (B, N)."""
        return within(self.lengths, self.words.shape[-1])


class Treebank:
    """Sentences on a device.

    Args:
        sentences: of a file or a generator.
        vocabularies: numbers of all that is written.
        device: where to keep them.

    Examples:
        >>> import torch
        >>> from structmax.recipes.data import grammar, treebank
        >>> sentences = grammar.generate(5, seed=5)
        >>> data = treebank.Treebank(sentences, treebank.Vocabularies.of(sentences), torch.device("cpu"))
        >>> data.batch(torch.tensor([0])).heads
        tensor([[2, 3, 0, 5, 2, 3]])
    """

    def __init__(self, sentences: Sequence[Sentence], vocabularies: Vocabularies, device: torch.device) -> None:
        self.sentences = sentences

        def numbers(vocabulary: Vocabulary, rows: Iterable[Iterable[str]]) -> Ragged:
            return Ragged([vocabulary.numbers(row) for row in rows], device)

        self.words = numbers(vocabularies.words, (map(str.lower, s.words) for s in sentences))
        self.spellings = numbers(vocabularies.spellings, (s.words for s in sentences))
        self.tags = numbers(vocabularies.tags, (s.tags for s in sentences))
        self.labels = numbers(vocabularies.labels, (s.labels for s in sentences))
        self.heads = Ragged([s.heads for s in sentences], device)

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def lengths(self) -> Tensor:
        return self.words.lengths

    def batch(self, indices: Tensor) -> Batch:
        return Batch(
            self.words.at(indices),
            self.spellings.at(indices),
            self.tags.at(indices),
            self.heads.at(indices),
            self.labels.at(indices),
            self.lengths[indices],
        )
