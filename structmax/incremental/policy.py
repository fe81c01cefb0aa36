"""Shift-reduce with the scores of all steps known in advance: one case of `Autoregressive`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax.incremental.autoregressive import Autoregressive
from structmax.incremental.choices import Chooser, log_probs
from structmax.incremental.transitions import Transitions
from structmax.outline import outline
from structmax.questions.sample import Drawn
from structmax.questions.topk import TopK
from structmax.structures.shift_reduce import REDUCE, SHIFT, ShiftReduce, possible


@dataclass(frozen=True, eq=False)
class Policy:
    """A distribution over action sequences whose step scores are all known in advance, normalised at each step.

    Where −inf leaves a step without an action the sequence breaks off: it is returned as zeros, and probabilities of
    whole sequences sum to less than 1.

    Args:
        scores: θ (…, 2N − 1, 2), for [step, 0] shift and [step, 1] reduce.
        lengths: the number of leaves of each instance, at most N; integers that broadcast to the batch.

    Examples:
        >>> import torch, structmax
        >>> scores = torch.zeros(5, 2)
        >>> scores[2, 1] = 1.0
        >>> policy = structmax.incremental.Policy(scores)
        >>> best = policy.beam(2)
        >>> structmax.ShiftReduce().decode(best.parts)
        tensor([[0, 0, 1, 0, 1],
                [0, 0, 0, 1, 1]])
        >>> best.values.exp()
        tensor([0.7311, 0.2689])
    """

    scores: Tensor
    lengths: Tensor | None = None

    def __repr__(self) -> str:
        return outline(self)

    def __post_init__(self) -> None:
        ShiftReduce(self.lengths).check(self.scores)

    @property
    def leaves(self) -> Tensor:
        """The lengths, one for each instance."""
        steps = self.scores.shape[-2]
        given = torch.tensor((steps + 1) // 2) if self.lengths is None else self.lengths
        return given.to(self.scores.device).expand(self.scores.shape[:-2])

    def log_prob(self, parts: Tensor) -> Tensor:
        """log p of sequences: the batch shape, with any dimensions of `parts` in front. −inf if they build no tree.

        Args:
            parts: (…, 2N − 1, 2), as all methods here, and `ShiftReduce`, return them.
        """
        made = parts > 0
        before = made.long().cumsum(-2) - made.long()
        read, reduced = before.unbind(-1)
        allowed = Transitions(self.leaves.unsqueeze(-1), read, read - reduced).allowed()
        # an allowed action at each step, until the tree is built
        builds = ((made.sum(-1) == allowed.any(-1)) & ~(made & ~allowed).any(-1)).all(-1)
        # What builds no tree is kept from the scores, which may hold anything where it went.
        steps = torch.where(made, log_probs(self.scores, allowed & builds[..., None, None]), 0.0)
        return steps.sum((-2, -1)).masked_fill(~builds, -torch.inf)

    def derive(self, choose: Chooser) -> Tensor:
        """The sequence `choose(scores, allowed)` makes of one step after the other: (…, 2N − 1, 2).

        Args:
            choose: `greedy`, `sample`, `straight_through`, `gumbel`, or your own, from (…, 2) and (…, 2) to one-hot
                actions (…, 2), zeros where no action is left.
        """
        state, actions = Transitions(self.leaves), []
        whole = torch.ones_like(state.done())
        for scores in self.scores.unbind(-2):
            actions.append(choose(scores, state.allowed() & whole.unsqueeze(-1)))
            whole = whole & ((actions[-1] > 0).any(-1) | state.done())
            state = state.step(actions[-1])
        return torch.stack(actions, -2) * whole[..., None, None]

    def greedy(self) -> Tensor:
        """The best action of each step, one after the other: (…, 2N − 1, 2). Not always the best sequence."""
        with torch.no_grad():
            return self._parts(self.model.greedy().actions)

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws: (*sample_shape, …, 2N − 1, 2).

        Args:
            sample_shape: leading dimensions of independent draws.
            generator: random number generator.
        """
        with torch.no_grad():
            return self._parts(self.model.sample(sample_shape, generator=generator).actions)

    def beam(self, k: int) -> TopK:
        """The best sequences found with k kept at each step, best first; exact if there are at most k prefixes.

        Args:
            k: how many are kept.

        Returns:
            `values` (k, …), their log p with its gradient, and `parts` (k, …, 2N − 1, 2); −inf and zeros where fewer
            than k were found.
        """
        actions, values = self.model.beam(k)
        return TopK(self._parts(actions), self._values(values))

    def sample_without_replacement(self, k: int, *, generator: torch.Generator | None = None) -> Drawn:
        """Exact draws one after the other, each among the sequences not drawn yet.

        Args:
            k: how many.
            generator: random number generator.

        Returns:
            `parts` (k, …, 2N − 1, 2), all distinct, in the order drawn, and `log_probs` (k, …) with their gradient;
            zeros and −inf where there are fewer than k.
        """
        actions, values, _ = self.model.sample_without_replacement(k, generator=generator)
        return Drawn(self._parts(actions), self._values(values))

    @property
    def model(self) -> Autoregressive:
        """The policy as a model that scores one step after the other; its instances are the batch in a row."""
        scores, leaves = self.scores.reshape(-1, *self.scores.shape[-2:]), self.leaves.reshape(-1)
        steps = scores.shape[1]

        def step(actions: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            instance, number, read, height = state
            shift, reduce = (actions == SHIFT).long(), (actions == REDUCE).long()
            read, height = read + shift, height + shift - reduce
            allowed = possible(read, height, leaves[instance])
            # those of a sequence that is over are not read
            own = scores[instance, number.clamp_max(steps - 1)]
            return torch.where(allowed, own, -torch.inf), (instance, number + 1, read, height)

        nothing = torch.zeros_like(leaves)
        state = torch.arange(len(leaves), device=leaves.device), nothing, nothing, nothing
        return Autoregressive(step, nothing - 1, state, steps, lengths=(2 * leaves - 1).clamp_min(0))

    def _values(self, values: Tensor) -> Tensor:
        """(k, B) in the shape of the batch and the dtype of the scores."""
        return values.reshape(len(values), *self.scores.shape[:-2]).to(self.scores.dtype)

    def _parts(self, actions: Tensor) -> Tensor:
        """Actions (…, B, 2N − 1) as parts in the shape of the batch, zeros for −1."""
        made = (actions.unsqueeze(-1) == torch.arange(2, device=actions.device)).to(self.scores.dtype)
        return made.reshape(*actions.shape[:-2], *self.scores.shape)
