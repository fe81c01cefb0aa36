"""Encoders of sentences by trees, and how each of them learns its tree.

An encoder reads words (B, N, D) and gives a state of the whole sentence, (B, H), which a classifier judges. Those that
choose a tree for themselves belong to one of three families:

    L(argmax)  the loss of one tree; the parser gets a surrogate gradient             straight_through, spigot, gumbel …
    L(E[z])    the loss of an average tree, or of the average of what trees say       marginals, sparsemap
    E[L(z)]    the average loss of trees, estimated or summed                         sparse, rl_spinn, ppo
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

import structmax
from structmax import incremental
from structmax.nn import BinaryTreeLSTM, MergeParser, PyramidTreeLSTM, Spinn
from structmax.nn.merge_parser import Derivation
from structmax.recipes.data.text import within

# The temperature of SparseMAP: at 1, the flat scores of a new parser would have hundreds of trees.
SHARPNESS = 0.1
# from states (M, H) of instances (M,) to their losses (M,)
Judge = Callable[[Tensor, Tensor], Tensor]


class Sentences(Protocol):
    """A batch of B sentences of up to N tokens."""

    @property
    def tokens(self) -> Tensor:
        """Their numbers, (B, N)."""

    @property
    def lengths(self) -> Tensor:
        """How many of them count, (B,)."""

    @property
    def gold(self) -> Tensor:
        """The trees that grammar gives them, as parts of a `BinaryTree`, (B, N, N)."""


class Encoded(NamedTuple):
    """States (B, H), and the trees they were composed by, as parts of a `BinaryTree` (B, N, N); None without any."""

    root: Tensor
    spans: Tensor | None


class Encoder(nn.Module, ABC):
    """Sentences to states. It has its own embeddings, so that parser and composer share nothing unnecessary."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, size)

    @abstractmethod
    def forward(self, sentences: Sentences) -> Encoded:
        """The states as they are used, once trained."""

    def losses(self, sentences: Sentences, judge: Judge, generator: torch.Generator) -> Iterator[Tensor]:
        """The losses (B,) to train on, one update after the other."""
        root = self.learning(sentences, generator)
        yield judge(root, torch.arange(len(root), device=root.device))

    def learning(self, sentences: Sentences, generator: torch.Generator) -> Tensor:
        """The states in training, where that is not the same."""
        return self(sentences).root

    def composing(self, sentences: Sentences, judge: Judge) -> Iterator[Tensor]:
        """The losses (B,) to train the composer on alone, over the trees as they are used."""
        root = self(sentences).root
        yield judge(root, torch.arange(len(root), device=root.device))


class Lstm(Encoder):
    """No tree: the last state of an LSTM."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__(vocabulary, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)

    def forward(self, sentences: Sentences) -> Encoded:
        states, _ = self.lstm(self.words(sentences.tokens))
        last = (sentences.lengths - 1).reshape(-1, 1, 1).expand(-1, 1, states.shape[-1])
        return Encoded(states.gather(1, last).squeeze(1), None)


class Gold(Encoder):
    """The tree of the grammar."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__(vocabulary, size)
        self.tree = BinaryTreeLSTM(size, size)

    def forward(self, sentences: Sentences) -> Encoded:
        return Encoded(self.tree(self.words(sentences.tokens), sentences.gold), sentences.gold)


class Gumbel(Encoder):
    """Merges neighbours from the leaves up, by straight-through Gumbel choices."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__(vocabulary, size)
        self.pyramid = PyramidTreeLSTM(size, size)

    def forward(self, sentences: Sentences) -> Encoded:
        return Encoded(*self.pyramid(self.words(sentences.tokens), sentences.lengths, choose=incremental.greedy))

    def learning(self, sentences: Sentences, generator: torch.Generator) -> Tensor:
        return self.pyramid(self.words(sentences.tokens), sentences.lengths, generator=generator).root


# ---------------------------------------------------------------- trees by the scores of their spans


class SpanScores(nn.Module):
    """Scores (B, N, N) of all spans: a product of what an LSTM in both directions says of their first and last word."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, size)
        half = (size + 1) // 2
        self.lstm = nn.LSTM(size, half, batch_first=True, bidirectional=True)
        self.first = nn.Linear(2 * half, size)
        self.last = nn.Linear(2 * half, size)

    def forward(self, sentences: Sentences) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(sentences.tokens), sentences.lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=sentences.tokens.shape[1]
        )
        return self.first(states) @ self.last(states).mT / states.shape[-1] ** 0.5


class Parsed(Encoder):
    """Has scores for spans, and composes trees."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__(vocabulary, size)
        self.scores = SpanScores(vocabulary, size)
        self.tree = BinaryTreeLSTM(size, size)


class LatentTree(Parsed):
    """The best tree by span scores, whose parser learns through a surrogate of it.

    Args:
        estimator: of `structmax.surrogate`.
    """

    def __init__(self, vocabulary: int, size: int, estimator: Any) -> None:
        super().__init__(vocabulary, size)
        self.estimator = estimator

    def forward(self, sentences: Sentences) -> Encoded:
        spans = structmax.argmax(self.scores(sentences), structmax.BinaryTree(sentences.lengths))
        return Encoded(self.tree(self.words(sentences.tokens), spans), spans)

    def learning(self, sentences: Sentences, generator: torch.Generator) -> Tensor:
        trees = structmax.BinaryTree(sentences.lengths)
        z = structmax.surrogate(self.scores(sentences), trees, self.estimator, generator=generator)
        return self.tree(self.words(sentences.tokens), z, relaxed=True)


class MarginalTree(LatentTree):
    """The average tree, now and later: what every span says, by the probability of its halves."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__(vocabulary, size, structmax.estimators.Relaxation(structmax.omega.Entropy()))

    def forward(self, sentences: Sentences) -> Encoded:
        scores, trees = self.scores(sentences), structmax.BinaryTree(sentences.lengths)
        soft = structmax.marginals(scores, trees)
        root = self.tree(self.words(sentences.tokens), soft, relaxed=True)
        return Encoded(root, structmax.argmax(scores, trees))


class SparseTrees(Parsed):
    """The few trees of SparseMAP, each composed for itself, and their states averaged."""

    def forward(self, sentences: Sentences) -> Encoded:
        scores, trees = self.scores(sentences), structmax.BinaryTree(sentences.lengths)
        return Encoded(self._averaged(sentences, scores), structmax.argmax(scores, trees))

    def learning(self, sentences: Sentences, generator: torch.Generator) -> Tensor:
        return self._averaged(sentences, self.scores(sentences))

    def _averaged(self, sentences: Sentences, scores: Tensor) -> Tensor:
        found = structmax.sparsemap(scores, structmax.BinaryTree(sentences.lengths), temperature=SHARPNESS)
        # (K, B) each: most instances have fewer trees than the K of the one with most
        used, instance = (found.probabilities > 0).nonzero(as_tuple=True)
        states = self.tree(self.words(sentences.tokens)[instance], found.parts[used, instance])
        weights = found.probabilities[used, instance].unsqueeze(-1)
        return states.new_zeros(len(scores), states.shape[-1]).index_add(0, instance, weights * states)


class SparseLosses(SparseTrees):
    """The same trees; in training it is their losses that are averaged, exactly."""

    def losses(self, sentences: Sentences, judge: Judge, generator: torch.Generator) -> Iterator[Tensor]:
        words = self.words(sentences.tokens)
        found = structmax.expect(
            lambda spans, index: judge(self.tree(words[index], spans), index),
            self.scores(sentences),
            structmax.BinaryTree(sentences.lengths),
            structmax.estimators.SparseSupport(SHARPNESS),
        )
        yield found.value


# ---------------------------------------------------------------- trees built step by step


class SupervisedSpinn(Encoder):
    """Shifts and reduces, trained on the grammar's actions."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__(vocabulary, size)
        self.spinn = Spinn(size, size)

    def forward(self, sentences: Sentences) -> Encoded:
        built = self.spinn(self.words(sentences.tokens), sentences.lengths)
        return Encoded(built.root, structmax.ShiftReduce().to_spans(built.actions))

    def losses(self, sentences: Sentences, judge: Judge, generator: torch.Generator) -> Iterator[Tensor]:
        shown = structmax.ShiftReduce().from_spans(sentences.gold)
        built = self.spinn(self.words(sentences.tokens), sentences.lengths, shown)
        taught = -incremental.Policy(built.scores, sentences.lengths).log_prob(shown)
        yield judge(built.root, torch.arange(len(built.root), device=built.root.device)) + taught


class ReinforcedSpinn(SupervisedSpinn):
    """Samples shifts and reduces; those with a low loss become more probable.

    Args:
        baseline: "none", "running_mean", "leave_one_out", "self_critical" or "learned".
    """

    def __init__(self, vocabulary: int, size: int, baseline: str) -> None:
        super().__init__(vocabulary, size)
        self.baseline = baseline
        self.mean = structmax.estimators.RunningMean()
        learned = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1))
        self.guess = learned if baseline == "learned" else None

    def losses(self, sentences: Sentences, judge: Judge, generator: torch.Generator) -> Iterator[Tensor]:
        B = len(sentences.tokens)
        draws = 2 if self.baseline == "leave_one_out" else 1
        index = torch.arange(B, device=sentences.tokens.device).repeat(draws)
        words, lengths = self.words(sentences.tokens)[index], sentences.lengths[index]
        built = self.spinn(words, lengths, choose=functools.partial(incremental.sample, generator=generator))
        losses = judge(built.root, index).unflatten(0, (draws, B))
        log_p = incremental.Policy(built.scores, lengths).log_prob(built.actions).unflatten(0, (draws, B))
        guess = self._guess(sentences, judge, losses.detach())
        credit = losses.detach() - guess
        # The credit of a learned guess is also its error.
        yield (losses + credit.detach() * log_p + (credit**2 if guess.requires_grad else 0.0)).mean(0)

    def _guess(self, sentences: Sentences, judge: Judge, losses: Tensor) -> Tensor:
        """What the losses (S, B) are compared with."""
        if self.baseline == "self_critical":
            with torch.no_grad():
                return judge(self(sentences).root, torch.arange(losses.shape[1], device=losses.device))
        if self.baseline == "leave_one_out":
            return losses.flip(0)
        if self.baseline == "running_mean":
            return self.mean(losses)
        if self.guess is None:
            return losses.new_zeros(())
        words = self.words(sentences.tokens).detach()
        words = words * within(sentences.lengths, words.shape[1]).unsqueeze(-1)
        return self.guess(words.sum(1) / sentences.lengths.unsqueeze(-1)).squeeze(-1)


class ProximalMerges(Encoder):
    """Merges neighbours by a policy of its own, trained by several clipped updates for each draw.

    A draw is compared with the best tree of the policy, and differences are scaled to one size.

    Args:
        vocabulary: number of words.
        size: of the states of the composer.
        parser_size: of the states of the policy, which makes many more of them.
        updates: of the policy for each draw.
        entropy: weight of the policy's entropy, which keeps it exploring.

    Reference: Havrylov, Kruszewski & Joulin 2019, https://arxiv.org/abs/1902.09393.
    """

    def __init__(self, vocabulary: int, size: int, parser_size: int, updates: int, entropy: float) -> None:
        super().__init__(vocabulary, size)
        self.tree = BinaryTreeLSTM(size, size)
        self.parser_words = nn.Embedding(vocabulary, parser_size)
        self.reader = nn.LSTM(parser_size, parser_size, batch_first=True)
        self.parser = MergeParser(parser_size, parser_size)
        self.updates, self.entropy = updates, entropy
        self.ppo = structmax.estimators.PPO(clip=0.2)
        self.scale = structmax.estimators.RunningScale()

    def forward(self, sentences: Sentences) -> Encoded:
        spans = self.parser.derive(self._read(sentences), sentences.lengths, incremental.greedy).spans
        return Encoded(self.tree(self.words(sentences.tokens), spans), spans)

    def losses(self, sentences: Sentences, judge: Judge, generator: torch.Generator) -> Iterator[Tensor]:
        words, read = self.words(sentences.tokens), self._read(sentences)
        B, N, _ = words.shape
        index = torch.arange(B, device=words.device)
        # A draw of each tree, and the best one, side by side: to draw is to take the best by scores with Gumbel noise.
        noise = -words.new_empty(N - 1, B, N + 1).exponential_(generator=generator).log()
        disturbances = iter(nn.functional.pad(noise, (0, 0, 0, B)))
        built = self.parser.derive(
            read.repeat(2, 1, 1),
            sentences.lengths.repeat(2),
            lambda scores, there: incremental.greedy(scores + next(disturbances), there),
        )
        drawn, best = (Derivation(*halves) for halves in zip(*(t.split(B) for t in built), strict=True))
        losses = judge(self.tree(words, drawn.spans), index)
        with torch.no_grad():
            advantage = self.scale(judge(self.tree(words, best.spans), index) - losses)
        before = None
        for update in range(self.updates):
            now = self.parser(self._read(sentences) if update else read, drawn)
            before = now.log_probs.detach() if before is None else before
            clipped = self.ppo.surrogate(now.log_probs, before, advantage.unsqueeze(-1).expand_as(before))
            policy = (clipped - self.entropy * now.entropies).sum(-1)
            # The composer learns from a draw once.
            yield policy + losses if update == 0 else policy

    def _read(self, sentences: Sentences) -> Tensor:
        return self.reader(self.parser_words(sentences.tokens))[0]
