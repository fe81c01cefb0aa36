"""Policies that build a binary tree action by action, each step normalised over what is allowed at it.

    p(y) = Π_t exp θ_t[y_t] / Σ_{a allowed after y_1 … y_{t−1}} exp θ_t[a]

Unlike `structmax.log_prob` of a `ShiftReduce`, which is normalised once over all sequences, this lets θ_t depend on
what was built before. Actions are parts, as everywhere: (…, 2) for [shift, reduce], zeros where nothing is left to do.

Where θ_t does depend on the past, hold a `Transitions` and choose a step at a time with `greedy`, `sample`,
`straight_through` or `gumbel`; if the scores of all steps are known in advance, use a `Policy`. What a beam search has
found, its own or yours, becomes a layer by `straight_through_beam`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.mappings.entmax import entmax
from structmax.numerics.noise import gumbel_like
from structmax.outline import outline
from structmax.parts import scaled
from structmax.questions.topk import TopK
from structmax.structures.shift_reduce import REDUCE, SHIFT, ShiftReduce, possible

__all__ = [
    "Policy",
    "Transitions",
    "greedy",
    "gumbel",
    "log_probs",
    "sample",
    "straight_through",
    "straight_through_beam",
]

Chooser = Callable[[Tensor, Tensor], Tensor]


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


# ---------------------------------------------------------------- one step


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


# ---------------------------------------------------------------- all steps


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
        return self.derive(greedy)

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws: (*sample_shape, …, 2N − 1, 2).

        Args:
            sample_shape: leading dimensions of independent draws.
            generator: random number generator.
        """
        many = replace(self, scores=self.scores.detach().expand(*sample_shape, *self.scores.shape))
        return many.derive(lambda scores, allowed: sample(scores, allowed, generator=generator))

    def beam(self, k: int) -> TopK:
        """The best sequences found with k kept at each step, best first; exact if there are at most k prefixes.

        Args:
            k: how many are kept.

        Returns:
            `values` (k, …), their log p with its gradient, and `parts` (k, …, 2N − 1, 2); −inf and zeros where fewer
            than k were found.
        """
        check.whole("k", k, 1)
        values = self.scores.new_full((k, *self.scores.shape[:-2]), -torch.inf)
        values[0] = 0.0
        state = Transitions(self.leaves.expand(values.shape))
        # What is done goes on as it is, in the first of its two places.
        waits = self.scores.new_tensor([0.0, -torch.inf])
        kept: list[tuple[Tensor, Tensor]] = []
        for scores in self.scores.unbind(-2):
            done = state.done()
            # Empty places stay empty, whatever the scores hold there.
            allowed = state.allowed() & ~values.isneginf().unsqueeze(-1)
            steps = torch.where(done.unsqueeze(-1), waits, log_probs(scores, allowed))
            # (2k, …): all that shift, then all that reduce
            ways = torch.cat((values.unsqueeze(-1) + steps).unbind(-1))
            values, place = ways.topk(k, 0)
            origin, action = place % k, place // k
            action = action.masked_fill(done.gather(0, origin) | values.isneginf(), -1)
            kept.append((origin, action))
            read, height = (t.gather(0, origin) for t in (state.read, state.height))
            state = Transitions(state.lengths, read, height).step(_one_hot(action))
        return TopK(self._followed_back(kept, values), values)

    def _followed_back(self, kept: list[tuple[Tensor, Tensor]], values: Tensor) -> Tensor:
        """The parts of each of the last beams, by where it came from."""
        at = torch.arange(len(values), device=values.device).reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
        actions = []
        for origin, action in reversed(kept):
            actions.append(action.gather(0, at))
            at = origin.gather(0, at)
        sequences = torch.stack(actions[::-1], -1).masked_fill(values.isneginf().unsqueeze(-1), -1)
        return _one_hot(sequences).to(values.dtype)


def _one_hot(actions: Tensor) -> Tensor:
    """(…, 2) of actions (…), zeros for −1."""
    return (actions.unsqueeze(-1) == torch.arange(2, device=actions.device)).to(torch.get_default_dtype())
