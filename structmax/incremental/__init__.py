"""Sequences of actions that are chosen one after the other, each step normalised over what is allowed at it.

    p(y) = Π_t exp θ_t[y_t] / Σ_{a allowed after y_1 … y_{t−1}} exp θ_t[a]

θ_t may depend on what was chosen before. `Autoregressive` is any model that scores the next action from a state:
greedy, drawn, by a beam, and drawn without replacement. One case of it are the actions that build a binary tree.
Unlike `structmax.log_prob` of a `ShiftReduce`, which is normalised once over all sequences, these are normalised at
each step. If the scores of all steps are known in advance, use a `Policy`; where they depend on the past, hold a
`Transitions` and choose a step at a time with `greedy`, `sample`, `straight_through` or `gumbel`. What a beam search
has found, its own or yours, becomes a layer by `straight_through_beam`.

Actions of `Autoregressive` are integers, so that a vocabulary may be large: (…, steps), −1 past the end. Those that
build trees are parts, as everywhere: (…, 2) for [shift, reduce], zeros where nothing is left to do.
"""

from structmax.incremental.autoregressive import Autoregressive
from structmax.incremental.beams import straight_through_beam
from structmax.incremental.choices import Chooser as Chooser
from structmax.incremental.choices import greedy, gumbel, log_probs, sample, straight_through
from structmax.incremental.policy import Policy
from structmax.incremental.rows import Distinct, Sequences
from structmax.incremental.transitions import Transitions

__all__ = [
    "Autoregressive",
    "Distinct",
    "Policy",
    "Sequences",
    "Transitions",
    "greedy",
    "gumbel",
    "log_probs",
    "sample",
    "straight_through",
    "straight_through_beam",
]
