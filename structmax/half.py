"""Half precision where an answer is composed of several.

A kernel computes half precision in float32 and rounds what it returns. The difference of two rounded answers is not the
rounded difference: log Z = 200.41 and ⟨θ, μ⟩ = 199.58 are both 200 in bfloat16, and nothing is left of an entropy of
0.83. So what is composed gets its scores in float32, computes with unrounded numbers, and is rounded once, at the
end. Gradients come back in the dtype of the scores, by the cast. The same holds where a structure adds up scores, such
as those of a first label, before a kernel sees them.
"""

from typing import Any

import torch
from torch import Tensor

from structmax.backends import HALF


def narrow(scores: Any) -> torch.dtype | None:
    """The dtype of scores in half precision, None for others."""
    if isinstance(scores, dict):
        scores = tuple(scores.values())
    tensor = scores[0] if isinstance(scores, tuple | list) and scores else scores
    return tensor.dtype if isinstance(tensor, Tensor) and tensor.dtype in HALF else None


def widened(value: Any) -> Any:
    """Tensors of half precision, also those of a tuple, in float32; all else as it is."""
    if isinstance(value, tuple | list):
        return _like(value, [widened(each) for each in value])
    if isinstance(value, dict):
        return {name: widened(each) for name, each in value.items()}
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The inverse, of an answer: what is float32 in that dtype."""
    if isinstance(value, tuple | list):
        return _like(value, [cast(each, dtype) for each in value])
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _like(value: Any, items: list[Any]) -> Any:
    """A named tuple as it was."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
