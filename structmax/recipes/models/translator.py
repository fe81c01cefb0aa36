"""An encoder, a decoder with attention of any mapping, and the search for a translation.

The decoder is two LSTMs. The first reads the words so far; its states are the queries of the attention. The second
reads these states with what the attention returned, and so knows what has been translated. No step of the first waits
for the attention of an earlier one: all steps of a sentence to learn from are computed at once. Only bounds on the
attention of a word in all are met one step after the other, and then nothing but the mapping waits.

Reference: Bahdanau, Cho & Bengio 2015, Neural machine translation by jointly learning to align and translate; Luong,
Pham & Manning 2015, Effective approaches to attention-based neural machine translation; Malaviya, Ferreira & Martins
2018, Sparse and constrained attention for neural machine translation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structmax.recipes.data.text import Vocabulary
from structmax.recipes.models.words import Words

# From scores, and what else it takes by name, to weights.
Mapping = Callable[..., Tensor]
LSTMState = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Memory:
    """Sentences as the attention sees them."""

    # (B, S, D)
    keys: Tensor
    # (B, S, D′)
    values: Tensor
    # (B, S), where there is a word
    inside: Tensor

    def at(self, rows: Tensor) -> "Memory":
        return Memory(self.keys[rows], self.values[rows], self.inside[rows])


@dataclass(frozen=True)
class State:
    """Where a decoder is: the states of both LSTMs, and the attention that each word may still receive, (B, S)."""

    reader: LSTMState
    writer: LSTMState
    left: Tensor

    def at(self, rows: Tensor) -> "State":
        (a, b), (c, d) = self.reader, self.writer
        return State((a[:, rows], b[:, rows]), (c[:, rows], d[:, rows]), self.left[rows])


def at_once(mapping: Mapping, scores: Tensor, inside: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the words for all queries, (B, T, S), each by itself, and the bounds, which it does not look at.

    Args:
        mapping: of scores and a mask to weights.
        scores: of the words for each query, (B, T, S).
        inside: where there is a word, (B, S).
        left: the attention that each word may receive, (B, S).
    """
    return mapping(scores, mask=inside.unsqueeze(1)), left


def step_by_step(
    mapping: Mapping, exhaustion: float, scores: Tensor, inside: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with bounds on the sum over all queries: what a word has received it cannot receive again.

    Args:
        mapping: of scores, a mask and upper bounds to weights.
        exhaustion: how much the score of a word grows with the attention it may still receive.
        scores: of the words for each query, (B, T, S).
        inside: where there is a word, (B, S).
        left: the attention that each word may receive, (B, S).
    """
    weights = []
    for step in scores.float().unbind(1):
        bonus = exhaustion * torch.where(left.isfinite(), left, 0.0)
        weights.append(mapping(step + bonus, upper=left.clamp(0.0, 1.0), mask=inside))
        left = left - weights[-1]
    return torch.stack(weights, 1).to(scores.dtype), left


# Of scores, a mask and bounds: weights, and the bounds after them.
Attention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Translator(nn.Module):
    """Scores of the words of a translation.

    Args:
        source: number of words of the one language.
        target: number of words of the other.
        size: of the vectors of words and of states.
        attention: from scores to weights, such as `at_once` with a mapping.
        spread: about how much the scores of a sentence's words differ before anything is learnt.
        fertility: the attention that a word may receive in all, where it is bounded.
        dropout: the share of features that training leaves out.
    """

    def __init__(
        self, source: int, target: int, size: int, attention: Attention, spread: float, fertility: float, dropout: float
    ) -> None:
        super().__init__()
        self.fertility = fertility
        self.encoder = Words(source, size, size // 2, dropout=dropout)
        states = self.encoder.output_size
        self.key, self.query = nn.Linear(states, size, bias=False), nn.Linear(size, size)
        # the features it is multiplied with are about a half
        self.fit = nn.Parameter(2 * spread * size**-0.5 * torch.randn(size))
        self.begin = nn.Linear(states, size)
        self.attention = attention
        self.words = nn.Embedding(target, size)
        self.reader = nn.LSTM(size, size, batch_first=True)
        # reads a query, and states and words of the source
        self.writer = nn.LSTM(size + states + size, size, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(size, target)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, State]:
        """What the sentences (B, S) say, and the decoder at its start."""
        states = self.encoder(source, lengths)
        # where a state knows the words around it, a word is itself: to read it is to attend to it
        values = torch.cat([states, self.dropout(self.encoder.words(source))], -1)
        place = torch.arange(source.shape[1], device=source.device)
        inside, is_end = place < lengths.unsqueeze(-1), place == lengths.unsqueeze(-1) - 1
        # no limit at the end, for words that stand for none
        left = torch.where(is_end, torch.inf, self.fertility)
        # padding has the state 0
        mean = states.sum(1) / lengths.unsqueeze(-1)
        first = torch.tanh(self.begin(mean)).unsqueeze(0)
        nothing = torch.zeros_like(first)
        state = State((first, nothing), (nothing, nothing), left)
        return Memory(self.key(states), values, inside), state

    def forward(self, before: Tensor, memory: Memory, state: State) -> tuple[Tensor, Tensor, State]:
        """Scores of the next words, (B, T, target), weights of the source (B, T, S), and the state after them.

        Args:
            before: the word before each, (B, T), 0 before the first.
            memory: what the sentences say.
            state: the decoder's before the first of these words.
        """
        queries, reader = self.reader(self.dropout(self.words(before)), state.reader)
        # Sums, not products, of queries and keys: these grow with what all queries have in common, until sparse weights
        # are one at a single word, the same for every query, and have no gradient to leave it.
        features = torch.tanh(self.query(queries).unsqueeze(2) + memory.keys.unsqueeze(1))
        weights, left = self.attention(features @ self.fit, memory.inside, state.left)
        read = torch.cat([queries, weights @ memory.values], -1)
        written, writer = self.writer(self.dropout(read), state.writer)
        return self.output(self.dropout(written)), weights, State(reader, writer, left)

    def translate(self, source: Tensor, lengths: Tensor, end: int, longest: int, beam: int, mapping: Mapping) -> Tensor:
        """The best translations that were found, (B, T): words, the end, and anything after it.

        A beam of 1 takes the best word at each step. A larger one keeps so many translations, and in the end chooses
        the one with the highest log-probability for each word.

        Args:
            source: sentences, (B, S).
            lengths: their numbers of words, (B,).
            end: number of the word that ends a translation.
            longest: number of words after which the search ends.
            beam: how many translations to keep of each sentence.
            mapping: from scores to probabilities, which may be zero.
        """
        B, device = len(source), source.device
        memory, state = self.encode(source, lengths)
        rows = torch.arange(B, device=device).repeat_interleave(beam)
        memory, state = memory.at(rows), state.at(rows)
        found = source.new_zeros(B * beam, 1)
        done = torch.zeros(B * beam, dtype=torch.bool, device=device)
        # all translations begin alike: the first step goes on from one of them
        totals = torch.full((B, beam), -torch.inf, device=device)
        totals[:, 0] = 0.0
        steps = torch.zeros(B * beam, device=device)
        for _ in range(longest):
            scores, _, state = self(found[:, -1:], memory, state)
            scores = scores[:, 0].float()
            scores[:, [Vocabulary.PADDING, Vocabulary.UNKNOWN]] = -torch.inf
            log_probabilities = mapping(scores).log()
            # what has ended goes on with its end, at no cost
            log_probabilities[done] = -torch.inf
            log_probabilities[done, end] = 0.0
            steps = steps + ~done
            words = log_probabilities.shape[-1]
            totals, best = (totals.unsqueeze(-1) + log_probabilities.view(B, beam, words)).flatten(1).topk(beam)
            kept = (best // words + beam * torch.arange(B, device=device).unsqueeze(-1)).flatten()
            found = torch.cat([found[kept], (best % words).view(-1, 1)], -1)
            state, steps = state.at(kept), steps[kept]
            done = done[kept] | (found[:, -1] == end)
            if done.all():
                break
        chosen = (totals / steps.view(B, beam)).argmax(-1) + beam * torch.arange(B, device=device)
        return found[chosen, 1:]
