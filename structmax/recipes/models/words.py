"""Words in their sentences as vectors: embeddings of words, of their characters and tags, read by an LSTM."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from structmax.recipes.data.text import Vocabulary


def embedding(words: int | Tensor, size: int) -> nn.Embedding:
    """Vectors of so many words, of that size, or those that are given, (words, D); all are learnt."""
    if isinstance(words, Tensor):
        return nn.Embedding.from_pretrained(words.clone(), freeze=False, padding_idx=Vocabulary.PADDING)
    return nn.Embedding(words, size, padding_idx=Vocabulary.PADDING)


class BiLSTM(nn.Module):
    """An LSTM in both directions over padded sentences: (B, N, D) and lengths (B,) to (B, N, 2 · size)."""

    def __init__(self, input_size: int, size: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size, size, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Characters(nn.Module):
    """A vector for each spelling: the last states of an LSTM in both directions over its characters.

    Args:
        table: characters of each word, (words, longest), 0 past the last, as `Vocabulary.characters` gives them.
        size: of the vectors, an even number.
    """

    table: Tensor

    def __init__(self, table: Tensor, size: int) -> None:
        super().__init__()
        # made from the data, not learnt
        self.register_buffer("table", table, persistent=False)
        self.embedding = nn.Embedding(int(table.max()) + 1, size, padding_idx=Vocabulary.PADDING)
        self.lstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor) -> Tensor:
        """Of numbers of words, (…), each spelt once: (…, size)."""
        distinct, places = words.unique(return_inverse=True)
        spelt = self.table[distinct]
        lengths = (spelt != Vocabulary.PADDING).sum(-1).clamp_min(1).cpu()
        spelt = self.embedding(spelt[:, : int(lengths.max())])
        packed = pack_padded_sequence(spelt, lengths, batch_first=True, enforce_sorted=False)
        ends = self.lstm(packed)[1][0]
        return torch.cat([ends[0], ends[1]], -1)[places]


class Words(nn.Module):
    """Vectors of the words of sentences, each from its spelling, its tag and the words around it.

    Args:
        words: number of words of the vocabulary, or their vectors, (words, D).
        word_size: of a word's vector, if these are not given.
        size: of the LSTM's states in each direction; the result has twice as many features.
        characters: a module for spellings, or None.
        character_size: of its vectors.
        tags: number of tags; 0 for none.
        tag_size: of a tag's vector.
        layers: of the LSTM.
        dropout: the share of features that training leaves out before and after the LSTM.
        word_dropout: the share of words that training takes for unknown ones.
    """

    def __init__(
        self,
        words: int | Tensor,
        word_size: int,
        size: int,
        *,
        characters: Tensor | None = None,
        character_size: int = 50,
        tags: int = 0,
        tag_size: int = 25,
        layers: int = 1,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words = embedding(words, word_size)
        self.characters = None if characters is None else Characters(characters, character_size)
        self.tags = nn.Embedding(tags, tag_size) if tags else None
        features = self.words.embedding_dim + (0 if characters is None else character_size) + (tag_size if tags else 0)
        self.lstm = BiLSTM(features, size, layers, dropout)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        self.output_size = 2 * size

    def forward(
        self, words: Tensor, lengths: Tensor, spellings: Tensor | None = None, tags: Tensor | None = None
    ) -> Tensor:
        """(B, N, output_size).

        Args:
            words: numbers of words, (B, N), 0 past the last.
            lengths: of the sentences, (B,).
            spellings: rows of the table of characters, (B, N), where there is one.
            tags: numbers of tags, (B, N), where there are any.
        """
        if self.training and self.word_dropout:
            dropped = torch.rand(words.shape, device=words.device) < self.word_dropout
            words = words.masked_fill(dropped & (words != Vocabulary.PADDING), Vocabulary.UNKNOWN)
        features = [self.words(words)]
        if self.characters is not None and spellings is not None:
            features.append(self.characters(spellings))
        if self.tags is not None and tags is not None:
            features.append(self.tags(tags))
        return self.dropout(self.lstm(self.dropout(torch.cat(features, -1)), lengths))
