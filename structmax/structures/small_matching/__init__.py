"""Matchings with a small side, for which every question can be computed."""

from dataclasses import dataclass

from structmax.contract import Scores
from structmax.numerics.pairs import AbstractMatching

# 2¹² subsets for each item of the other side.
LARGEST = 12


@dataclass(frozen=True)
class SmallMatching(AbstractMatching):
    """Matchings of N rows with M columns, at most 12 of them on one side, with their exact distribution.

    The same set as `Matching`, and the same scores (…, N, M): pairs in which no row and no column occurs twice, and the
    smaller side is matched entirely, or with `partial` any of it. Here sums over all matchings are computed, too: the
    log-partition is the logarithm of a permanent, log perm(exp θ) for square scores. A dynamic program over the sets of
    items matched so far, so the cost doubles with each item of the smaller side; every term is positive, and nothing
    cancels.

    Args:
        rows: the true N of each instance, at most N; integers that broadcast to the batch.
        columns: the true M of each instance.
        partial: whether any row or column may stay unmatched, at score 0.

    Examples:
        3! permutations:

        >>> import torch, structmax
        >>> structmax.log_partition(torch.zeros(3, 3), structmax.SmallMatching()).exp().round()
        tensor(6.)
        >>> structmax.marginals(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), structmax.SmallMatching())
        tensor([[0.2689, 0.7311],
                [0.7311, 0.2689]])

    References:
        Held and Karp 1962, A dynamic programming approach to sequencing problems (programs over subsets).
    """

    def check(self, scores: Scores) -> None:
        super().check(scores)
        N, M = self.tensors(scores)[0].shape[-2:]
        if min(N, M) > LARGEST:
            raise ValueError(
                f"`scores` of a SmallMatching should have at most {LARGEST} rows or at most {LARGEST} columns, as its "
                f"time and memory double with each, but have {N} rows and {M} columns. Try `Matching` for best "
                f"matchings, and `sinkhorn` or `sparse_marginals` for soft ones."
            )

    def noise_size(self, scores: Scores) -> int:
        """A decision for each item of the larger side, and one about the set that is matched in the end."""
        return 1 + max(self.tensors(scores)[0].shape[-2:])
