"""Text files, numbers of words, and batches of sentences that are about as long as one another."""

import contextlib
import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structmax.training.errors import DataError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
SPLITS = ("train", "valid", "test")


def together(config: Any, *names: str) -> bool:
    """Whether the files of these settings are given: all of them, or none.

    Examples:
        >>> from types import SimpleNamespace
        >>> from structmax.recipes.data.text import together
        >>> together(SimpleNamespace(train_file="a", test_file="b"), "train_file", "test_file")
        True
        >>> together(SimpleNamespace(train_file="a", test_file=""), "train_file", "test_file")
        Traceback (most recent call last):
        ...
        ValueError: `train_file` and `test_file` should be given together, but `test_file` is missing. Try all or none.
    """
    missing = [name for name in names if not getattr(config, name)]
    if 0 < len(missing) < len(names):
        raise ValueError(
            f"{_listed(names)} should be given together, but {_listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing. Try all or none."
        )
    return not missing


def _listed(names: Sequence[str]) -> str:
    *before, last = (f"`{name}`" for name in names)
    return f"{', '.join(before)} and {last}" if before else last


def files(config: Any) -> dict[str, str]:
    """The files of a config by split, {} without any. Nothing is held out of a file: there are all three, or none."""
    given = {split: f"{split}_file" for split in SPLITS}
    return {split: getattr(config, name) for split, name in given.items()} if together(config, *given.values()) else {}


def lines(path: str | Path, what: str, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, from 1, without line ends; .gz and .xz are unpacked.

    Args:
        path: of the file.
        what: it should hold, for the message if it cannot be read.
        encoding: of its text.
    """
    # a byte order mark is no part of the text
    codec = "utf-8-sig" if encoding in ("utf-8", "utf8") else encoding
    with opened(path, what, "rt", codec) as file:
        try:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\n")
        except UnicodeDecodeError as error:
            raise DataError(path, None, f"not {encoding.upper()} text ({error.reason})") from None


@contextlib.contextmanager
def opened(path: str | Path, what: str, mode: str, encoding: str | None = None) -> Iterator[Any]:
    """A file, unpacked if its name ends in .gz or .xz; a `DataError` if it cannot be read.

    Arguments are those of `lines`, and the mode, as of `open`.
    """
    try:
        with OPENERS.get(Path(path).suffix, open)(path, mode, encoding=encoding) as file:
            yield file
    except FileNotFoundError:
        raise DataError(path, None, "there is no such file") from None
    # a folder, a file without permission; what gzip and lzma say of files that are damaged or none of theirs
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(path, None, f"should be a file of {what}, but cannot be read ({error})") from None


def blocks(path: str | Path, what: str, encoding: str = "utf-8") -> Iterator[list[tuple[int, str]]]:
    """The runs of numbered lines between empty ones, such as the sentences of a file with a word in each line."""
    block: list[tuple[int, str]] = []
    for number, line in lines(path, what, encoding):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


class Vocabulary:
    """Words and their numbers, the most frequent first. 0 is padding, and 1 any word that is not known.

    Args:
        words: known words, each once.

    Examples:
        >>> from structmax.recipes.data.text import Vocabulary
        >>> vocabulary = Vocabulary.of([["a", "dog"], ["a", "cat"], ["a", "cat"]], least=2)
        >>> len(vocabulary), vocabulary.numbers(["a", "dog", "cat"])
        (4, [2, 1, 3])
    """

    PADDING, UNKNOWN = 0, 1

    def __init__(self, words: Iterable[str]) -> None:
        self.words = ["<padding>", "<unknown>", *words]
        self.index = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, sentences: Iterable[Iterable[str]], least: int = 1) -> "Vocabulary":
        """The words that are there at least so many times."""
        counts = Counter(word for sentence in sentences for word in sentence)
        kept = (word for word, count in counts.items() if count >= least)
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, words: Iterable[str]) -> list[int]:
        return [self.index.get(word, self.UNKNOWN) for word in words]

    def characters(self) -> tuple["Vocabulary", Tensor]:
        """Their characters, and a table of those of each word, (words, longest), padded with 0."""
        known = Vocabulary.of(self.words[2:])
        spelt = [[self.PADDING], [self.UNKNOWN], *(known.numbers(word) for word in self.words[2:])]
        rows = [torch.tensor(row) for row in spelt]
        return known, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Ragged:
    """Rows of numbers of different lengths, one after the other in one tensor on a device.

    Args:
        rows: lists of integers.
        device: where to keep them.

    Examples:
        >>> import torch
        >>> from structmax.recipes.data.text import Ragged
        >>> rows = Ragged([[4, 5, 6], [7]], torch.device("cpu"))
        >>> rows.at(torch.tensor([1, 0]))
        tensor([[7, 0, 0],
                [4, 5, 6]])
    """

    def __init__(self, rows: Sequence[Sequence[int]], device: torch.device) -> None:
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        self.lengths = lengths.to(device)
        self.offsets = (lengths.cumsum(0) - lengths).to(device)
        # one more, so that there is something to read even where no row has anything
        self.values = torch.tensor([value for row in rows for value in row] + [0], device=device)

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, indices: Tensor) -> Tensor:
        """Those rows, padded with 0 to the longest of them: (B, N)."""
        lengths, offsets = self.lengths[indices], self.offsets[indices]
        place = torch.arange(int(lengths.max()), device=lengths.device)
        inside = place < lengths.unsqueeze(-1)
        return self.values[torch.where(inside, offsets.unsqueeze(-1) + place, 0)].masked_fill(~inside, 0)


def by_length(
    lengths: Tensor, size: int, generator: torch.Generator, longest: int | None = None, pool: int = 50
) -> list[Tensor]:
    """Indices in random batches whose rows are about as long as one another.

    Args:
        lengths: of all rows.
        size: of a batch.
        generator: random number generator, on the CPU.
        longest: longer rows are left out; by default none is.
        pool: number of batches that are sorted together.
    """
    lengths = lengths.cpu()
    order = torch.randperm(len(lengths), generator=generator)
    if longest is not None:
        order = order[lengths[order] <= longest]
    batches: list[Tensor] = []
    for chunk in order.split(size * pool):
        batches += chunk[lengths[chunk].argsort(stable=True)].split(size)
    return [batches[k] for k in torch.randperm(len(batches), generator=generator)]


def in_order(lengths: Tensor, size: int) -> tuple[Tensor, ...]:
    """Indices of all rows, from short to long, in batches."""
    return lengths.cpu().argsort(stable=True).split(size)


def within(lengths: Tensor, size: int) -> Tensor:
    """Which of `size` places are within the lengths (…): (…, size)."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def listed(path: str | Path, words: Container[str]) -> set[str]:
    """Those of the words that a file of vectors has."""
    return {word for _, line in lines(path, "word vectors") if (word := line.partition(" ")[0]) in words}


def vectors(path: str | Path, vocabulary: Vocabulary) -> Tensor:
    """Vectors of known words, (words, D), from a text file: lines of a word and D numbers, with spaces between them.

    A word that is not in the file may be there in lower case. Any other has random numbers, as large as the rest.
    """
    wanted: dict[str, list[int]] = {}
    for number, word in enumerate(vocabulary.words):
        wanted.setdefault(word, []).append(number)
        if word.lower() != word:
            wanted.setdefault(word.lower(), []).append(number)
    found: dict[int, list[float]] = {}
    size = None
    for line, text in lines(path, "word vectors"):
        word, _, rest = text.partition(" ")
        # some files begin with the number of words and the size
        if line == 1 and len(rest.split()) == 1:
            continue
        if word not in wanted:
            continue
        try:
            row = [float(value) for value in rest.split()]
        except ValueError:
            if size is not None and len(rest.split()) > size:
                # a word with spaces in it
                continue
            raise DataError(path, line, "should be a word and numbers, with spaces between them") from None
        size = size or len(row)
        if len(row) != size or not row:
            raise DataError(path, line, f"should have {size or 'some'} numbers after the word, but has {len(row)}")
        for number in wanted[word]:
            if word == vocabulary.words[number] or number not in found:
                found[number] = row
    if size is None:
        raise DataError(path, None, "should have vectors of words in the data, but has none of them")
    known = torch.tensor(list(found.values()))
    table = known.std() * torch.randn(len(vocabulary), size)
    table[list(found)] = known
    table[Vocabulary.PADDING] = 0.0
    return table
