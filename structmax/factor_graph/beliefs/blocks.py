"""Mean field on a factor graph: blocks of variables, the fields they feel, and the bound on log Z.

A block is a factor with its variables, or a variable in no factor; `Pair`s couple blocks. The mean of a pair of
literals is a polynomial of the marginals x and y of its variables,

    c + a x + b y + d x y

with d = 0 inside a block in which at most one literal is on, where the product of two of them is 0. So a variable feels

    η_x = θ_x + Σ φ (a + d y)

and q of its block is that of the block alone with these scores. Derivation: README.md of factor_graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from structmax.factor_graph.beliefs.odds import LEAST, LIMIT
from structmax.factor_graph.beliefs.replies import AbstractGroup, Pairs
from structmax.factor_graph.beliefs.sweep import Sweep
from structmax.factor_graph.layout import KINDS, Arrays, Layout
from structmax.factor_graph.variables import entry

# Below this a bound has mass on what is forbidden.
FORBIDDEN = -1e100


class Couplings(NamedTuple):
    """P pairs."""

    # their variables (P, 2), and the free score of each (P,)
    variables: np.ndarray
    score: np.ndarray
    # c (P,), a and b (P, 2), d (P,)
    constant: np.ndarray
    linear: np.ndarray
    product: np.ndarray


class Colour(NamedTuple):
    """Blocks that are updated at once."""

    # their variables (k,)
    variables: Tensor
    # of each end of a pair that pulls at one of them (e,): its place among them, the variable at the other end, the
    # free score, a and d
    place: Tensor
    other: Tensor
    score: Tensor
    linear: Tensor
    product: Tensor
    # of each group of factors: its number, which of its factors are among the blocks (F,), their places (F, k)
    factors: tuple[tuple[int, Tensor, Tensor], ...]


class Plan(NamedTuple):
    """All blocks at once, and in an order in which no two of a colour are coupled; pairs as tensors."""

    whole: Colour
    colours: tuple[Colour, ...]
    ends: Tensor
    score: Tensor
    constant: Tensor
    linear: Tensor
    product: Tensor


class Inside(NamedTuple):
    """What blocks say of their variables."""

    # (B, k)
    marginals: Tensor
    # (B,), what satisfies the factors, of all that their variables could be
    log_partition: Tensor
    impossible: Tensor
    # marginals of own parts, by the number of the group: (B, F, j)
    own: dict[int, Tensor]


class Blocks:
    """The blocks of a graph, for one batch of fields.

    Args:
        sweep: the graph.
        parallel: whether all blocks are updated at once, or one colour after the other.
    """

    def __init__(self, sweep: Sweep, parallel: bool) -> None:
        device = sweep.variable.device
        self.sweep = sweep
        self.plan = sweep.layout.remembered(
            f"blocks on {device}", lambda layout: _plan(layout.arrays, sweep.groups, device)
        )
        self.colours = (self.plan.whole,) if parallel else self.plan.colours

    def scores(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """θ (B, n), φ (B, m), and which instances hold NaN or +inf (B,). A pair that is forbidden has finite scores."""
        theta, phi, lost = self.sweep.scores(tensors)
        pairs = torch.zeros(phi.shape[1], dtype=torch.bool, device=phi.device).index_fill(0, self.plan.score, True)
        return theta, torch.where(pairs, phi.clamp(min=-LEAST), phi), lost

    def start(self, theta: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """η and μ (B, n) without couplings."""
        return theta, self.inside(self.plan.whole, theta, phi).marginals

    def swept(self, theta: Tensor, phi: Tensor, eta: Tensor, mu: Tensor, keep: float) -> tuple[Tensor, Tensor]:
        """η and μ (B, n) after an update of each block, which keeps some of its last η."""
        for colour in self.colours:
            felt = self.felt(colour, theta, phi, mu)
            felt = felt if keep == 0 else torch.lerp(felt, eta[:, colour.variables], keep)
            eta = eta.index_copy(1, colour.variables, felt)
            mu = mu.index_copy(1, colour.variables, self.inside(colour, felt, phi).marginals)
        return eta, mu

    def felt(self, colour: Colour, theta: Tensor, phi: Tensor, mu: Tensor) -> Tensor:
        """η (B, k) of a colour's variables. Those that cannot be on feel nothing."""
        pull = phi[:, colour.score] * (colour.linear + colour.product * mu[:, colour.other])
        own = theta[:, colour.variables]
        return torch.where(own < -LIMIT, own, own.index_add(1, colour.place, pull))

    def inside(self, colour: Colour, eta: Tensor, phi: Tensor) -> Inside:
        """What the blocks of a colour say, at η (B, k) of its variables."""
        sweep, marginals, own = self.sweep, torch.sigmoid(eta), {}
        log_partition = eta.new_zeros(len(eta))
        impossible = torch.zeros_like(log_partition, dtype=torch.bool)
        for number, factors, places in colour.factors:
            group = sweep.groups[number]
            speaks, sign = sweep.speaks[:, group.numbers[factors]], sweep.sign[group.copies[factors]]
            said = group.answer(sign * eta[:, places], phi[:, group.own[factors]], sweep.asked[number])
            on = torch.where(sign > 0, said.marginals, 1 - said.marginals)
            on = torch.where(speaks.unsqueeze(-1), on, marginals[:, places])
            marginals = marginals.index_copy(1, places.flatten(), on.flatten(1))
            log_partition = log_partition + said.log_partition.masked_fill(~speaks, 0.0).sum(-1)
            impossible = impossible | ((said.log_partition < -LIMIT) & speaks).any(-1)
            own[number] = said.own
        return Inside(marginals, log_partition, impossible, own)

    def paired(self, mu: Tensor) -> Tensor:
        """The probabilities (B, P) that both literals of a pair are on."""
        plan = self.plan
        both = mu[:, plan.ends]
        return plan.constant + (plan.linear * both).sum(-1) + plan.product * both.prod(-1)

    def own(self, inside: Inside, mu: Tensor) -> Tensor:
        """Marginals (B, m) of free parts."""
        pieces = [mu.new_zeros(len(mu), 0)]
        for number, group in enumerate(self.sweep.groups):
            pieces.append(self.paired(mu) if isinstance(group, Pairs) else inside.own[number].flatten(1))
        # free scores that belong to no factor
        pieces.append(mu.new_zeros(len(mu), 1))
        return torch.cat(pieces, 1)[:, self.sweep.own_order].masked_fill(~self.sweep.own, 0.0)

    def bound(self, theta: Tensor, phi: Tensor, eta: Tensor, inside: Inside) -> Tensor:
        """The mean of the scores plus the entropy of q: (B,).

        The entropy of a block is log Z at η less ⟨η, μ⟩, and so for a variable by itself; what a factor adds is its log
        Z against variables that are by themselves.
        """
        mu, barred = inside.marginals, theta < -LIMIT
        theta, eta = theta.masked_fill(barred, 0.0), eta.masked_fill(barred, -LEAST)
        of_variables = softplus(eta) - eta * mu + theta * mu
        of_pairs = phi[:, self.plan.score] * self.paired(mu)
        value = of_variables.sum(-1) + inside.log_partition + of_pairs.sum(-1)
        return value.masked_fill(value < FORBIDDEN, -math.inf)


def require_blocks(layout: Layout) -> None:
    """Each variable is in at most one factor besides pairs."""
    arrays = layout.arrays
    count = np.bincount(arrays.variable[~_of_pairs(arrays)], minlength=len(arrays.degree))
    if (count > 1).any():
        first = int((count > 1).argmax())
        for variables in layout.bound.values():
            if first < variables.size:
                raise ValueError(
                    f"mean_field should have each variable in one factor besides `Pair`s, since it sums over one "
                    f"factor at a time, but entry {entry(first, variables.shape)} of `{variables.name}` is in "
                    f"{int(count.max())}. Try `belief_propagation`."
                )
            first -= variables.size


def _of_pairs(arrays: Arrays) -> np.ndarray:
    """Which copies (E,) are of pairs."""
    return np.repeat(arrays.kind == KINDS["pair"], np.diff(arrays.start))


def _couplings(arrays: Arrays, block: np.ndarray) -> Couplings:
    """The pairs of a graph whose variables are in these blocks (n,)."""
    pairs = np.flatnonzero(arrays.kind == KINDS["pair"])
    copies = arrays.start[pairs][:, None] + np.arange(2)
    variables, sign = arrays.variable[copies], arrays.sign[copies]
    # a literal is off + sign · x, with off = 1 where it is negated
    off = (1 - sign) / 2
    constant, linear, product = off.prod(1), sign * off[:, ::-1], sign.prod(1)
    # In a block whose literals l = o + r x are on one at a time, l l' = 0, so x x' = o o' (1 + r + r') + o' x + o x'.
    lightest = np.minimum.reduceat(arrays.weight, arrays.start[:-1])
    single = (arrays.kind == KINDS["sum"]) & (arrays.most < 2) & (lightest == 1)
    first, second = block[variables].T
    exclusive = (first == second) & np.append(single, np.zeros(len(arrays.degree), bool))[first]
    r = np.ones(len(arrays.degree))
    ours = ~_of_pairs(arrays)
    r[arrays.variable[ours]] = arrays.sign[ours]
    o = (1 - r[variables]) / 2
    constant = constant + exclusive * product * o.prod(1) * (1 + r[variables].sum(1))
    linear = linear + (exclusive * product)[:, None] * o[:, ::-1]
    return Couplings(variables, arrays.part[pairs], constant, linear, np.where(exclusive, 0.0, product))


def _plan(arrays: Arrays, groups: list[AbstractGroup], device: torch.device) -> Plan:
    # the number of the factor, and one past these for a variable in none
    block = len(arrays.kind) + np.arange(len(arrays.degree))
    ours = ~_of_pairs(arrays)
    block[arrays.variable[ours]] = np.repeat(np.arange(len(arrays.kind)), np.diff(arrays.start))[ours]
    pairs = _couplings(arrays, block)
    colour = _coloured(block, pairs)
    every = [_colour(arrays, groups, pairs, colour == c, device) for c in range(colour.max(initial=-1) + 1)]
    whole = _colour(arrays, groups, pairs, np.ones(len(block), bool), device)
    tensors = (torch.as_tensor(np.ascontiguousarray(a), device=device) for a in pairs)
    return Plan(whole, tuple(every), *tensors)


def _coloured(block: np.ndarray, pairs: Couplings) -> np.ndarray:
    """A colour for each variable (n,): one for a block, and two for blocks that are coupled."""
    names, block = np.unique(block, return_inverse=True)
    ends = block[pairs.variables]
    ends = np.concatenate([ends, ends[:, ::-1]])[np.tile(pairs.product != 0, 2)]
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    begin = np.searchsorted(ends[:, 0], np.arange(len(names) + 1))
    colour = np.full(len(names), -1)
    for one in range(len(names)):
        taken = np.unique(colour[ends[begin[one] : begin[one + 1], 1]])
        taken = taken[taken >= 0]
        # the first number that is missing
        colour[one] = np.append(taken != np.arange(len(taken)), True).argmax()
    return colour[block]


def _colour(
    arrays: Arrays, groups: list[AbstractGroup], pairs: Couplings, ours: np.ndarray, device: torch.device
) -> Colour:
    """The blocks of some of the variables (n,)."""
    variables = np.flatnonzero(ours)
    place = np.zeros(len(ours), np.int64)
    place[variables] = np.arange(len(variables))
    pair, end = np.nonzero(ours[pairs.variables])
    numbers = (
        place[pairs.variables[pair, end]],
        pairs.variables[pair, 1 - end],
        pairs.score[pair],
        pairs.linear[pair, end],
        pairs.product[pair],
    )
    factors = []
    for number, group in enumerate(groups):
        if not isinstance(group, Pairs):
            over = arrays.variable[group.copies.cpu().numpy()]
            chosen = np.flatnonzero(ours[over[:, 0]])
            if len(chosen):
                places = place[over[chosen]]
                factors.append((number, torch.as_tensor(chosen, device=device), torch.as_tensor(places, device=device)))
    tensors = [torch.as_tensor(array, device=device) for array in (variables, *numbers)]
    return Colour._make([*tensors, tuple(factors)])
