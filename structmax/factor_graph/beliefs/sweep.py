"""Sum-product on a factor graph: one sweep of messages, beliefs, and the Bethe approximation of log Z.

With a message m_e from a factor to each copy e of a variable i, as log-odds,

    b_i = θ_i + Σ m_e        the variable's belief          η_e = b_i − m_e        what the factor of e hears of i

and the factor replies (replies.py). At a fixed point every factor's marginals are those of its variables, σ(b_i).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.factor_graph.beliefs.odds import CERTAIN, LIMIT, certain, from_scores, together, weights
from structmax.factor_graph.beliefs.replies import groups
from structmax.factor_graph.existence import existing, speaking
from structmax.factor_graph.layout import Layout
from structmax.problem import Problem


class Said(NamedTuple):
    """What factors reply to messages."""

    # log-odds (B, E) that were heard, and the messages in reply
    heard: Tensor
    messages: Tensor
    # (B,), the sum of what all factors weigh, and whether something contradicts
    log_partition: Tensor
    impossible: Tensor
    # (B, m), the marginals of free parts
    own: Tensor


class Sweep:
    """A graph, for one batch of fields.

    Args:
        layout: the graph.
        fields: with one entry for each instance.
        like: scores (B, …), for the batch and the device.
    """

    def __init__(self, layout: Layout, fields: Mapping[str, Any], like: Tensor) -> None:
        device, host = like.device, {k: v.cpu() if isinstance(v, Tensor) else v for k, v in fields.items()}
        arrays = layout.arrays
        self.layout = layout
        self.groups = layout.remembered(f"groups on {device}", lambda layout: groups(layout, device))
        structures = layout.structures(fields)
        self.asked = [group.asked(structures, like) for group in self.groups]
        self.variable = torch.as_tensor(arrays.variable, device=device)
        self.sign = torch.as_tensor(arrays.sign, device=device)
        mask = host.get("mask")
        mask = torch.ones(len(like), len(arrays.degree), dtype=torch.bool) if mask is None else mask
        self.on, self.own = (t.to(device) for t in existing(layout, mask, layout.structures(host)))
        self.speaks = speaking(layout, mask).to(device)
        # where the copies and own scores of the groups, one after the other, belong
        self.copy_order = _inverse([g.copies for g in self.groups], len(arrays.variable), device)
        self.own_order = _inverse([g.own for g in self.groups], self.own.shape[1], device)

    @staticmethod
    def of(problem: Problem, like: Tensor) -> Sweep:
        """That of a problem without its scores."""
        return Sweep(Layout.of_number(problem.shared["layout"]), problem.fields, like)

    def scores(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """θ (B, n) and φ (B, m), −CERTAIN for what cannot be on, and which instances hold NaN or +inf (B,)."""
        theta, phi = (t.double() for t in self.layout.joined(tensors))
        theta, phi = theta.masked_fill(~self.on, -math.inf), phi.masked_fill(~self.own, 0.0)
        lost = ~((theta < math.inf).all(-1) & (phi < math.inf).all(-1))
        theta, phi = (t.masked_fill(lost.unsqueeze(-1), 0.0) for t in (theta, phi))
        return from_scores(theta), from_scores(phi), lost

    def _totals(self, theta: Tensor, messages: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Messages that are not certain (B, E); of each variable their sum, and how many are sure of on and of off."""
        soft, sure_on, sure_off = messages.masked_fill(certain(messages), 0.0), messages > LIMIT, messages < -LIMIT
        barred = theta < -LIMIT

        def summed(start: Tensor, each: Tensor) -> Tensor:
            return start.index_add(1, self.variable, each.to(start.dtype))

        total = summed(theta.masked_fill(barred, 0.0), soft)
        return (
            soft,
            total,
            summed(torch.zeros_like(barred, dtype=torch.int64), sure_on),
            summed(barred.long(), sure_off),
        )

    def say(self, theta: Tensor, phi: Tensor, messages: Tensor) -> Said:
        """One sweep: all factors reply at once."""
        soft, total, on, off = self._totals(theta, messages)
        on_heard = on[:, self.variable] > (messages > LIMIT).long()
        off_heard = off[:, self.variable] > (messages < -LIMIT).long()
        heard = _odds(total[:, self.variable] - soft, on_heard, off_heard)
        impossible = ((on > 0) & (off > 0)).any(-1)
        rows = len(theta)
        replies, owned, weighed = [theta.new_zeros(rows, 0)], [theta.new_zeros(rows, 0)], theta.new_zeros(rows)
        for group, asked in zip(self.groups, self.asked, strict=True):
            speaks, sign = self.speaks[:, group.numbers], self.sign[group.copies]
            odds, former = sign * heard[:, group.copies], sign * messages[:, group.copies]
            reply = group.reply(odds, phi[:, group.own], former, asked)
            impossible = impossible | ((reply.log_partition < -LIMIT) & speaks).any(-1)
            weighed = weighed + reply.log_partition.detach().masked_fill(~speaks, 0.0).sum(-1)
            silent = ~speaks.unsqueeze(-1)
            replies.append((sign * reply.messages).masked_fill(silent, 0.0).flatten(1))
            owned.append(reply.own.masked_fill(silent, 0.0).flatten(1))
        # free scores that belong to no factor
        owned.append(theta.new_zeros(rows, 1))
        said = torch.cat(replies, 1)[:, self.copy_order]
        return Said(heard, said, weighed, impossible, torch.cat(owned, 1)[:, self.own_order])

    def beliefs(self, theta: Tensor, messages: Tensor) -> Tensor:
        """The probabilities (B, n) that variables are on."""
        _, total, on, off = self._totals(theta, messages)
        return torch.sigmoid(_odds(total, on > 0, off > 0))

    def disagreement(self, said: Said, messages: Tensor) -> Tensor:
        """By how much a factor's marginal and its variable's belief differ at most: (B,)."""
        factors, variables = (torch.sigmoid(together(said.heard, m)) for m in (said.messages, messages))
        return torch.nn.functional.pad((factors - variables).abs(), (0, 1)).amax(-1)

    def bethe(self, theta: Tensor, said: Said, messages: Tensor) -> Tensor:
        """Σ over factors of log Z, plus that over variables, less that over copies: (B,)."""
        on, off = weights(messages)
        of_variables = torch.logaddexp(
            theta.index_add(1, self.variable, on), torch.zeros_like(theta).index_add(1, self.variable, off)
        )
        heard_on, heard_off = weights(said.heard)
        of_copies = torch.logaddexp(on + heard_on, off + heard_off)
        return said.log_partition + of_variables.sum(-1) - of_copies.sum(-1)


def _odds(soft: Tensor, on: Tensor, off: Tensor) -> Tensor:
    return torch.where(on, CERTAIN, torch.where(off, -CERTAIN, soft))


def _inverse(pieces: list[Tensor], size: int, device: torch.device) -> Tensor:
    """Where each of `size` entries stands among the pieces; past the end for one that is in none."""
    order = torch.cat([torch.zeros(0, dtype=torch.int64, device=device), *(p.flatten() for p in pieces)])
    index = torch.full((size,), len(order), device=device)
    index[order] = torch.arange(len(order), device=device)
    return index
