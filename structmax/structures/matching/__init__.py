"""Matchings of two sides: assignments, rectangular and partial ones."""

from dataclasses import dataclass
from typing import ClassVar

from structmax.contract import families
from structmax.numerics.pairs import AbstractMatching

_PERMANENT = (
    "the partition function of matchings is a permanent, which is #P-hard to compute. Try `sinkhorn`, its "
    "entropic relaxation, `sparse_marginals`, `perturb_and_map`, or `SmallMatching`, exact up to 12 on one side."
)
_OF_THE_PERMANENT = families("log_partition", "marginals", "sample", "given", "smoothed", "noisy", "semiring")


@dataclass(frozen=True)
class Matching(AbstractMatching):
    """Matchings of N rows with M columns: sets of pairs in which no row and no column occurs twice.

    Scores (…, N, M), one for each pair. Every member matches the smaller side entirely, min(N, M) pairs, so that square
    scores choose a permutation (the assignment problem). With `partial` any number of pairs is allowed: an unmatched
    row or column scores 0, so a best matching has no pair of negative score.

    The best matchings are found exactly, in O(N² M). Sums over matchings are permanents and raise a `Refusal`.
    `sinkhorn` and `sparse_marginals` relax them; `SmallMatching` computes them where one side has 12 items or fewer.

    Args:
        rows: the true N of each instance, at most N; integers that broadcast to the batch.
        columns: the true M of each instance.
        partial: whether any row or column may stay unmatched.

    Examples:
        >>> import torch, structmax
        >>> scores = torch.tensor([[3.0, 2.0, -1.0], [4.0, 1.0, -2.0]])
        >>> structure = structmax.Matching()
        >>> best = structmax.argmax(scores, structure)
        >>> best
        tensor([[0., 1., 0.],
                [1., 0., 0.]])
        >>> structure.decode(best)
        tensor([1, 0])

    References:
        Kuhn 1955, The Hungarian method for the assignment problem. Jonker and Volgenant 1987, A shortest augmenting
        path algorithm for dense and sparse linear assignment problems. Murty 1968, An algorithm for ranking all the
        assignments in order of increasing cost.
    """

    intractable: ClassVar[dict[str, str]] = dict.fromkeys(_OF_THE_PERMANENT, _PERMANENT)
