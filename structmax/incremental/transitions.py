"""The state of a shift-reduce parser, for a batch of instances."""

import torch
from torch import Tensor

from structmax import check
from structmax.structures.shift_reduce import REDUCE, SHIFT, possible


class Transitions:
    """How far each instance of a batch is: leaves read, and trees on the stack.

    Args:
        lengths: the number of leaves of each instance, a number or integers of the batch shape.
        read: how many of them were shifted; none by default.
        height: how many trees are on the stack; none by default.

    Examples:
        >>> import torch, structmax
        >>> from structmax.incremental import Transitions, greedy
        >>> state, actions = Transitions(torch.tensor([3, 1])), []
        >>> while not state.done().all():
        ...     # from a model that looks at its stacks; here, reduce if you can
        ...     scores = torch.tensor([0.0, 1.0])
        ...     actions.append(greedy(scores, state.allowed()))
        ...     state = state.step(actions[-1])
        >>> structmax.ShiftReduce().decode(torch.stack(actions, -2))
        tensor([[ 0,  0,  1,  0,  1],
                [ 0, -1, -1, -1, -1]])
    """

    def __init__(self, lengths: int | Tensor, read: Tensor | None = None, height: Tensor | None = None) -> None:
        leaves = torch.as_tensor(lengths)
        check.whole_numbers("lengths", leaves)
        given = (torch.zeros_like(leaves) if t is None else t for t in (read, height))
        self.lengths, self.read, self.height = torch.broadcast_tensors(leaves, *given)

    def allowed(self) -> Tensor:
        """Whether each instance may shift, and reduce: (…, 2) bool, all False when its tree is built."""
        return possible(self.read, self.height, self.lengths)

    def done(self) -> Tensor:
        """Whether nothing is left to do: (…) bool."""
        return ~self.allowed().any(-1)

    def step(self, action: Tensor) -> "Transitions":
        """The state after actions (…, 2), one-hot or zeros for none, as a new object."""
        made = action.detach() > 0
        if check.readable(made) and bool((made & ~self.allowed()).any()):
            raise ValueError(
                "`action` should be among those `allowed()`, but shifts where no leaf is left, or reduces fewer than "
                "two trees. Try a chooser such as greedy(scores, state.allowed())."
            )
        shift, reduce = made[..., SHIFT].long(), made[..., REDUCE].long()
        return Transitions(self.lengths, self.read + shift, self.height + shift - reduce)
