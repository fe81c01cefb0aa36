"""Projective dependency trees."""

from dataclasses import dataclass

from structmax.contract import Scores
from structmax.numerics.trees import AbstractTree, is_projective


@dataclass(frozen=True)
class ProjectiveTree(AbstractTree):
    """Projective dependency trees over N words: every word has one head, another word or the root, and no arcs cross.

    Scores arc (…, N + 1, N + 1), or (…, N + 1, N + 1, L) for `labelled` arcs: arc[h, m] is the score of h as the head
    of m. Node 0 is the root, and words are 1 … N. The root has no head and no word is its own: column 0 and the
    diagonal are ignored. A part is an arc (with its label), so a tree has one part for each word.

    Projective means that a head governs, directly or through others, every word between itself and each of its
    dependents; arcs drawn above the sentence do not cross, those from the root included.

    With `directed=False`: trees over N nodes in a row, without directions, whose edges do not cross. Scores edge
    (…, N, N), or (…, N, N, L), and edge {i, j} is the part [i, j] with i < j; the diagonal and what is below it are
    ignored. Such a tree, hung from node 0, is projective, and each projective tree is one of these.

    Args:
        lengths: how many words (the root not counted) or nodes each instance has; integers that broadcast to the batch.
        single_root: whether the root has exactly one dependent, as in most treebanks, or any number ≥ 1. Required,
            except with `directed=False`, where True says that node 0 has exactly one edge.
        labelled: whether the scores have a last dimension of labels.
        directed: whether trees are directed away from a root, or have no directions.

    Examples:
        >>> import torch, structmax
        >>> arc = torch.zeros(4, 4)
        >>> arc[0, 2] = arc[2, 1] = arc[2, 3] = 1.0
        >>> structure = structmax.ProjectiveTree(single_root=True)
        >>> structure.decode(structmax.argmax(arc, structure))
        tensor([2, 0, 2])
        >>> structmax.log_partition(torch.zeros(4, 4), structure).exp()
        tensor(7.0000)
        >>> structmax.log_partition(torch.zeros(4, 4), structmax.ProjectiveTree(directed=False)).exp()
        tensor(12.)

    References:
        Eisner 1996, Three new probabilistic models for dependency parsing: an exploration.
    """

    def noise_size(self, scores: Scores) -> int:
        """For each arc: which word is taken, where the words up to it part, and its label."""
        words = self.tensors(scores)[0].shape[-2 - self.labelled] - 1
        return max(1, (3 if self.labelled else 2) * words)

    def _is_member(self, heads: tuple[int, ...], paths: list[list[int]]) -> bool:
        return is_projective(heads, paths)
