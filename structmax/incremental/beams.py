"""What a beam search has found, as a layer."""

from typing import Any

from torch import Tensor

from structmax import check
from structmax.mappings.entmax import entmax
from structmax.parts import scaled


def straight_through_beam(beam: tuple[Any, Tensor], *, alpha: float = 1.0, temperature: float = 1.0) -> Any:
    """The best structure of a beam, with the gradient of the mean of all of them.

        forward  y_1          backward  as if it were Σ_k p_k y_k,  p = entmax_α(values / temperature) over the beam

    A beam that has every structure, with their scores as values, gives the gradient of
    `StraightThrough(Entropy(temperature))`. A narrow one replaces the sum over all structures, which few searches have.

    Args:
        beam: parts y (k, …), a tensor or a tuple of tensors, and their values (k, batch), best first, −inf where there
            is none: what `Policy.beam`, `structmax.topk`, `structmax.smoothed_topk` or your own search returns. The
            gradient goes to the values.
        alpha: 1 for the softmax, 2 for the sparsemax, which leaves out what is far from the best.
        temperature: a number > 0.

    Returns:
        y_1, with shapes and names of the parts without k; zeros where nothing was found.

    Examples:
        >>> import torch, structmax
        >>> from structmax.incremental import Policy, straight_through_beam
        >>> scores = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], requires_grad=True)
        >>> actions = straight_through_beam(Policy(scores).beam(2))
        >>> structmax.ShiftReduce().decode(actions)
        tensor([0, 0, 1, 0, 1])
        >>> actions[2, 1].backward()
        >>> scores.grad[2]
        tensor([-0.1966,  0.1966])

    Reference: Bengio, Léonard & Courville 2013, https://arxiv.org/abs/1308.3432.
    """
    parts, values = beam
    check.positive("temperature", temperature)
    p = entmax(values / temperature, alpha, 0)
    moved = p - p.detach()

    def best(y: Tensor) -> Tensor:
        check.floating("parts", y)
        if y.shape[: p.dim()] != p.shape:
            raise ValueError(
                f"The parts of `beam` should begin with the shape {tuple(p.shape)} of its values, (k, batch), but have "
                f"{tuple(y.shape)}."
            )
        (weighted,) = scaled(moved, (y,))
        return y[0] + weighted.sum(0)

    if isinstance(parts, Tensor):
        return best(parts)
    if isinstance(parts, dict):
        return {name: best(y) for name, y in parts.items()}
    tensors = (None if y is None else best(y) for y in parts)
    return type(parts)(*tensors) if hasattr(parts, "_fields") else tuple(tensors)
