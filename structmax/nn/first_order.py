"""Hand-written gradients that cannot be differentiated again, and raise an error instead."""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def first_order(backward: Callable[..., T]) -> Callable[..., T]:
    """Marks a Function's backward; torch's own mark is silent where the incoming gradient needs none."""

    @functools.wraps(backward)
    def once(*arguments: object) -> T:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The gradient of a recurrent module should be taken once, but create_graph=True asks for one that can "
                "be differentiated again, which is not implemented. Try without it."
            )
        return backward(*arguments)

    return once
