"""ListOps: nested operations on lists of digits, `[MAX 2 9 [MIN 4 7 ] 0 ]` = 9.

The answer is a digit, and only a model that follows the brackets finds it. Trees are binary: an operator takes its
arguments one after the other from the left, and the closing bracket last, `( ( ( [MAX 2 ) 9 ) ] )`.

Reference: Nangia & Bowman 2018, ListOps: a diagnostic dataset for latent tree learning.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from structmax.recipes.data import text
from structmax.recipes.data.different import different
from structmax.training.errors import DataError

DIGITS = [str(digit) for digit in range(10)]
OPERATORS = ["[MIN", "[MAX", "[MED", "[SM"]
END = "]"
TOKENS = [*DIGITS, *OPERATORS, END]
INDEX = {token: index for index, token in enumerate(TOKENS)}
# the generator of the paper
VALUE_P, MAX_ARGUMENTS, MAX_DEPTH = 0.25, 5, 20


@dataclass(frozen=True)
class Expression:
    """Tokens, by their place in TOKENS, and the digit they stand for."""

    tokens: tuple[int, ...]
    value: int


def apply(operator: str, values: list[int]) -> int:
    """The digit an operation gives: minimum, maximum, median rounded down, or sum modulo 10."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def grow(chance: random.Random, depth: int, tokens: list[int], longest: int) -> int:
    """Appends a random expression, stopping when it is longer than `longest`, and returns its value."""
    if depth >= MAX_DEPTH or chance.random() > VALUE_P:
        tokens.append(chance.randrange(10))
        return tokens[-1]
    operator = chance.choice(OPERATORS)
    tokens.append(INDEX[operator])
    values = []
    for _ in range(chance.randint(2, MAX_ARGUMENTS)):
        if len(tokens) >= longest:
            break
        values.append(grow(chance, depth + 1, tokens, longest))
    tokens.append(INDEX[END])
    return apply(operator, values or [0])


def generate(count: int, seed: int, longest: int = 1000, without: Iterable[Expression] = ()) -> list[Expression]:
    """Different random expressions of at most `longest` tokens that are not among `without`.

    Args:
        count: how many.
        seed: of the generator.
        longest: in tokens, brackets counted.
        without: expressions to leave out, such as those of a test set.

    Examples:
        >>> from structmax.recipes.data import listops
        >>> for expression in listops.generate(2, seed=1, longest=10):
        ...     print(*(listops.TOKENS[token] for token in expression.tokens), "=", expression.value)
        [MIN 6 0 4 ] = 0
        [MED 4 9 0 8 ] = 6
    """
    chance = random.Random(seed)

    def draw() -> Expression | None:
        tokens: list[int] = []
        value = grow(chance, 1, tokens, longest)
        return Expression(tuple(tokens), value) if 1 < len(tokens) <= longest else None

    what = f"expressions of at most {longest} tokens"
    return different(draw, count, lambda expression: expression.tokens, without, what)


def read(path: str | Path, longest: int | None = None) -> list[Expression]:
    """Expressions of a published file, lines `value<TAB>( ( ( [MAX 2 ) 9 ) ] )`; .gz and .xz are unpacked.

    Args:
        path: of the file.
        longest: in tokens; longer expressions are left out.
    """
    path = Path(path)
    found = [_parsed(line, path, number) for number, line in text.lines(path, "expressions")]
    fitting = [e for e in found if longest is None or len(e.tokens) <= longest]
    if not fitting:
        limit = "" if longest is None else f" of at most {longest} tokens"
        raise DataError(path, None, f"should have expressions{limit}, but none of its {len(found)} lines is one")
    return fitting


def _parsed(line: str, path: Path, number: int) -> Expression:
    value, tab, expression = line.partition("\t")
    if not tab:
        raise DataError(path, number, "should be a value, a tab and an expression, but has no tab")
    if value not in DIGITS:
        raise DataError(path, number, f"the value should be a digit, but is {value!r}")
    words = [word for word in expression.split() if word not in "()"]
    unknown = next((word for word in words if word not in INDEX), None)
    if unknown is not None:
        raise DataError(path, number, f"unknown token {unknown!r}; tokens are {' '.join(TOKENS)}, ( and )")
    tokens = tuple(INDEX[word] for word in words)
    if not _whole(tokens):
        raise DataError(path, number, "brackets do not match, or there is not exactly one expression")
    return Expression(tokens, int(value))


def _whole(tokens: tuple[int, ...]) -> bool:
    """Whether tokens are one expression, with arguments in each of its brackets."""
    depth = 0
    for place, token in enumerate(tokens):
        if token == INDEX[END] and tokens[place - 1] >= 10 and tokens[place - 1] != token:
            return False
        depth += (10 <= token < INDEX[END]) - (token == INDEX[END])
        if depth < 0 or (depth == 0 and place < len(tokens) - 1):
            return False
    return bool(tokens) and depth == 0


def spans(tokens: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The spans of two or more tokens in the binary tree of an expression, children before parents."""
    starts: list[int] = []
    for place, token in enumerate(tokens):
        if token == INDEX[END]:
            begun = starts.pop()
            yield begun, place
        elif token >= 10:
            starts.append(place)
            continue
        if starts:
            yield starts[-1], place


class ListOps:
    """Expressions as padded tensors on a device.

    Args:
        expressions: what it holds.
        device: where.
    """

    def __init__(self, expressions: list[Expression], device: torch.device) -> None:
        self.expressions = expressions
        lengths = torch.tensor([len(e.tokens) for e in expressions])
        self.lengths = lengths.to(device)
        # Tokens and gold spans of all expressions one after the other, and where each begins.
        self.offsets = (lengths.cumsum(0) - lengths).to(device)
        self.tokens = torch.tensor([t for e in expressions for t in e.tokens], dtype=torch.uint8, device=device)
        flat = torch.tensor([pair for e in expressions for pair in spans(e.tokens)], dtype=torch.int16)
        self.gold = flat.reshape(-1, 2).to(device)
        self.values = torch.tensor([e.value for e in expressions], device=device)

    def __len__(self) -> int:
        return len(self.expressions)

    def batch(self, indices: Tensor) -> "Batch":
        """Those expressions, padded to the longest of them."""
        lengths, offsets = self.lengths[indices], self.offsets[indices]
        longest = int(lengths.max())
        place = torch.arange(longest, device=lengths.device)
        inside = place < lengths.unsqueeze(-1)
        tokens = self.tokens[torch.where(inside, offsets.unsqueeze(-1) + place, 0)].long().masked_fill(~inside, 0)
        return Batch(tokens, lengths, self.values[indices], self._spans(indices, inside))

    def _spans(self, indices: Tensor, inside: Tensor) -> Tensor:
        """The gold trees as parts of a `BinaryTree`: (B, N, N)."""
        N = inside.shape[-1]
        # one span fewer than tokens; past them all, the first leaf, which every tree has
        fewer = inside[:, 1:]
        begin = self.offsets[indices] - indices
        places = begin.unsqueeze(-1) + torch.arange(N - 1, device=inside.device)
        i, j = (self.gold[torch.where(fewer, places, 0)].long() * fewer.unsqueeze(-1)).unbind(-1)
        return torch.diag_embed(inside.float()).flatten(1).scatter(1, i * N + j, 1.0).unflatten(1, (N, N))


@dataclass(frozen=True)
class Batch:
    """B expressions of up to N tokens."""

    # (B, N)
    tokens: Tensor
    # (B,), both
    lengths: Tensor
    values: Tensor
    # (B, N, N), parts of a BinaryTree
    gold: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def brackets(self) -> Tensor:
        """Where the operations within others begin and end, from operator to closing bracket: (B, N, N), 0/1."""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        inner = (self.tokens >= len(DIGITS)) & (self.tokens != INDEX[END]) & (place > 0)
        # the longest span that an operator begins is its own
        ends = (self.gold * place).argmax(-1)
        return torch.zeros_like(self.gold).scatter(-1, ends.unsqueeze(-1), inner.unsqueeze(-1).to(self.gold.dtype))
