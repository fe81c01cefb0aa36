"""Spanning trees: of a directed graph from its root, or of an undirected graph."""

from dataclasses import dataclass
from typing import ClassVar

from structmax.contract import Scores, families
from structmax.numerics.trees import AbstractTree

NO_RECURSION = (
    "spanning trees are counted by a determinant, not by a recursion whose maxima could be smoothed; "
    "ProjectiveTree has one, or ask for `marginals` at a temperature"
)


@dataclass(frozen=True)
class SpanningTree(AbstractTree):
    """Spanning trees over N words and a root: each word has one head, another word or the root, without cycles.

    Scores arc (…, N + 1, N + 1), or (…, N + 1, N + 1, L) for `labelled` arcs: arc[h, m] is the score of h as the head
    of m. Node 0 is the root, and words are 1 … N. The root has no head and no word is its own: column 0 and the
    diagonal are ignored. A part is an arc (with its label), so a tree has one part for each word. Arcs may cross; see
    `ProjectiveTree` for those that may not.

    With `directed=False`: spanning trees over N nodes without directions. Scores edge (…, N, N), or (…, N, N, L), and
    edge {i, j} is the part [i, j] with i < j; the diagonal and what is below it are ignored. Node 0 is a node like the
    others, unless `single_root` lets it have one edge only.

    Args:
        lengths: how many words (the root not counted) or nodes each instance has; integers that broadcast to the batch.
        single_root: whether the root has exactly one dependent, as in most treebanks, or any number ≥ 1. Required,
            except with `directed=False`, where True says that node 0 has exactly one edge.
        labelled: whether the scores have a last dimension of labels.
        directed: whether trees are directed away from a root, or have no directions.

    Examples:
        >>> import torch, structmax
        >>> arc = torch.zeros(4, 4)
        >>> arc[0, 2] = arc[2, 1] = arc[1, 3] = 1.0
        >>> structure = structmax.SpanningTree(single_root=True)
        >>> structure.decode(structmax.argmax(arc, structure))
        tensor([2, 0, 1])
        >>> structmax.log_partition(torch.zeros(4, 4), structure).exp().round()
        tensor(9.)
        >>> structmax.log_partition(torch.zeros(4, 4), structmax.SpanningTree(directed=False)).exp().round()
        tensor(16.)

    References:
        Tutte 1984, Graph theory, VI.4: the matrix-tree theorem of directed graphs. Koo, Globerson, Carreras and
        Collins 2007, Structured prediction models via the matrix-tree theorem.
    """

    intractable: ClassVar[dict[str, str]] = dict.fromkeys(families("smoothed", "noisy", "semiring"), NO_RECURSION)

    def noise_size(self, scores: Scores) -> int:
        """For each word its head and its label, and which word hangs on the root."""
        words = self.tensors(scores)[0].shape[-2 - self.labelled] - 1
        return (1 + self.labelled) * words + 1

    def _is_member(self, heads: tuple[int, ...], paths: list[list[int]]) -> bool:
        return True
