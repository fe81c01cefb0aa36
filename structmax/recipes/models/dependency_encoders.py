"""Encoders of sentences by dependency trees, given or latent.

A `Parser` scores arcs, a choice turns scores into trees, and a composer makes a state of words and a tree. They meet in
`LatentTree` alone, so that another parser or another task can use one of them. Latent trees learn in one of three ways:

    L(argmax)  the loss of one tree; the parser gets a surrogate gradient    straight_through, spigot, perturb_and_parse
    L(E[z])    the loss of soft arcs, or of the average state of trees       marginals, gumbel, sparsemap
    E[L(z)]    the average loss of the few trees of SparseMAP                sparse_marginalisation, sparse_likelihood
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

import structmax
from structmax.nn import Biaffine, ChildSumTreeLSTM, TreeGCN
from structmax.recipes.data.text import within
from structmax.recipes.models.words import BiLSTM

# from lengths to the set of trees, a SpanningTree or a ProjectiveTree
Structure = Callable[[Tensor], Any]


class Trees(NamedTuple):
    """T trees of B sentences, one or several for each. Those of soft arcs are mixtures of trees."""

    # (T, N + 1, N + 1), parts of a SpanningTree
    arcs: Tensor
    # (T,) each: the sentence it is of, and its weight there; those of a sentence sum to 1
    sentence: Tensor
    weights: Tensor

    @classmethod
    def one_each(cls, arcs: Tensor) -> "Trees":
        return cls(arcs, torch.arange(len(arcs), device=arcs.device), arcs.new_ones(len(arcs)))

    def mean(self, values: Tensor, sentences: int) -> Tensor:
        """Of values (T, …) of trees, for each of B sentences: (B, …)."""
        weighed = values * self.weights.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
        return values.new_zeros(sentences, *values.shape[1:]).index_add(0, self.sentence, weighed)


class Encoded(NamedTuple):
    """States (M, H) to be judged: one for each sentence, or one for each of its trees."""

    states: Tensor
    # (M,) each, as in Trees
    sentence: Tensor
    weights: Tensor
    # what they were composed by; None without trees
    trees: Trees | None

    @classmethod
    def one_each(cls, states: Tensor, trees: Trees | None = None) -> "Encoded":
        return cls(states, torch.arange(len(states), device=states.device), states.new_ones(len(states)), trees)


# ---------------------------------------------------------------- from words to scores of arcs


class Parser(nn.Module):
    """Scores of arcs, (B, N + 1, N + 1), by what an LSTM in both directions says of words (B, N, D)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.lstm = BiLSTM(input_size, size)
        self.arcs = Biaffine(2 * size, size)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        return self.arcs(self.lstm(words, lengths))


# ---------------------------------------------------------------- from scores to trees


class Choice(nn.Module, ABC):
    """Trees of scores (B, N + 1, N + 1)."""

    @abstractmethod
    def forward(self, scores: Tensor, structure: Any, generator: torch.Generator | None = None) -> Trees: ...


class BestTree(Choice):
    """The best tree, in training with the surrogate gradient of an estimator."""

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, scores: Tensor, structure: Any, generator: torch.Generator | None = None) -> Trees:
        if not self.training:
            return Trees.one_each(structmax.argmax(scores, structure))
        return Trees.one_each(structmax.surrogate(scores, structure, self.estimator, generator=generator))


class SoftTree(Choice):
    """Soft arcs, the marginals over all trees; with noise, training has relaxed draws of trees.

    Reference: Kim, Denton, Hoang & Rush 2017, https://arxiv.org/abs/1702.00887; with noise Paulus, Choi, Tarlow, Krause
    & Maddison 2020, Gradient estimation with stochastic softmax tricks, https://arxiv.org/abs/2006.08063.
    """

    def __init__(self, noise: bool = False) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, scores: Tensor, structure: Any, generator: torch.Generator | None = None) -> Trees:
        if not (self.noise and self.training):
            return Trees.one_each(structmax.marginals(scores, structure))
        relaxed = structmax.estimators.gumbel_relaxation()
        return Trees.one_each(structmax.surrogate(scores, structure, relaxed, generator=generator))


class FewTrees(Choice):
    """The few trees of SparseMAP and their probabilities.

    Args:
        temperature: fewer trees as it falls; the flat scores of a new parser have hundreds of trees at 1.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores: Tensor, structure: Any, generator: torch.Generator | None = None) -> Trees:
        found = structmax.sparsemap(scores, structure, temperature=self.temperature)
        # (K, B): most sentences have fewer trees than the K of the one with most
        used, sentence = (found.probabilities > 0).nonzero(as_tuple=True)
        return Trees(found.parts[used, sentence], sentence, found.probabilities[used, sentence])


# ---------------------------------------------------------------- from words and trees to states


class Composer(nn.Module, ABC):
    """States (B, H) of words (B, N, D) and trees (B, N + 1, N + 1)."""

    # whether arcs may be soft
    soft: ClassVar[bool]

    @abstractmethod
    def forward(self, words: Tensor, arcs: Tensor) -> Tensor: ...


class TreeLSTM(Composer):
    """The state of the root in a Tree-LSTM."""

    soft = False

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.lstm = ChildSumTreeLSTM(input_size, size)

    def forward(self, words: Tensor, arcs: Tensor) -> Tensor:
        return self.lstm(words, arcs)[:, 0]


class Convolution(Composer):
    """Graph convolution over the tree, and the largest of each feature over its nodes."""

    soft = True

    def __init__(self, input_size: int, size: int, layers: int = 2) -> None:
        super().__init__()
        self.input = nn.Linear(input_size, size)
        self.gcn = TreeGCN(size, layers)

    def forward(self, words: Tensor, arcs: Tensor) -> Tensor:
        # States are at least 0, and padding is 0.
        return self.gcn(self.input(words), arcs).amax(1)


# ---------------------------------------------------------------- encoders


class Encoder(nn.Module, ABC):
    """States of sentences."""

    @abstractmethod
    def forward(
        self, words: Tensor, lengths: Tensor, heads: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Encoded:
        """States, in training as they learn.

        Args:
            words: vectors, (B, N, D).
            lengths: of the sentences, (B,).
            heads: (B, N), 0 for the root, where trees are given.
            generator: random number generator, for draws of trees.
        """


class WithoutTree(Encoder):
    """No tree: the largest of each feature over the states of an LSTM in both directions."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.lstm = BiLSTM(input_size, size)
        self.output = nn.Linear(2 * size, size)

    def forward(
        self, words: Tensor, lengths: Tensor, heads: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Encoded:
        states = self.output(self.lstm(words, lengths))
        return Encoded.one_each(states.masked_fill(~within(lengths, states.shape[1]).unsqueeze(-1), -torch.inf).amax(1))


class FixedTree(Encoder):
    """Trees that nobody learns: given ones, flat ones, or chains that end in the last word.

    Args:
        composer: of words and trees.
        shape: "given", "flat" or "left_to_right".
    """

    def __init__(self, composer: Composer, shape: str) -> None:
        super().__init__()
        self.composer, self.shape = composer, shape

    def forward(
        self, words: Tensor, lengths: Tensor, heads: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Encoded:
        if self.shape != "given":
            place = torch.arange(1, words.shape[1] + 1, device=words.device).expand(words.shape[:2])
            chain = self.shape == "left_to_right"
            heads = torch.where(place < lengths.unsqueeze(-1), place + 1, 0) if chain else torch.zeros_like(place)
        if heads is None:
            raise ValueError("`heads` should be given to an encoder of given trees, but are None.")
        arcs = structmax.SpanningTree(lengths, single_root=False).encode(heads).to(words.dtype)
        return Encoded.one_each(self.composer(words, arcs), Trees.one_each(arcs))


class LatentTree(Encoder):
    """Trees of a parser, which learns them by what they are good for.

    Args:
        parser: scores of arcs (B, N + 1, N + 1) from words (B, N, D) and lengths (B,).
        choice: of trees by scores.
        composer: of words and trees.
        structure: from lengths to the set of trees.
        averaged: whether the trees of a sentence become one, soft arcs or an average state, or are judged one by one.
    """

    def __init__(
        self, parser: nn.Module, choice: Choice, composer: Composer, structure: Structure, averaged: bool = True
    ) -> None:
        super().__init__()
        self.parser, self.choice, self.composer = parser, choice, composer
        self.structure, self.averaged = structure, averaged

    def forward(
        self, words: Tensor, lengths: Tensor, heads: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Encoded:
        trees = self.choice(self.parser(words, lengths), self.structure(lengths), generator)
        if self.averaged and self.composer.soft:
            return Encoded.one_each(self.composer(words, trees.mean(trees.arcs, len(words))), trees)
        states = self.composer(words[trees.sentence], trees.arcs)
        if self.averaged:
            return Encoded.one_each(trees.mean(states, len(words)), trees)
        return Encoded(states, trees.sentence, trees.weights, trees)


class StructuredAttention(Encoder):
    """Each word reads its possible heads and its possible children by the marginals of trees, in one step.

    Half of what an LSTM says of a word, d, decides on the arcs, the other half, e, is read:

        r_m = tanh(W [e_m; Σ_h a[h, m] e_h; Σ_k a[m, k] e_k] + b),          a the marginals of arcs, e_0 learnt

    and the state has the largest of each feature over the words.

    Args:
        input_size: D, of words.
        size: H, of states.
        structure: from lengths to the set of trees; non-projective ones in the paper.

    Reference: Liu & Lapata 2018, Learning structured text representations, https://arxiv.org/abs/1705.09207.
    """

    def __init__(self, input_size: int, size: int, structure: Structure) -> None:
        super().__init__()
        self.lstm = BiLSTM(input_size, size)
        self.arcs = Biaffine(size, size)
        self.root = nn.Parameter(torch.randn(size) * size**-0.5)
        self.output = nn.Linear(3 * size, size)
        self.structure = structure

    def forward(
        self, words: Tensor, lengths: Tensor, heads: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Encoded:
        # half of the features from each direction
        read, deciding = self.lstm(words, lengths).unflatten(-1, (-1, 2)).unbind(-1)
        arcs = structmax.marginals(self.arcs(deciding), self.structure(lengths))
        nodes = torch.cat([self.root.to(read.dtype).expand(len(read), 1, -1), read], 1)
        soft = arcs.to(read.dtype)
        above, below = soft.mT @ nodes, soft @ nodes
        states = self.output(torch.cat([nodes, above, below], -1)[:, 1:]).tanh()
        states = states.masked_fill(~within(lengths, states.shape[1]).unsqueeze(-1), -1.0)
        return Encoded.one_each(states.amax(1), Trees.one_each(arcs))
