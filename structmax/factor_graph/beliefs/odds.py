"""Log-odds log p(1)/p(0) of binary variables, which may be certain, as finite numbers.

−inf and its differences make NaN in gradients. Here a certain log-odds is ±CERTAIN, an impossible weight −CERTAIN, and
what lies beyond LIMIT counts as such. Scores are not, down to LEAST, below which they are raised to it. Sums of log
weights, which are not positive if they are impossible, stay impossible; certain log-odds are not added.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

CERTAIN = 1e300
LIMIT = 1e250
LEAST = 1e200


def from_scores(scores: Tensor) -> Tensor:
    """Scores, of which −inf and not +inf may be some, as such numbers."""
    return torch.where(scores.isneginf(), -CERTAIN, scores.clamp(-LEAST, LEAST))


def certain(odds: Tensor) -> Tensor:
    """Whether it is certain that a variable is on, or that it is off."""
    return odds.abs() > LIMIT


def weights(odds: Tensor) -> tuple[Tensor, Tensor]:
    """log p(1) and log p(0)."""
    return logsigmoid(odds), logsigmoid(-odds)


def from_weights(on: Tensor, off: Tensor) -> Tensor:
    """The log-odds of log weights, 0 where both are impossible."""
    impossible_on, impossible_off = on < -LIMIT, off < -LIMIT
    sure = (impossible_off.to(on.dtype) - impossible_on.to(on.dtype)) * CERTAIN
    return torch.where(impossible_on | impossible_off, sure, on - off)


def together(a: Tensor, b: Tensor) -> Tensor:
    """The log-odds of a product, where a and b are not certain of different things."""
    return torch.where(certain(a), a, torch.where(certain(b), b, a + b))
