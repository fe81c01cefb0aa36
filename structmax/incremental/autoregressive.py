"""A model that scores the next action from what came before, and all that is asked of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.incremental.rows import Distinct, Rows, Sequences, check_state, stacked
from structmax.incremental.search import search
from structmax.numerics.noise import gumbel_like
from structmax.outline import name_of

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True, eq=False)
class Autoregressive:
    """A distribution over sequences of actions, by a model that scores the next one after the other.

        p(y) = Π_t softmax(θ_t)[y_t]          θ_t, state = step(y_{t−1}, state)

    A sequence is over with the action `end`, after `lengths` or after `steps` actions: the probabilities of all of
    these sum to 1. Where a step scores all actions −inf, a sequence breaks off, and its probability is lost.

    All methods call the model once for each step, with all beams or draws of all instances as rows. A row that is over
    is still there, with its last action, and nothing is read from it. Log-probabilities have the gradients of the
    model: search under `torch.no_grad()` where they are not needed.

    Args:
        step: `step(actions, state)`, from the last actions, integers (R,), and a state, to scores (R, A) of the next,
            −inf for what is forbidden, and the next state.
        begin: (B,) integers, what the first step gets as actions: a begin symbol, say.
        state: what the first step gets as state: tensors (B, …), in tuples, lists or dictionaries. They are repeated
            and reordered with the rows. Numbers, None and tensors without dimensions stay as they are.
        steps: how many actions a sequence has at most.
        end: the action that ends a sequence, and belongs to it.
        lengths: (B,) how many actions the sequences of each instance have at most; `steps` by default.

    Examples:
        >>> import torch, structmax
        >>> after = torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]]).log()
        >>> def step(actions, state):
        ...     return after[actions], state
        >>> model = structmax.incremental.Autoregressive(step, torch.tensor([0]), None, steps=3, end=2)
        >>> best = model.beam(3)
        >>> best.actions[:, 0].tolist()
        [[1, 2, -1], [0, 1, 2], [0, 0, 0]]
        >>> best.log_probs.exp()
        tensor([[0.3200],
                [0.1600],
                [0.1250]])
        >>> model.log_prob(best.actions).exp()[0]
        tensor([0.3200])
    """

    step: Step
    begin: Tensor
    state: Any
    steps: int
    _: KW_ONLY
    end: int | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        check.takes("step", self.step, ("actions", "state"))
        check.whole_numbers("begin", self.begin)
        check.whole("steps", self.steps, 1)
        if self.begin.dim() != 1:
            raise ValueError(
                f"`begin` should have shape (B,), an action for each instance, but has {tuple(self.begin.shape)}."
            )
        if self.end is not None:
            check.whole("end", self.end, 0)
        check.lengths("lengths", self.lengths, self.begin.shape, self.steps, "steps")
        check_state(self.state, len(self.begin), "`state`")

    def __repr__(self) -> str:
        ends = "" if self.end is None else f", end {self.end}"
        return f"Autoregressive({name_of(self.step)}; batch ({len(self.begin)},), at most {self.steps} steps{ends})"

    @property
    def most(self) -> Tensor:
        """How many actions the sequences of each instance have at most: (B,)."""
        given = torch.tensor(self.steps) if self.lengths is None else self.lengths
        return given.to(self.begin.device).expand(self.begin.shape)

    def greedy(self) -> Sequences:
        """The best action of each step, one after the other: actions (B, steps). Not always the best sequence."""
        return self._followed((), lambda log_p: log_p.argmax(-1))

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Sequences:
        """Independent exact draws: actions (*sample_shape, B, steps).

        Args:
            sample_shape: leading dimensions of independent draws.
            generator: random number generator.
        """
        if isinstance(sample_shape, int):
            raise TypeError(f"`sample_shape` should be a tuple of sizes, but is {sample_shape}. Try ({sample_shape},).")
        return self._followed(tuple(sample_shape), lambda log_p: (log_p + gumbel_like(log_p, generator)).argmax(-1))

    def beam(self, k: int) -> Sequences:
        """The best sequences found with k kept at each step, best first; exact if there are at most k prefixes.

        Args:
            k: how many are kept.

        Returns:
            actions (k, B, steps), −1 where fewer than k were found, and log_probs (k, B), −inf there.
        """
        check.whole("k", k, 1)
        found = search(self, k, noisy=False)
        return Sequences(found.actions, found.log_probs)

    def sample_without_replacement(self, k: int, *, generator: torch.Generator | None = None) -> Distinct:
        """Exact draws one after the other, each among the sequences not drawn yet: stochastic beam search.

        Args:
            k: how many.
            generator: random number generator.

        Returns:
            actions (k, B, steps), all distinct, in the order drawn, −1 where there are fewer than k; log_probs (k, B),
            the log p of each among all sequences, −inf there; and `perturbed` (k, B), the same with Gumbel noise, which
            falls from draw to draw. It has no gradient.

        Reference: Kool, van Hoof & Welling 2019, Stochastic beams and where to find them,
        https://arxiv.org/abs/1903.06059.
        """
        check.whole("k", k, 1)
        return search(self, k, noisy=True, generator=generator)

    def best_of(
        self, n: int, value: Callable[[Tensor], Tensor] | None = None, *, generator: torch.Generator | None = None
    ) -> Sequences:
        """The best of n independent draws: actions (B, steps).

        Args:
            n: how many are drawn.
            value: from actions (n, B, steps) to numbers (n, B), of which the highest is best; log p by default.
            generator: random number generator.
        """
        check.whole("n", n, 1)
        drawn = self.sample((n,), generator=generator)
        values = drawn.log_probs.detach() if value is None else value(drawn.actions)
        if not isinstance(values, Tensor):
            raise TypeError(
                f"`value` should return a tensor, one number for each draw, but returned {check.called(values)}."
            )
        if values.shape != drawn.log_probs.shape:
            raise ValueError(
                f"`value` should return numbers of shape {tuple(drawn.log_probs.shape)}, one for each draw, but "
                f"returned {tuple(values.shape)}."
            )
        # bools, say for what passes a test, have no argmax
        best = (values.long() if values.dtype == torch.bool else values).argmax(0, keepdim=True)
        at = best.unsqueeze(-1).expand(-1, -1, self.steps)
        return Sequences(drawn.actions.gather(0, at)[0], drawn.log_probs.gather(0, best)[0])

    def log_prob(self, actions: Tensor) -> Tensor:
        """log p of sequences: (…, B), −inf for what is no sequence of its instance, or breaks off.

        Args:
            actions: integers (…, B, T) with T ≤ steps, −1 past the end of a sequence, as all methods here return them.
        """
        check.whole_numbers("actions", actions)
        count = len(self.begin)
        if actions.dim() < 2 or actions.shape[-2] != count or actions.shape[-1] > self.steps:
            raise ValueError(
                f"`actions` should have shape (…, {count}, T) with T at most {self.steps}, but have "
                f"{tuple(actions.shape)}."
            )
        shape = actions.shape[:-1]
        missing = self.steps - actions.shape[-1]
        given = torch.nn.functional.pad(actions.long(), (0, missing), value=-1).reshape(-1, self.steps)
        rows = Rows(self, math.prod(shape[:-1]))
        total = torch.zeros(rows.rows, device=given.device)
        fits = torch.ones_like(rows.over)
        for action in given.unbind(-1):
            # an action at each step until it is over, and none later
            fits = fits & ((action >= 0) != rows.over) & (action >= -1)
            if rows.all_over():
                continue
            log_p = rows.log_probs()
            self._check_actions(given, log_p.shape[-1])
            gained = log_p.gather(-1, action.clamp_min(0).unsqueeze(-1)).squeeze(-1)
            total = total + gained.masked_fill(rows.over | (action < 0), 0.0)
            rows.take(action, ~fits)
        return total.masked_fill(~fits, -math.inf).reshape(shape)

    def _check_actions(self, given: Tensor, size: int) -> None:
        if check.readable(given) and given.numel() and int(given.max()) >= size:
            raise ValueError(f"`actions` should be below {size}, the number of scores, but reach {int(given.max())}.")

    def _followed(self, sample_shape: tuple[int, ...], choose: Callable[[Tensor], Tensor]) -> Sequences:
        """The sequences that `choose` makes of log-probabilities (R, A), an index for each row."""
        rows = Rows(self, math.prod(sample_shape))
        shape = *sample_shape, len(self.begin)
        total = torch.zeros(rows.rows, device=self.begin.device)
        actions = []
        for _ in range(self.steps):
            if rows.all_over():
                break
            log_p = rows.log_probs()
            action = choose(log_p.detach())
            gained = log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1).masked_fill(rows.over, 0.0)
            total = total + gained
            actions.append(rows.take(action, total.isneginf()).reshape(shape))
        total = total.reshape(shape)
        return Sequences(stacked(actions, total, self.steps), total)
