"""Scores that stand for −inf, such as −1e9 or the least float, without their size.

The solver's steps are as large as the largest score, and among scores of −1e9 the others have no digits left. Where a
part is off, a lower score of it changes nothing; so a score far below all others is raised to one that is low enough.
"""

import numpy as np

# Times the largest of the other scores.
FAR = 1e4


def bring_near(scores: np.ndarray) -> np.ndarray:
    """Scores (B, k) with those raised that are far below all others of their instance.

    The highest of them goes to −F, where 2 Σ |others| < F: it pays to switch all others to avoid one of them. Where
    that is impossible their differences still say which, up to F.
    """
    if not scores.size:
        return scores
    with np.errstate(over="ignore"):
        return _raised(scores)


def _raised(scores: np.ndarray) -> np.ndarray:
    ordered = np.sort(scores, 1)
    # of what is left without the k lowest
    sums = np.pad(np.cumsum(np.abs(ordered[:, ::-1]), 1)[:, ::-1], ((0, 0), (0, 1)))
    largest = np.pad(np.maximum(-ordered, ordered[:, -1:]), ((0, 0), (0, 1)))
    is_far = -ordered > FAR * (1 + largest[:, 1:])
    if not is_far.any():
        return scores
    count = np.where(is_far.any(1), scores.shape[1] - is_far[:, ::-1].argmax(1), 0)
    rows = np.arange(len(scores))
    low = FAR * (1 + largest[rows, count]) + 2 * sums[rows, count]
    top = np.where(count > 0, ordered[rows, count - 1], -np.inf)
    raised = np.maximum(top, -low)[:, None] + np.maximum(scores - top[:, None], -low[:, None])
    return np.where(scores <= top[:, None], raised, scores)
