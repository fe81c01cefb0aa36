"""A conditional random field over the steps of a sequence, as a module with its transitions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from structmax import check
from structmax.half import narrow, widened
from structmax.omega.base import AbstractOmega
from structmax.omega.smooth import Entropy, Smooth
from structmax.omega.zero import Zero
from structmax.outline import outline
from structmax.problem import Problem
from structmax.questions.argmax import argmax
from structmax.questions.sample import sample
from structmax.questions.smoothed import checked, smoothed, smoothed_marginals, smoothed_sample, smoothed_topk
from structmax.questions.topk import topk
from structmax.structures.linear_chain import LinearChain
from structmax.structures.linear_chain.tags import TagConstraints

ENTROPY = Entropy()
REDUCTIONS = ("none", "sum", "mean", "token_mean")


class BestTags(NamedTuple):
    """`tags`, k in front of the shape of a mask, best first, and their `log_probs` (k, batch)."""

    tags: Tensor
    log_probs: Tensor

    def __repr__(self) -> str:
        return outline(self)


class CRF(nn.Module):
    """A linear-chain conditional random field: emissions from your network, transitions learnt here.

    log p(tags) = start[y₁] + Σ emissions[n, yₙ] + Σ transitions[yₙ₋₁, yₙ] + end[y_L] − log Z

    `forward` is the log-likelihood: minimise its negative. With another Ω than the entropy it is score − Ω(tags) −
    max_Ω instead, minus the Fenchel-Young loss of that Ω, to be used in the same way. Names and shapes of the
    parameters, arguments, defaults and the order of dimensions are those of pytorch-crf 0.7.2, and state dicts are
    exchanged both ways. The other methods take `emissions` and `mask` as `forward` does.

    A step can have no tag in two ways. A step whose `mask` is False is left out, wherever it is: the chain joins the
    steps on both sides of it. Use this for the later pieces of a word and for padding. A kept step whose tag is
    `ignore_index` belongs to the chain with an unknown tag: all tags it could have are summed over. With another
    Ω, the loss is the smallest of all means of sequences that have the known tags.

    Args:
        num_tags: C, how many tags there are.
        batch_first: whether emissions are (…, N, C) and tags and masks (…, N), or (N, …, C) and (N, …), the default.
        constraints: what may follow what, from `structmax.tag_constraints`. Forbidden tags have probability 0: they are
            never decoded, and tags that break the rules have log-likelihood −inf.
        ignore_index: the tag that says "unknown", usually −100. By default every kept step should have a tag.
        omega: the regulariser that makes the loss and the marginals: `Entropy()`, the default; `LocalL2(t)` or
            `LocalTsallis(alpha, t)`, a recursion with sparse choices; `SquaredNorm(t)`, SparseMAP; `Zero()`, the
            perceptron; or your own.

    Examples:
        >>> import torch, structmax
        >>> crf = structmax.nn.CRF(num_tags=3, batch_first=True)
        >>> emissions, tags = torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2, 0], [2, 2, 0, 0]])
        >>> mask = torch.tensor([[True, True, True, True], [True, False, True, False]])
        >>> loss = -crf(emissions, tags, mask, reduction="mean")
        >>> loss.backward()
        >>> paths = crf.decode(emissions, mask)
        >>> len(paths[0]), len(paths[1])
        (4, 2)

    Reference:
        Lafferty, McCallum and Pereira 2001, Conditional random fields; Mensch and Blondel 2018, Differentiable dynamic
        programming; Blondel, Martins and Niculae 2020, Learning with Fenchel-Young losses.
    """

    pairwise_constraints: Tensor | None
    start_constraints: Tensor | None
    end_constraints: Tensor | None

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        constraints: TagConstraints | None = None,
        ignore_index: int | None = None,
        omega: AbstractOmega | None = None,
    ) -> None:
        super().__init__()
        check.whole("num_tags", num_tags, 1)
        self.num_tags = num_tags
        self.batch_first = batch_first
        self.ignore_index = ignore_index
        self.omega: AbstractOmega = ENTROPY if omega is None else checked(omega)
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        if constraints is not None:
            hint = " Try structmax.tag_constraints(labels)."
            check.instance("constraints", constraints, TagConstraints, "those of `structmax.tag_constraints`", hint)
        for name in TagConstraints._fields:
            rule = None if constraints is None else _fitting(name, getattr(constraints, name), num_tags)
            # It follows the module to its device and stays out of state dicts.
            self.register_buffer(f"{name}_constraints", rule, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all transitions between −0.1 and 0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        given = f"num_tags={self.num_tags}, batch_first={self.batch_first}, ignore_index={self.ignore_index}"
        constrained = "" if self.pairwise_constraints is None else ", constrained"
        return given + constrained + ("" if self.omega == ENTROPY else f", omega={self.omega}")

    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor | None = None, reduction: str = "sum") -> Tensor:
        """The log-likelihood of tags, or minus the Fenchel-Young loss of another Ω; a sequence without steps has 0.

        Args:
            emissions: (N, …, C), or (…, N, C) with `batch_first`.
            tags: (N, …) or (…, N), integers below C, or `ignore_index`. Tags at left-out steps do not matter.
            mask: (N, …) or (…, N), True for the steps that are kept, in any pattern; by default all are.
            reduction: "none", one number for each sequence; "sum" or "mean" of them; or "token_mean", their sum divided
                by the number of tags that are kept and known.

        Returns:
            The batch shape, or one number.
        """
        check.choice("reduction", reduction, REDUCTIONS)
        scores, chain = self.scores(emissions, mask)
        half, scores = narrow(scores), widened(scores)
        check.whole_numbers("tags", tags)
        tags = self._steps("tags", tags, emissions).long()
        keep = torch.ones_like(tags, dtype=torch.bool) if chain.keep is None else chain.keep
        known = keep if self.ignore_index is None else keep & (tags != self.ignore_index)
        self._check_tags(tags, known)
        if self.ignore_index is None:
            tags = torch.where(keep, tags, 0)
            agreeing = _score(scores, tags, keep) - self._omega_at(scores, chain, tags)
        else:
            # max_Ω over the sequences that have the known tags: for the entropy log Σ exp⟨θ, y⟩
            other = known.unsqueeze(-1) & (tags.unsqueeze(-1) != torch.arange(self.num_tags, device=tags.device))
            agreeing = self._value(scores._replace(unary=scores.unary.masked_fill(other, -math.inf)), chain, keep)
        likelihood = _difference(agreeing, self._value(scores, chain, keep))
        if reduction == "mean":
            likelihood = likelihood.mean()
        elif reduction != "none":
            likelihood = likelihood.sum() / (1 if reduction == "sum" else known.sum().clamp_min(1))
        return likelihood if half is None else likelihood.to(half)

    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> list[Any]:
        """The best tags of the kept steps, whatever Ω is: a list for each sequence, nested as the batch is."""
        labels = self.argmax(emissions, mask)
        return _without_gaps((labels if self.batch_first else labels.movedim(0, -1)).tolist())

    def argmax(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The best tags, −1 at steps left out: a tensor shaped like `mask`, for compiled and exported programs."""
        scores, chain = self.scores(emissions, mask)
        return self._as_given(chain.decode(argmax(scores, chain)))

    def topk(self, emissions: Tensor, k: int, mask: Tensor | None = None) -> BestTags:
        """The k best tag sequences, best first; where there are fewer, the rest has −inf and tags of −1.

        With `LocalL2` and `LocalTsallis` they are the most probable of the recursion's random walk. `Zero` and
        `SquaredNorm` define no probabilities: ask `structmax.topk(*crf.scores(emissions), k)`.

        Returns:
            `tags`, k in front of the shape of `argmax`'s answer, and `log_probs` (k, batch), differentiable.
        """
        scores, chain = self.scores(emissions, mask)
        half, scores = narrow(scores), widened(scores)
        if self.omega == ENTROPY:
            parts, values = topk(scores, chain, k)
            log_probs = _difference(values, smoothed(scores, chain, self.omega))
        else:
            parts, log_probs = smoothed_topk(scores, chain, self.omega, k)
        return BestTags(self._as_given(chain.decode(parts), ahead=1), log_probs if half is None else log_probs.to(half))

    def marginals(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The probability of each tag at each step, shaped like `emissions`; 0 at steps left out. Differentiable.

        They are those of the Ω: `LocalL2`, `LocalTsallis` and `SquaredNorm` leave most tags at exactly 0, and `Zero`
        all but the best.
        """
        scores, chain = self.scores(emissions, mask)
        unary = smoothed_marginals(scores, chain, self.omega).unary
        return unary if self.batch_first else unary.movedim(-2, 0)

    def sample(
        self,
        emissions: Tensor,
        mask: Tensor | None = None,
        sample_shape: Sequence[int] = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Independent draws of whole tag sequences, `sample_shape` in front of the shape of `argmax`'s answer.

        With `LocalL2` and `LocalTsallis` they are of the recursion's random walk; `Zero` and `SquaredNorm` have none.
        """
        scores, chain = self.scores(emissions, mask)
        if self.omega == ENTROPY:
            drawn = sample(scores, chain, sample_shape, generator=generator)
        else:
            drawn = smoothed_sample(scores, chain, self.omega, sample_shape, generator=generator)
        return self._as_given(chain.decode(drawn), ahead=len(sample_shape))

    def scores(self, emissions: Tensor, mask: Tensor | None = None) -> tuple[Any, LinearChain]:
        """Scores and structure, batch first, for any other question: `structmax.entropy(*crf.scores(emissions))`."""
        check.floating("emissions", emissions)
        if emissions.dim() < 2 or emissions.shape[-1] != self.num_tags:
            wanted = "(…, N, C)" if self.batch_first else "(N, …, C)"
            raise ValueError(
                f"`emissions` should have shape {wanted} with C = {self.num_tags} tags, "
                f"but have {tuple(emissions.shape)}."
            )
        # Emissions under autocast are narrower than the parameters.
        dtype = torch.promote_types(emissions.dtype, self.transitions.dtype)

        def learnt(parameter: Tensor, rule: Tensor | None) -> Tensor:
            return (parameter if rule is None else parameter + rule).to(dtype)

        scores = LinearChain.Parts(
            (emissions if self.batch_first else emissions.movedim(0, -2)).to(dtype),
            learnt(self.transitions, self.pairwise_constraints),
            learnt(self.start_transitions, self.start_constraints),
            learnt(self.end_transitions, self.end_constraints),
        )
        if mask is None:
            return scores, LinearChain()
        # Tokenisers write masks as integers.
        if not isinstance(mask, Tensor) or mask.is_floating_point():
            check.boolean("mask", mask, ", True where a step is kept")
        return scores, LinearChain(keep=self._steps("mask", mask, emissions).bool())

    def _value(self, scores: Any, chain: LinearChain, keep: Tensor) -> Tensor:
        """max_Ω of the scores, −inf where no sequence is allowed: log Z for the entropy."""
        if not isinstance(self.omega, Zero):
            return smoothed(scores, chain, self.omega)
        # the value of Zero does not tell no sequence from one without steps
        parts = argmax(scores, chain)
        best, lost = chain.decode(parts), parts.unary.isnan().flatten(-2).any(-1)
        nothing = (keep & (best < 0)).any(-1)
        return _score(scores, best.clamp_min(0), keep).masked_fill(nothing, -math.inf).masked_fill(lost, math.nan)

    def _omega_at(self, scores: Any, chain: LinearChain, tags: Tensor) -> Tensor | float:
        """Ω(tags), one number for each sequence or 0 for all."""
        if isinstance(self.omega, Smooth | Zero):
            # known without the parts
            return 0.0
        problem, target = Problem.of(scores, chain), tuple(chain.encode(tags, scores)[:2])
        found = self.omega.at(problem, problem.given("tags", target))
        return problem.shaped(found) if isinstance(found, Tensor) else found

    def _steps(self, name: str, tensor: Tensor, emissions: Tensor) -> Tensor:
        """A tensor with one entry for each step, batch first."""
        check.same_device(name, tensor, emissions)
        if tensor.shape != emissions.shape[:-1]:
            raise ValueError(
                f"`{name}` should have the shape of `emissions` without the last dimension, "
                f"{tuple(emissions.shape[:-1])}, but has {tuple(tensor.shape)}."
            )
        return tensor if self.batch_first else tensor.movedim(0, -1)

    def _as_given(self, tags: Tensor, ahead: int = 0) -> Tensor:
        """Tags (ahead, …, N) in the order of dimensions that emissions have."""
        return tags if self.batch_first else tags.movedim(-1, ahead)

    def _check_tags(self, tags: Tensor, known: Tensor) -> None:
        if not check.readable(tags):
            return
        wrong = known & ((tags < 0) | (tags >= self.num_tags))
        if bool(wrong.any()):
            tag = int(tags[wrong][0])
            hint = (
                f" To leave such steps out, try `mask=tags != {tag}`; to sum over the tags they could have, try "
                f"`CRF(..., ignore_index={tag})`."
            )
            raise ValueError(
                f"`tags` should lie between 0 and {self.num_tags - 1} at every step that is kept, but hold {tag}."
                f"{hint if tag < 0 else ''}"
            )


def _fitting(name: str, rule: Tensor, num_tags: int) -> Tensor:
    wanted = (num_tags, num_tags) if name == "pairwise" else (num_tags,)
    if tuple(rule.shape) != wanted:
        raise ValueError(
            f"`constraints.{name}` should have shape {wanted} for {num_tags} tags, but has {tuple(rule.shape)}. "
            "Were as many labels given to `tag_constraints` as there are tags?"
        )
    return rule


def _difference(score: Tensor, value: Tensor) -> Tensor:
    """−inf, not NaN, where no sequence is allowed."""
    nothing = value.isneginf()
    return score.masked_fill(nothing, -math.inf) - value.masked_fill(nothing, 0.0)


def _score(scores: Any, tags: Tensor, keep: Tensor) -> Tensor:
    """⟨θ, y⟩ of tags (…, N), all between 0 and C − 1: looked up, where `log_prob` would multiply with all parts.

    A border stands before the first step and after the last: as tag C it makes `start` a row and `end` a column of the
    transitions, and a sequence without steps goes from border to border at no cost.
    """
    unary, pairwise, start, end = scores
    border = unary.shape[-1]
    table = torch.cat([torch.cat([pairwise, end.unsqueeze(-1)], -1), pad(start, (0, 1)).unsqueeze(0)])
    # (…, N): 1 + the last step kept up to here, 0 if there is none
    latest = torch.where(keep, torch.arange(1, keep.shape[-1] + 1, device=keep.device), 0).cummax(-1).values
    # (…, N + 1): from which tag to which, into each step and out of the last
    before = pad(tags, (1, 0), value=border).gather(-1, pad(latest, (1, 0)))
    after = pad(tags, (0, 1), value=border)
    emitted = unary.gather(-1, tags.unsqueeze(-1)).squeeze(-1).masked_fill(~keep, 0.0)
    passed = table[before, after].masked_fill(~pad(keep, (0, 1), value=True), 0.0)
    return emitted.sum(-1) + passed.sum(-1)


def _without_gaps(labels: list[Any]) -> list[Any]:
    if labels and isinstance(labels[0], list):
        return [_without_gaps(row) for row in labels]
    return [label for label in labels if label >= 0]
