"""The log loss of a linear layer with few inputs, in one pass forward and one backward.

A score is a sum of few products there: making it twice takes less time than writing it down, and each score is read
where it was made. The decoder of an image with 256 levels for each pixel is such a layer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax.autograd import once
from structmax.calling import call
from structmax.losses.split import IGNORED
from structmax.mappings.entmax_rules import ROOM

# With more inputs a product of matrices is as fast, and so it is with fewer words; with more words the scores of a row
# leave the first-level cache, or the shared memory of a GPU.
FEWEST_WORDS, MOST_INPUTS, MOST_WORDS = 64, 32, 4096
MOST_INPUTS_ON_GPU, MOST_WORDS_ON_GPU = 16, 256


def fits(hidden: Tensor, weight: Tensor, backend: str) -> bool:
    """Whether this is the fastest way."""
    n, d = weight.shape
    if hidden.is_cuda or backend == "triton":
        # which computes in float32
        is_answered = hidden.dtype != torch.float64 and backend in ("auto", "triton")
        most_inputs, most_words = MOST_INPUTS_ON_GPU, MOST_WORDS_ON_GPU
    else:
        is_answered = hidden.device.type == "cpu"
        most_inputs, most_words = MOST_INPUTS, MOST_WORDS
    return is_answered and 0 < d <= most_inputs and FEWEST_WORDS <= n <= most_words


class FewInputs(Function):
    """−log softmax(hidden weightᵀ + bias)[target] of each row, 0 where the target is IGNORED: (B,).

    Hidden states (B, d), weights (n, d), biases (n,) and targets (B,), all of one dtype but the last.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, backend: str) -> Tensor:
        # one layer of many that could be asked at once
        given = tuple(t.unsqueeze(0) for t in (hidden, weight, bias, target))
        with torch.autocast(hidden.device.type, enabled=False):
            found = call(ROOM, "layer_loss", given, {"ignored": IGNORED, "rows": len(hidden)}, 3, backend)
        ctx.save_for_backward(hidden, weight, bias, target, *found[1:])
        ctx.backend = backend
        return found[0].squeeze(0)

    @staticmethod
    @once("A linear layer with its entmax loss")
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Any, ...]:
        given = *(t.unsqueeze(0) for t in ctx.saved_tensors[:4]), *ctx.saved_tensors[4:], d_loss.unsqueeze(0)
        with torch.autocast(d_loss.device.type, enabled=False):
            gradients = call(ROOM, "layer_loss_pullback", given, {"ignored": IGNORED}, 3, ctx.backend)
        return *(gradient.squeeze(0) for gradient in gradients), None, None
