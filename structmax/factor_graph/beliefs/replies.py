"""What factors reply to the log-odds of their literals: messages, by all that satisfies the factor.

A factor with literals x, own parts ν and own scores φ, whose literals have log-odds η, weighs

    Z = Σ over x, ν of  exp(⟨φ, ν⟩) Π p(x_e)        p(x_e) = σ(η_e) where x_e is on, σ(−η_e) where it is off

and its message to a literal is the log-odds of the same sum without p(x_e): it does not depend on η_e.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structmax.contract import AbstractStructure
from structmax.factor_graph.beliefs import merging
from structmax.factor_graph.beliefs.odds import CERTAIN, LIMIT, certain, from_weights, together, weights
from structmax.factor_graph.layout import KINDS, Layout, Outside
from structmax.omega.smooth import Conditioned, Smooth
from structmax.problem import Problem
from structmax.questions.log_partition import ENTROPY

CONDITIONED = Conditioned()
# log-odds of the least positive number, and of the greatest below 1: a marginal of 0 or 1 has these, or more
UNDERFLOW, ROUNDED = -745.0, 36.0
# A marginal that differs from 1 by less has no digits of the difference.
NEAR = 4e-16


class Reply(NamedTuple):
    """Of F factors with k literals and j own parts."""

    # log-odds (B, F, k), differentiable
    messages: Tensor
    # log Z (B, F), impossible where nothing satisfies the factor
    log_partition: Tensor
    # marginals of own parts (B, F, j), differentiable
    own: Tensor


class Answer(NamedTuple):
    """Of F factors with k literals and j own parts, asked for what is inside them alone; all is differentiable."""

    # marginals of literals (B, F, k)
    marginals: Tensor
    # log Z (B, F), and marginals of own parts (B, F, j), as in a reply
    log_partition: Tensor
    own: Tensor


class Asked(NamedTuple):
    """A structure for a batch, and which of its literals can be on at all (B, k)."""

    structure: AbstractStructure
    exists: Tensor


class Posed(NamedTuple):
    """A structure's scores (B, k + j), its problem, and the Ω that is asked, with constants."""

    given: Tensor
    problem: Problem
    omega: Smooth
    constants: tuple[Tensor, ...]


class AbstractGroup(ABC):
    """Equal factors: their numbers among all factors (F,), copies (F, k) and own scores (F, j)."""

    def __init__(self, layout: Layout, numbers: Sequence[int], own: np.ndarray, device: torch.device) -> None:
        start, first = layout.arrays.start, numbers[0]
        copies = start[np.array(numbers)][:, None] + np.arange(start[first + 1] - start[first])
        self.numbers, self.copies, self.own = (
            torch.as_tensor(index, device=device) for index in (np.array(numbers), copies, own)
        )

    @abstractmethod
    def reply(self, odds: Tensor, scores: Tensor, former: Tensor, asked: Asked | None) -> Reply:
        """To log-odds (B, F, k) of literals, with own scores (B, F, j), after former messages (B, F, k)."""

    @abstractmethod
    def answer(self, odds: Tensor, scores: Tensor, asked: Asked | None) -> Answer:
        """Marginals where log-odds (B, F, k) of literals are all that is known."""

    def asked(self, structures: Sequence[AbstractStructure], like: Tensor) -> Asked | None:
        """The structure among the factors that this is, for a batch of the size of `like`."""
        return None


class AbstractExact(AbstractGroup):
    """Factors whose messages are not rounded as marginals are, so that marginals follow from them."""

    # whether exactly one literal is on, and none is negated, so that none is certainly on
    one_is_on: bool = False

    def answer(self, odds: Tensor, scores: Tensor, asked: Asked | None) -> Answer:
        if self.one_is_on:
            log_partition = torch.logsumexp(odds, -1) + weights(odds)[1].sum(-1)
            return Answer(torch.softmax(odds, -1), log_partition, scores)
        reply = self.reply(odds, scores, torch.zeros_like(odds), asked)
        return Answer(torch.sigmoid(together(odds, reply.messages)), reply.log_partition, reply.own)


class Merging(AbstractExact):
    """Sums of literals between bounds, and "the last is on where any other is"."""

    def __init__(self, layout: Layout, numbers: Sequence[int], rule: merging.Rule, device: torch.device) -> None:
        super().__init__(layout, numbers, np.zeros((len(numbers), 0), np.int64), device)
        arrays, factors, copies = layout.arrays, np.array(numbers), self.copies.cpu().numpy()
        bounds = np.stack([arrays.least[factors], arrays.most[factors]])
        plain = (arrays.weight[copies] == 1) & (arrays.sign[copies] == 1)
        self.one_is_on = bool((arrays.kind[factors] == KINDS["sum"]).all() and (bounds == 1).all() and plain.all())
        self.tree = merging.grown(rule).to(device)

    def reply(self, odds: Tensor, scores: Tensor, former: Tensor, asked: Asked | None) -> Reply:
        rest_on, rest_off, log_partition = merging.rest(self.tree, *weights(odds))
        return Reply(from_weights(rest_on, rest_off), log_partition, scores)


class Pairs(AbstractExact):
    """Two literals, and a score where both are on."""

    def reply(self, odds: Tensor, scores: Tensor, former: Tensor, asked: Asked | None) -> Reply:
        on, off = weights(odds)
        # of a literal that is on: the other is off, or is on and scores
        rest = torch.logaddexp(off.flip(-1), on.flip(-1) + scores)
        log_partition = torch.logaddexp(on[..., 0] + rest[..., 0], off[..., 0])
        own = (on.sum(-1, keepdim=True) + scores - log_partition.unsqueeze(-1)).exp()
        return Reply(from_weights(rest, torch.zeros_like(rest)), log_partition, own)


class TableGroup(AbstractExact):
    """One state of each of some groups of literals, and a score for each joint choice."""

    def __init__(
        self, layout: Layout, numbers: Sequence[int], own: np.ndarray, sizes: tuple[int, ...], device: torch.device
    ) -> None:
        super().__init__(layout, numbers, own, device)
        self.sizes = sizes
        self.trees = [merging.grown(merging.of_sum((1.0,) * size, 1.0, 1.0)).to(device) for size in sizes]

    def reply(self, odds: Tensor, scores: Tensor, former: Tensor, asked: Asked | None) -> Reply:
        groups = [weights(group) for group in odds.split(self.sizes, -1)]
        # of each state of a group: the other states are off
        alone = [merging.rest(tree, on, off)[0] for tree, (on, off) in zip(self.trees, groups, strict=True)]
        chosen = [self._along(g, on + others) for g, ((on, _), others) in enumerate(zip(groups, alone, strict=True))]
        table = scores.unflatten(-1, self.sizes)
        messages = []
        for g, (tree, (on, off)) in enumerate(zip(self.trees, groups, strict=True)):
            whole = table
            for h, other in enumerate(chosen):
                whole = whole if h == g else whole + other
            # the weight of each state, by what the others choose
            chance = torch.logsumexp(whole.movedim(2 + g, 2).flatten(3), -1) if len(groups) > 1 else whole
            _, rest_off, log_partition = merging.rest(tree, on + chance, off)
            messages.append(from_weights(chance + alone[g], rest_off))
        for choice in chosen:
            table = table + choice
        own = (table.flatten(2) - log_partition.unsqueeze(-1)).exp()
        return Reply(torch.cat(messages, -1), log_partition, own)

    def _along(self, g: int, states: Tensor) -> Tensor:
        """The weights (B, F, C) of the states of a group, to add to a table."""
        shape = [1] * len(self.sizes)
        shape[g] = self.sizes[g]
        return states.unflatten(-1, shape)


class StructureGroup(AbstractGroup):
    """One structure, which is asked for its marginals.

    What it forbids or demands may follow from its members, and not be told from rounded marginals. It is proven if no
    log-odds changes it, as large as they are: larger than all other scores can make up for.
    """

    def __init__(self, layout: Layout, outside: Outside, place: int, device: torch.device) -> None:
        super().__init__(layout, [outside.number], outside.scores[None], device)
        self.outside, self.place = outside, place
        self.negated = any(outside.negated)
        sizes = [math.prod(shape) for shape in outside.shapes]
        free = np.repeat(outside.free, sizes)
        # from literals and then own parts to all parts in order, and back
        order = np.argsort(free, kind="stable")
        self.sizes, self.to_parts = sizes, torch.as_tensor(np.argsort(order), device=device)
        self.from_parts = torch.as_tensor(order, device=device)

    def _tensors(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Part tensors of literals and own parts (B, k + j)."""
        pieces = flat[:, self.to_parts].split(self.sizes, -1)
        return tuple(t.reshape(len(flat), *shape) for t, shape in zip(pieces, self.outside.shapes, strict=True))

    def asked(self, structures: Sequence[AbstractStructure], like: Tensor) -> Asked | None:
        structure, rows = structures[self.place], len(like)
        every = tuple(like.new_zeros(()).expand(rows, *shape) for shape in self.outside.shapes)
        exists = structure.exists(every)
        if exists is None:
            return Asked(structure, torch.ones(rows, self.copies.shape[1], dtype=torch.bool, device=like.device))
        flat = [e.expand(t.shape).flatten(1) for e, t in zip(exists, every, strict=True)]
        return Asked(structure, torch.cat(flat, 1)[:, self.from_parts[: self.copies.shape[1]]])

    def _posed(self, odds: Tensor, scores: Tensor, asked: Asked, required: Tensor | None) -> Posed:
        """Of log-odds (B, k) and own scores (B, j), and which literals are required (B, k), if any."""
        structure = asked.structure
        given = torch.cat([odds if required is None else odds.masked_fill(required, 0.0), scores], -1)
        given = given.masked_fill(given < -LIMIT, -math.inf)
        problem = Problem.of(structure.parts(self._tensors(given)), structure)
        if required is None:
            return Posed(given, problem, ENTROPY, ())
        padded = torch.nn.functional.pad(required.to(odds.dtype), (0, scores.shape[-1]))
        return Posed(given, problem, CONDITIONED, self._tensors(padded))

    def answer(self, odds: Tensor, scores: Tensor, asked: Asked | None) -> Answer:
        assert asked is not None
        count = odds.shape[-1]
        odds, scores = odds.squeeze(1), scores.squeeze(1)
        # no variable is certainly on, and only those that are certainly off have such literals
        required = odds > LIMIT if self.negated and bool((odds > LIMIT).any()) else None
        posed = self._posed(odds, scores, asked, required)
        parts = posed.omega.point(posed.problem, *posed.constants)
        found = torch.cat([t.flatten(1) for t in parts], 1)[:, None, self.from_parts]
        whole = _against_each(posed.omega.value(posed.problem, *posed.constants), odds)
        return Answer(found[..., :count], whole.unsqueeze(1), found[..., count:])

    def reply(self, odds: Tensor, scores: Tensor, former: Tensor, asked: Asked | None) -> Reply:
        assert asked is not None
        count = odds.shape[-1]
        odds, scores = odds.squeeze(1), scores.squeeze(1)
        required = odds > LIMIT
        given, problem, omega, constants = self._posed(odds, scores, asked, required if bool(required.any()) else None)
        # not under autograd's eyes: log Z has a rule of its own
        log_partition = omega.value(problem.at(tuple(t.detach() for t in problem.scores)), *constants)
        parts = omega.point(problem, *constants)
        found = torch.cat([t.flatten(1) for t in parts], 1)[:, self.from_parts]
        whole = _against_each(log_partition, odds)
        sure = certain(odds)
        soft = odds.masked_fill(sure, 0.0)
        messages = _message(found[:, :count], soft, former.squeeze(1).detach())
        against = _against(found[:, :count], soft)
        sizes = given.detach().nan_to_num(neginf=0.0).abs()
        spread = 2 * (sizes.sum(-1) - (sizes[:, :count] * against).sum(-1)) + sizes.shape[-1] * math.log(2)
        proven = against & (soft.abs() > spread.unsqueeze(-1) - UNDERFLOW)
        messages = torch.where(proven, -CERTAIN * soft.sign(), messages)
        messages = messages.masked_fill(sure, 0.0).masked_fill(~asked.exists, -CERTAIN)
        return Reply(messages.unsqueeze(1), whole.unsqueeze(1), found[:, None, count:])


def _against_each(log_partition: Tensor, odds: Tensor) -> Tensor:
    """A structure's log Z (B,), where literals weigh σ(η) and σ(−η) in place of exp η and 1."""
    sure = certain(odds)
    normaliser = weights(odds.masked_fill(sure, 0.0))[1].masked_fill(sure, 0.0).sum(-1)
    return torch.where(log_partition.isneginf(), -CERTAIN, log_partition) + normaliser


def _against(marginals: Tensor, odds: Tensor) -> Tensor:
    """Whether a marginal is as good as 0 or 1, whatever the literal's own log-odds say."""
    return ((marginals < NEAR) & (odds > 0)) | ((1 - marginals < NEAR) & (odds < 0))


def _message(marginals: Tensor, odds: Tensor, former: Tensor) -> Tensor:
    """The log-odds of marginals less those that went in.

    A marginal that is rounded to 0 or 1 tells nothing but that: the message stays as it was, if that is strong enough,
    and has no derivative. It matters as little, since the variable's belief is 0 or 1, whichever message says so. Where
    two factors want the opposite, their messages double from sweep to sweep, until one is proven.
    """
    none = (marginals <= 0) | ((marginals < NEAR) & (odds > 0))
    all_ = 1 - marginals < NEAR
    middle = marginals.masked_fill(none | all_, 0.5)
    inside = middle.log() - (-middle).log1p() - odds
    fixed = odds.detach()
    low = torch.minimum(former, UNDERFLOW - fixed - fixed.clamp(min=0.0))
    high = torch.maximum(former, ROUNDED - fixed - fixed.clamp(max=0.0))
    return torch.where(none, low, torch.where(all_, high, inside))


def groups(layout: Layout, device: torch.device) -> list[AbstractGroup]:
    """All factors of a graph, equal ones together."""
    arrays, tables = layout.arrays, layout.tables
    alike: dict[tuple[object, ...], list[int]] = {}
    for f in np.flatnonzero((arrays.kind == KINDS["sum"]) | (arrays.kind == KINDS["or_out"])).tolist():
        costs = tuple(arrays.weight[arrays.start[f] : arrays.start[f + 1]].tolist())
        if arrays.kind[f] == KINDS["sum"]:
            alike.setdefault(("sum", costs, float(arrays.least[f]), float(arrays.most[f])), []).append(f)
        else:
            alike.setdefault(("or_out", len(costs)), []).append(f)
    found: list[AbstractGroup] = []
    for (name, *rest), numbers in alike.items():
        rule = merging.of_sum(*rest) if name == "sum" else merging.of_output(*rest)  # type: ignore[arg-type]
        found.append(Merging(layout, numbers, rule, device))
    pairs = np.flatnonzero(arrays.kind == KINDS["pair"])
    if len(pairs):
        found.append(Pairs(layout, pairs.tolist(), arrays.part[pairs][:, None], device))
    shapes: dict[tuple[int, ...], list[int]] = {}
    for t, number in enumerate(tables.groups):
        states = tables.states[tables.begin[t] : tables.begin[t + 1], :number]
        shapes.setdefault(tuple(len(np.unique(column)) for column in states.T), []).append(t)
    for sizes, some in shapes.items():
        own = np.stack([tables.own[tables.begin[t] : tables.begin[t + 1]] for t in some])
        found.append(TableGroup(layout, tables.number[some].tolist(), own, sizes, device))
    return found + [StructureGroup(layout, outside, k, device) for k, outside in enumerate(layout.outside)]
