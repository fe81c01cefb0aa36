"""Sentences with their translations: from files, as words, as padded batches, and judged by BLEU."""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from structmax.recipes.data import text
from structmax.training.errors import DataError, RunError

WHAT = "sentences and their translations"
# the last word of every sentence; no word that is read from a file looks like it
END = "<end>"
# numbers with points or commas in them, words with hyphens or apostrophes in them, and any other sign by itself
WORD = re.compile(r"\d+(?:[.,:]\d+)+|\w+(?:[-'’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Pair:
    """Words of a sentence and of its translation, and the translation as it is written.

    `links` has (target word, source word), counted from 0, where it is known which word stands for which.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    written: str
    links: tuple[tuple[int, int], ...] = ()


def words(line: str) -> tuple[str, ...]:
    """The words of a line, with punctuation apart.

    Examples:
        >>> from structmax.recipes.data import parallel
        >>> parallel.words("The man's T-shirt costs 3,50 (or so).")
        ('The', "man's", 'T-shirt', 'costs', '3,50', '(', 'or', 'so', ')', '.')
    """
    # an accent is a part of its letter
    return tuple(WORD.findall(unicodedata.normalize("NFC", line)))


def joined(words: Sequence[str]) -> str:
    """Words as a line, with punctuation at the word before, or after it where it opens something.

    Examples:
        >>> from structmax.recipes.data import parallel
        >>> parallel.joined(["Yes", ",", "she", "sings", "."])
        'Yes, she sings.'
    """
    return re.sub(r"([(\[{„‚¿¡]) ", r"\1", re.sub(r" ([.,;:!?)\]}%…”])", r"\1", " ".join(words)))


def read(files: str, lower_case: bool = False) -> list[Pair]:
    """The pairs of a file with a sentence, a tab and its translation in each line, or of two parallel files.

    Args:
        files: path of the one, or paths of both with a comma between them; .gz and .xz are unpacked.
        lower_case: whether capitals are read as small letters.
    """
    pairs = [_pair(source, target, lower_case) for source, target in _sides(files)]
    if not pairs:
        raise DataError(files, None, f"should have {WHAT}, but is empty")
    return pairs


# A line: the file it is in, its number, and its text.
Line = tuple[Path, int, str]


def _sides(files: str) -> Iterator[tuple[Line, Line]]:
    first, comma, second = files.partition(",")
    # a name may have a comma in it
    if not comma or Path(files).exists():
        for number, line in text.lines(files, WHAT):
            if (tabs := line.count("\t")) != 1:
                raise DataError(files, number, f"should be a sentence, a tab and its translation, but has {tabs} tabs")
            source, target = line.split("\t")
            yield (Path(files), number, source), (Path(files), number, target)
        return
    paths = Path(first.strip()), Path(second.strip())
    ends = 0
    for lines in itertools.zip_longest(*(text.lines(path, WHAT) for path in paths)):
        if None in lines:
            shorter, longer = paths if lines[0] is None else paths[::-1]
            reason = f"should have as many lines as {longer}, but ends after {ends}: a line and its translation have "
            raise DataError(shorter, ends or None, reason + "the same number")
        (ends, source), (_, target) = lines
        yield (paths[0], ends, source), (paths[1], ends, target)


def _pair(source: Line, target: Line, lower_case: bool) -> Pair:
    written = []
    for path, number, line in (source, target):
        if not line.strip():
            reason = "should have a sentence and its translation, but one is empty. Try leaving this line out"
            raise DataError(path, number, reason + ("" if path == target[0] == source[0] else " of both files"))
        written.append(line.strip().lower() if lower_case else line.strip())
    return Pair(words(written[0]), words(written[1]), written[1])


def vocabulary(sentences: Sequence[Sequence[str]], frequency: int) -> text.Vocabulary:
    """The words that are there at least so many times, after the end of a sentence."""
    return text.Vocabulary([END, *text.Vocabulary.of(sentences, frequency).words[2:]])


@dataclass(frozen=True)
class Batch:
    """B sentences of up to S words and translations of up to T, with the ends of both, padded with 0."""

    # (B, S) and (B, T)
    source: Tensor
    target: Tensor
    # (B,), both
    source_lengths: Tensor
    target_lengths: Tensor
    # (B, T, S), whether the words are linked; None if no link is known
    gold: Tensor | None

    @property
    def before(self) -> Tensor:
        """The word before each of the target, 0 before the first: (B, T)."""
        return torch.nn.functional.pad(self.target[:, :-1], (1, 0))

    @property
    def inside(self) -> Tensor:
        """Where there is a word of the target: (B, T)."""
        return text.within(self.target_lengths, self.target.shape[1])


class Corpus:
    """Pairs as numbers of words on a device.

    Args:
        pairs: what it holds.
        source: vocabulary of the sentences.
        target: vocabulary of their translations.
        device: where.
    """

    def __init__(
        self, pairs: Sequence[Pair], source: text.Vocabulary, target: text.Vocabulary, device: torch.device
    ) -> None:
        self.pairs = pairs
        self.source = text.Ragged([source.numbers([*pair.source, END]) for pair in pairs], device)
        self.target = text.Ragged([target.numbers([*pair.target, END]) for pair in pairs], device)
        # cells of a matrix with so many columns, counted from 1: 0 is padding
        self.columns = int(self.source.lengths.max())
        self.links = text.Ragged([[1 + self.columns * t + s for t, s in pair.links] for pair in pairs], device)

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, indices: Tensor) -> Batch:
        source, target = self.source.at(indices), self.target.at(indices)
        lengths = self.source.lengths[indices], self.target.lengths[indices]
        return Batch(source, target, *lengths, self._gold(indices, target.shape[1], source.shape[1]))

    def _gold(self, indices: Tensor, T: int, S: int) -> Tensor | None:
        cells = self.links.at(indices)
        if not cells.shape[1]:
            return None
        linked = cells.new_zeros(len(indices), 1 + T * self.columns, dtype=torch.bool).scatter(1, cells, True)
        return linked[:, 1:].unflatten(1, (T, self.columns))[..., :S]


def bleu(lower_case: bool) -> Callable[[Sequence[str], Sequence[str]], float]:
    """A function of translations and references to BLEU, by sacrebleu with its own tokens (13a).

    Reference: Post 2018, A call for clarity in reporting BLEU scores.
    """
    try:
        import sacrebleu
    except ImportError:
        raise RunError(
            "Judging translations needs the package sacrebleu. Try pip install structmax[recipes]."
        ) from None

    def judge(translations: Sequence[str], references: Sequence[str]) -> float:
        return float(sacrebleu.corpus_bleu(translations, [references], lowercase=lower_case, tokenize="13a").score)

    return judge
