"""The composition of two states, with its gradient as one rule.

    [i, f, g, o, u] = W [h_left; h_right] + b          c = σ(i) tanh(u) + σ(f) c_left + σ(g) c_right
                                                       h = σ(o) tanh(c)

Reference: Tai, Socher & Manning 2015, Improved semantic representations from tree-structured long short-term memory
networks.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from structmax.nn.first_order import first_order
from structmax.outline import outline


class State(NamedTuple):
    """What an LSTM knows of a span: h to show and c to keep, (…, H) both."""

    h: Tensor
    c: Tensor

    def __repr__(self) -> str:
        return outline(self)


def liking(query: Tensor, states: State) -> Tensor:
    """⟨q, h⟩ (…). Not under autocast: near ties would be decided by rounding, and steps' logarithms are summed."""
    with torch.autocast(states.h.device.type, enabled=False):
        return states.h @ query


class Cell:
    """The composition of n pairs of states, and its pullback, on memory that is given."""

    @staticmethod
    def forward(gates: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """h and c (n, H) from W [h; h] + b (n, 5 H), which becomes the activations, and the cells of both children."""
        size = left.shape[-1]
        gates[..., : 4 * size].sigmoid_()
        gates[..., 4 * size :].tanh_()
        i, f, g, o, u = gates.split(size, -1)
        c = torch.addcmul(i * u, f, left).addcmul_(g, right)
        return o * c.tanh(), c

    @staticmethod
    def backward(
        gates: Tensor, left: Tensor, right: Tensor, c: Tensor, d_h: Tensor, d_c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The cotangents of W [h; h] + b (n, 5 H), and of the cells of both children."""
        i, f, g, o, u = gates.split(left.shape[-1], -1)
        tanh = c.tanh()
        d_c = torch.addcmul(d_c, d_h * o, 1 - tanh * tanh)
        outer = torch.cat([d_c * u, d_c * left, d_c * right, d_h * tanh, d_c * i], -1)
        # σ′ = σ (1 − σ) for the first four, tanh′ = 1 − tanh² for the last
        slope = torch.addcmul(gates, gates, gates, value=-1)
        slope[..., -left.shape[-1] :] = 1 - u * u
        return outer.mul_(slope), d_c * f, d_c * g


class Pair(Function):
    """h and c (…, H) of pairs, from h of both (…, 2 H) and c of each."""

    @staticmethod
    def forward(
        ctx: Any, pair: Tensor, left: Tensor, right: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = nn.functional.linear(pair, weight, bias)
        h, c = Cell.forward(gates, left, right)
        ctx.save_for_backward(pair, left, right, weight, gates, c)
        return h, c

    @staticmethod
    @first_order
    def backward(ctx: Any, d_h: Tensor, d_c: Tensor) -> tuple[Tensor, ...]:
        pair, left, right, weight, gates, c = ctx.saved_tensors
        d_gates, d_left, d_right = Cell.backward(gates, left, right, c, d_h, d_c)
        flat = d_gates.reshape(-1, d_gates.shape[-1])
        return d_gates @ weight, d_left, d_right, flat.t() @ pair.reshape(-1, pair.shape[-1]), flat.sum(0)
