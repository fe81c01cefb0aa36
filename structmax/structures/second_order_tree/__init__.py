"""Projective dependency trees whose scores look at siblings and grandparents."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.numerics.arcs import decode_arcs, encode_arcs, usable
from structmax.numerics.trees import is_projective_tree


class SecondOrderTreeParts(NamedTuple):
    """The parts of a dependency tree: its arcs, and pairs of arcs that share a node."""

    # (…, N + 1, N + 1): h is the head of m, at [h, m]
    arc: Tensor
    # (…, N + 1, N + 1, N + 1): s and m are neighbouring dependents of h on one side, s the nearer, at [h, s, m]
    sibling: Tensor = None  # type: ignore[assignment]
    # (…, N + 1, N + 1, N + 1): g is the head of h, and h of m, at [g, h, m]
    grandparent: Tensor = None  # type: ignore[assignment]


@dataclass(frozen=True)
class SecondOrderTree(AbstractStructure):
    """Projective dependency trees over N words, with scores for pairs of arcs: siblings, grandparents, or both.

    Scores `Parts(arc, sibling, grandparent)`, of which a tuple of the first two or all three will do:

    - arc (…, N + 1, N + 1) as in `ProjectiveTree`: arc[h, m] is the score of h as the head of m. Node 0 is the root,
      and words are 1 … N. Column 0 and the diagonal are ignored.
    - sibling (…, N + 1, N + 1, N + 1): sibling[h, s, m] is the score of s and m as neighbouring dependents of h on the
      same side of it, s the one nearer to h. The dependent nearest to h on a side has no such s: its arc alone is
      scored. With `single_root` the root has one dependent, so sibling[0] is not used.
    - grandparent (…, N + 1, N + 1, N + 1): grandparent[g, h, m] is the score of g as the head of h and h as that of m.
      Words that hang on the root have no grandparent: their arc alone is scored.

    The score of a tree is the sum over its arcs and over these pairs. `sibling` and `grandparent` may be None, and cost
    nothing then: the time is O(N³) for siblings and O(N⁴) with grandparents. Answers have an empty tensor
    (…, 0, 0, 0) in the place of what is None.

    Args:
        lengths: how many words each instance has, the root not counted; integers that broadcast to the batch.
        single_root: whether the root has exactly one dependent, as in most treebanks, or any number ≥ 1.

    Examples:
        Two words that attract each other as siblings:

        >>> import torch, structmax
        >>> sibling = torch.zeros(4, 4, 4)
        >>> sibling[1, 2, 3] = 1.0
        >>> structure = structmax.SecondOrderTree(single_root=True)
        >>> best = structmax.argmax((torch.zeros(4, 4), sibling), structure)
        >>> structure.decode(best)
        tensor([0, 1, 1])
        >>> best.sibling.nonzero().tolist()
        [[1, 2, 3]]

    References:
        Eisner 1996, Three new probabilistic models for dependency parsing: an exploration. McDonald and Pereira 2006,
        Online learning of approximate dependency parsing algorithms. Koo and Collins 2010, Efficient third-order
        dependency parsers.
    """

    lengths: Tensor | None = None
    single_root: bool = field(kw_only=True)

    Parts: ClassVar[Any] = SecondOrderTreeParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    regularised: ClassVar[tuple[str, ...] | None] = ("arc",)

    def __post_init__(self) -> None:
        if not isinstance(self.single_root, bool):
            raise TypeError(
                f"`single_root` should be True (one word hangs on the root) or False (one or more), "
                f"but is {self.single_root!r}."
            )

    @staticmethod
    def from_dependent_first(arc: Tensor, sibling: Tensor | None = None) -> SecondOrderTreeParts:
        """Scores of arcs [m, h] and siblings [m, h, s], dependents first, in the order of `Parts`.

        Examples:
            >>> import torch, structmax
            >>> arc, sibling = torch.zeros(4, 4), torch.zeros(4, 4, 4)
            >>> sibling[3, 1, 2] = 1.0
            >>> structmax.SecondOrderTree.from_dependent_first(arc, sibling).sibling.nonzero().tolist()
            [[1, 2, 3]]
        """
        return SecondOrderTreeParts(arc.mT, *([] if sibling is None else [sibling.movedim(-3, -1)]))

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or not 1 <= len(scores) <= 3:
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                "`scores` of a SecondOrderTree should be Parts(arc, sibling, grandparent), of which the last two may "
                f"be None, but are {got}. For scores of arcs alone try ProjectiveTree."
            )
        arc, *pairs = SecondOrderTreeParts(*scores)
        if arc.dim() < 2 or arc.shape[-1] != arc.shape[-2] or arc.shape[-1] == 0:
            raise ValueError(
                "`arc` should have shape (…, N + 1, N + 1), row 0 for the root and N words, "
                f"but has {tuple(arc.shape)}."
            )
        wanted = (*arc.shape, arc.shape[-1])
        for name, tensor in zip(SecondOrderTreeParts._fields[1:], pairs, strict=True):
            if tensor is None:
                continue
            check.same_kind(name, tensor, "arc", arc)
            if tensor.shape not in (wanted, (*arc.shape[:-2], 0, 0, 0)):
                raise ValueError(
                    f"`{name}` should have shape {wanted} to match `arc` {tuple(arc.shape)}, "
                    f"but has {tuple(tensor.shape)}. Try None for no such scores."
                )
        self.check_fields(arc.shape[:-2], arc.shape[-2:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        arc, *pairs = SecondOrderTreeParts(*scores)
        return arc, *(arc.new_empty((*arc.shape[:-2], 0, 0, 0)) if t is None else t for t in pairs)

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0] - 1, "words without the root")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        words = tensors[0].shape[-1] - 1
        return {"lengths": self.expanded("lengths", tensors, default=words), "single_root": self.single_root}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arc, sibling, grandparent = tensors
        arcs = usable(arc.shape[-1], self.fields(tensors)["lengths"])
        siblings = arcs.unsqueeze(-1) & arcs.unsqueeze(-2) & _between(arcs)
        if self.single_root:
            siblings = siblings & (torch.arange(arc.shape[-1], device=arc.device) > 0)[:, None, None]
        # a head does not reach over its own head: [g, h, m] with g between h and m is no pair
        grandparents = arcs.unsqueeze(-1) & arcs.unsqueeze(-3) & arcs.unsqueeze(-2) & ~_between(arcs).transpose(-3, -2)
        return arcs, _as_given(siblings, sibling), _as_given(grandparents, grandparent)

    def noise_size(self, scores: Scores) -> int:
        """For each arc: which word is taken, which sibling comes before, and where the words between the two part."""
        return max(1, 3 * (self.tensors(scores)[0].shape[-1] - 1))

    def enumerate(self, scores: Scores) -> Any:
        tensors = self.tensors(scores)
        words = tensors[0].shape[-1] - 1
        n = words if self.lengths is None else int(self.lengths)
        trees = (h for h in itertools.product(range(n + 1), repeat=n) if is_projective_tree(h, self.single_root))
        every = check.few("SecondOrderTree", trees, sum(t.numel() for t in tensors))
        arc, sibling, grandparent = (t.new_zeros(len(every), *t.shape) for t in tensors)
        for k, heads in enumerate(every):
            for m, h in enumerate(heads, 1):
                arc[k, h, m] = 1
                if h > 0 and grandparent.numel():
                    grandparent[k, heads[h - 1], h, m] = 1
            for h, s, m in _siblings(heads) if sibling.numel() else ():
                sibling[k, h, s, m] = 1
        return SecondOrderTreeParts(arc, sibling, grandparent)

    def decode(self, parts: Scores) -> Tensor:
        """The head of each word, 0 for the root, −1 past the length: (…, N), word m at m − 1."""
        heads = decode_arcs(self.tensors(self.fitting(parts))[0], False)
        assert isinstance(heads, Tensor)
        return heads

    def encode(self, heads: Tensor, scores: Scores) -> SecondOrderTreeParts:  # type: ignore[override]
        """Parts of heads (…, N): its arcs, and the pairs that `scores`, whose values do not matter, have a tensor for.

        Words past the length are padding, and may have any head.
        """
        first, *pairs = self.tensors(scores)
        if heads.dim() < 1 or heads.shape[-1] != first.shape[-1] - 1:
            raise ValueError(
                f"`heads` should have shape (…, {first.shape[-1] - 1}), one for each word, not {tuple(heads.shape)}."
            )
        arc = encode_arcs(heads, False, None, None, self.lengths).to(first.dtype)
        # of two dependents of h, 1 if they are neighbours among all of them
        count = arc.cumsum(-1)
        apart = (count.unsqueeze(-1) - count.unsqueeze(-2)).abs()
        sibling = arc.unsqueeze(-1) * arc.unsqueeze(-2) * ((apart == 1) & _between(arc))
        grandparent = arc.unsqueeze(-1) * arc.unsqueeze(-3)
        return SecondOrderTreeParts(arc, *map(_as_given, (sibling, grandparent), pairs))


def _as_given(pairs: Tensor, like: Tensor) -> Tensor:
    """Pairs, or an empty tensor where the scores have none."""
    return pairs if like.shape[-1] > 0 else pairs[..., :0, :0, :0]


def _between(square: Tensor) -> Tensor:
    """Whether y lies between x and z, at [x, y, z] of the nodes of a square."""
    node = torch.arange(square.shape[-1], device=square.device)
    x, y, z = node[:, None, None], node[:, None], node
    return ((x < y) & (y < z)) | ((z < y) & (y < x))


def _siblings(heads: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring dependents s and m of h on one side, from h outwards, by definition."""
    for h in range(len(heads) + 1):
        for side in (range(h + 1, len(heads) + 1), range(h - 1, 0, -1)):
            for s, m in itertools.pairwise(m for m in side if heads[m - 1] == h):
                yield h, s, m
