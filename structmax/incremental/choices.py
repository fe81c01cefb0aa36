"""One step: choosing among the actions that are allowed at it. Actions are one-hot, zeros where none is left."""

from collections.abc import Callable

import torch
from torch import Tensor

from structmax import check
from structmax.numerics.noise import gumbel_like

Chooser = Callable[[Tensor, Tensor], Tensor]


def log_probs(scores: Tensor, allowed: Tensor) -> Tensor:
    """Log-probabilities of actions, normalised over the allowed ones.

    Args:
        scores: of the step's A actions, (…, A). Actions that are not allowed may hold anything.
        allowed: (…, A) bool, as `Transitions.allowed` returns it.

    Returns:
        (…, A), −inf for what is not allowed.

    Examples:
        >>> import torch
        >>> from structmax.incremental import log_probs
        >>> log_probs(torch.zeros(2, 2), torch.tensor([[True, True], [True, False]])).exp()
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000]])
    """
    check.floating("scores", scores)
    check.boolean("allowed", allowed)
    masked = torch.where(allowed, scores, -torch.inf)
    # Nothing to normalise over: kept away from the softmax, whose gradient would be NaN.
    nothing = masked.isneginf().all(-1, keepdim=True)
    return masked.masked_fill(nothing, 0.0).log_softmax(-1).masked_fill(~allowed | nothing, -torch.inf)


def greedy(scores: Tensor, allowed: Tensor) -> Tensor:
    """The best allowed action of one step, one-hot.

    Args:
        scores: of the step's A actions, (…, A). −inf forbids an action.
        allowed: (…, A) bool.

    Returns:
        (…, A), zeros where no action is left. It has no gradient.

    Examples:
        >>> import torch
        >>> from structmax.incremental import greedy
        >>> greedy(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[True, True], [True, False]]))
        tensor([[0., 1.],
                [1., 0.]])
    """
    check.floating("scores", scores)
    check.boolean("allowed", allowed)
    masked = torch.where(allowed, scores.detach(), -torch.inf)
    top, best = masked.max(-1, keepdim=True)
    return torch.zeros_like(masked).scatter(-1, best, (~top.isneginf()).to(masked.dtype))


def sample(scores: Tensor, allowed: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """An action drawn from the allowed ones of one step, one-hot.

    Args:
        scores: of the step's A actions, (…, A). −inf forbids an action.
        allowed: (…, A) bool.
        generator: random number generator.

    Returns:
        (…, A), zeros where no action is left. It has no gradient; `log_probs` has one.

    Examples:
        >>> import torch
        >>> from structmax.incremental import sample
        >>> g = torch.Generator().manual_seed(0)
        >>> sample(torch.zeros(10000, 2), torch.tensor([True, True]), generator=g).mean(0).round(decimals=1)
        tensor([0.5000, 0.5000])
    """
    return greedy(_noisy(scores, allowed, generator), allowed)


def straight_through(scores: Tensor, allowed: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The best allowed action, one-hot, with the gradient of the softmax over the allowed ones.

    Args:
        scores: of the step's A actions, (…, A). −inf forbids an action.
        allowed: (…, A) bool.
        temperature: of the softmax, > 0.

    Returns:
        (…, A), zeros where no action is left.

    Examples:
        >>> import torch
        >>> from structmax.incremental import straight_through
        >>> x = torch.tensor([1.0, 0.0], requires_grad=True)
        >>> action = straight_through(x, torch.tensor([True, True]))
        >>> action.detach()
        tensor([1., 0.])
        >>> action[0].backward()
        >>> x.grad
        tensor([ 0.1966, -0.1966])

    Reference: Bengio, Leonard & Courville 2013, https://arxiv.org/abs/1308.3432.
    """
    check.positive("temperature", temperature)
    soft = log_probs(scores / temperature, allowed).exp()
    return greedy(scores, allowed) + (soft - soft.detach())


def gumbel(
    scores: Tensor, allowed: Tensor, *, temperature: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """A drawn action, one-hot, with the gradient of its Gumbel-softmax relaxation.

    Args:
        scores: of the step's A actions, (…, A). −inf forbids an action.
        allowed: (…, A) bool.
        temperature: of the relaxation, > 0.
        generator: random number generator; the same seed draws what `sample` draws.

    Returns:
        (…, A), zeros where no action is left.

    Examples:
        >>> import torch
        >>> from structmax.incremental import gumbel
        >>> x = torch.zeros(2, requires_grad=True)
        >>> action = gumbel(x, torch.tensor([True, True]), generator=torch.Generator().manual_seed(0))
        >>> action.sum().item()
        1.0
        >>> action[0].backward()
        >>> bool(x.grad[0] > 0)
        True

    Reference: Jang, Gu & Poole 2017, https://arxiv.org/abs/1611.01144; for trees Choi, Yoo & Lee 2018,
    https://arxiv.org/abs/1707.02786.
    """
    return straight_through(_noisy(scores, allowed, generator), allowed, temperature=temperature)


def _noisy(scores: Tensor, allowed: Tensor, generator: torch.Generator | None) -> Tensor:
    """Scores with noise whose argmax is a draw, for each instance its own."""
    check.floating("scores", scores)
    wide = scores.expand(torch.broadcast_shapes(scores.shape, allowed.shape))
    return wide + gumbel_like(wide, generator).to(scores.dtype)
