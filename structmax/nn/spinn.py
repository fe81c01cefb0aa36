"""A network that reads a sentence and builds its tree at once, many sentences side by side, on thin stacks.

Every step makes one node: a shift takes the next leaf, a reduce composes the two topmost nodes. So the node on top of a
stack is always the one made last, and a stack is a list of pointers, from each node to the one below it:

    below[new] = top                  after a shift
    below[new] = below[below[top]]    after a reduce

Nodes are written once and never moved: memory is O(N), where a copy of the stack at each step would make it O(N²).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from structmax import check
from structmax.incremental import Chooser, Policy, Transitions, greedy
from structmax.nn.first_order import first_order
from structmax.nn.leaves import count_leaves
from structmax.outline import outline
from structmax.structures.shift_reduce import REDUCE, SHIFT


class Built(NamedTuple):
    """What a `Spinn` built: of each instance the state of its root, and how it came there."""

    # (…, H), zeros where there is no leaf
    root: Tensor
    # (…, 2N − 1, 2), zeros after the last step of an instance
    scores: Tensor
    # (…, 2N − 1, 2), parts of `ShiftReduce`
    actions: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Spinn(nn.Module):
    """Shifts and reduces step by step; an LSTM, the tracker, watches the stack and scores the next action.

        tracker  z_t = LSTM(z_{t−1}, [next leaf, top, second])          scores  θ_t = V z_t
        reduce   o, i, f_l, f_r = σ(·), g = tanh(·) of [second, top, z_t]
                 c = i ∘ g + f_l ∘ c_second + f_r ∘ c_top,  h = o ∘ tanh c

    The new node is shift · leaf + reduce · composed, so that actions with a gradient, of `straight_through`, `gumbel`
    or `structmax.surrogate`, learn from what is built. Actions without one learn by `Policy.log_prob`, if a target or a
    reward is known. Differentiable once.

    Args:
        input_size: D, of a leaf.
        hidden_size: H, of a node.
        tracker_size: of the tracker; by default H.

    Examples:
        >>> import torch, structmax
        >>> spinn = structmax.nn.Spinn(input_size=8, hidden_size=16)
        >>> leaves, lengths = torch.randn(2, 5, 8), torch.tensor([5, 3])
        >>> built = spinn(leaves, lengths, choose=structmax.incremental.sample)
        >>> built.root.shape, built.actions.shape
        (torch.Size([2, 16]), torch.Size([2, 9, 2]))
        >>> built.actions.sum(1)
        tensor([[5., 4.],
                [3., 2.]])
        >>> structmax.incremental.Policy(built.scores, lengths).log_prob(built.actions).shape
        torch.Size([2])

    Reference: Bowman, Gauthier, Rastogi, Gupta, Manning & Potts 2016, https://arxiv.org/abs/1603.06021; Yogatama,
    Blunsom, Dyer, Grefenstette & Ling 2017, https://arxiv.org/abs/1611.09100.
    """

    def __init__(self, input_size: int, hidden_size: int, tracker_size: int | None = None) -> None:
        super().__init__()
        H, K = hidden_size, hidden_size if tracker_size is None else tracker_size
        for name, size in (("input_size", input_size), ("hidden_size", H), ("tracker_size", K)):
            check.whole(name, size, 1)
        self.input_size, self.hidden_size, self.tracker_size = input_size, H, K
        # to the two states h, c of a node
        self.leaf = nn.Linear(input_size, 2 * H)
        # to the gates o, i, f, g, from the next leaf, and from the tracker, the second and the top node
        self.look_ahead = nn.Linear(H, 4 * K)
        self.track = nn.Linear(K + 2 * H, 4 * K, bias=False)
        self.score = nn.Linear(K, 2)
        # to the gates o, i, f_l, f_r, g, from the second and the top node and the tracker
        self.compose = nn.Linear(2 * H + K, 5 * H)
        # A new network should not forget what stands deep in a tree.
        nn.init.ones_(self.compose.bias.data[2 * H : 4 * H])

    def forward(
        self,
        leaves: Tensor,
        lengths: Tensor | None = None,
        transitions: Tensor | None = None,
        choose: Chooser = greedy,
    ) -> Built:
        """Builds a tree over each instance, by given transitions or by its own choice.

        Args:
            leaves: (…, N, D), with any leading batch dimensions.
            lengths: the number of leaves of each instance, at most N; integers that broadcast to the batch. N by
                default.
            transitions: actions to follow, parts (…, 2N − 1, 2) of `ShiftReduce`; by default the module chooses.
            choose: how: a function of scores and of what is allowed, both (B, 2), to actions, such as
                `structmax.incremental.greedy`, `sample`, `straight_through`, `gumbel`. Its gradient reaches the scores
                alone, not parameters of its own.

        Returns:
            `Built(root, scores, actions)`: (…, H), (…, 2N − 1, 2) and (…, 2N − 1, 2).
        """
        counts = count_leaves("leaves", leaves, lengths, self.input_size)
        *batch, N, _ = leaves.shape
        if transitions is not None:
            _follow(transitions, counts, 2 * N - 1)
            transitions = transitions.reshape(-1, 2 * N - 1, 2)

        inside = check.prefix(counts, leaves[..., 0]).unsqueeze(-1)
        states = torch.where(inside, self.leaf(torch.where(inside, leaves, 0.0)), 0.0)
        # Row N is where a reader stands who has read everything.
        states = functional.pad(states, (0, 0, 0, 1)).reshape(-1, N + 1, 2 * self.hidden_size)
        seen = self.look_ahead(states[..., : self.hidden_size])
        weights = (self.track.weight, self.compose.weight, self.compose.bias, self.score.weight, self.score.bias)
        same = (tensor.to(states.dtype) for tensor in (seen, *weights))
        built = Machine.apply(counts.reshape(-1), choose, transitions, states, *same)
        return Built(*(t.reshape(*batch, *t.shape[1:]) for t in built))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, tracker_size={self.tracker_size}"


def _follow(transitions: Tensor, lengths: Tensor, steps: int) -> None:
    """Checks that transitions build a tree over the leaves of each instance."""
    check.floating("transitions", transitions)
    if transitions.shape != (*lengths.shape, steps, 2):
        raise ValueError(
            f"`transitions` should have shape (…, 2N − 1, 2) = {(*lengths.shape, steps, 2)}, but have "
            f"{tuple(transitions.shape)}. `ShiftReduce().encode` makes them from actions (…, 2N − 1)."
        )
    if check.readable(transitions):
        parts = transitions.detach()
        wrong = Policy(torch.zeros_like(parts), lengths).log_prob(parts).isneginf()
        if bool(wrong.any()):
            raise ValueError(
                "`transitions` should build one tree over the leaves of each instance, in 2n − 1 steps for n leaves, "
                f"but instance {tuple(wrong.nonzero()[0].tolist())} does not."
            )


# ---------------------------------------------------------------- cells with any number of children


class Cells:
    """LSTM cells of all steps over the cells of their children: one child for the tracker, two for a node.

    All views of single steps are taken here at once; inside a loop they would cost more than what is computed.

    Args:
        gates: (T, B, 3 S + S for each child): o, i, f of each child, g. They come as sums and become activations.
        h: (T, B, S), to be written.
        c: the same.
    """

    def __init__(self, gates: Tensor, h: Tensor, c: Tensor) -> None:
        S = c.shape[-1]
        self.sums, self.h, self.c = gates.unbind(), h.unbind(), c.unbind()
        self.bounded, self.g = gates[..., :-S].unbind(), gates[..., -S:].unbind()
        self.o, self.i, *self.f = (gate.unbind() for gate in gates[..., :-S].split(S, -1))

    def step(self, t: int, *children: Tensor) -> None:
        """Writes h and c of step t."""
        self.bounded[t].sigmoid_()
        self.g[t].tanh_()
        c = torch.mul(self.i[t], self.g[t], out=self.c[t])
        for f, child in zip(self.f, children, strict=True):
            c.addcmul_(f[t], child)
        torch.mul(self.o[t], c.tanh(), out=self.h[t])


class Pulled:
    """The cotangents of the gates' sums of all steps, (T, B, gates · S), and how to get them."""

    def __init__(self, gates: Tensor, c: Tensor, *children: Tensor) -> None:
        S, tanh = c.shape[-1], c.tanh()
        o, i, g = gates[..., :S], gates[..., S : 2 * S], gates[..., -S:]
        slopes = gates * (1 - gates)
        slopes[..., -S:] = 1 - g * g
        slopes *= torch.cat([tanh, g, *children, i], -1)
        # of h by the sum behind o, of c by all other sums, and of h by c
        self.o_slope = slopes[..., :S].unbind()
        self.slopes = slopes[..., S:].unflatten(-1, (-1, S)).unbind()
        self.through = (o * (1 - tanh * tanh)).unbind()
        self.d_gates = torch.empty_like(gates)
        self.d_sums, self.d_o = self.d_gates.unbind(), self.d_gates[..., :S].unbind()
        self.d_others = self.d_gates[..., S:].unflatten(-1, (-1, S)).unbind()

    def step(self, t: int, d_h: Tensor, d_c: Tensor) -> tuple[Tensor, Tensor]:
        """The cotangents of the sums (B, gates · S) and of c (B, S), all that reaches it, at step t."""
        d_c = torch.addcmul(d_c, d_h, self.through[t])
        torch.mul(self.o_slope[t], d_h, out=self.d_o[t])
        torch.mul(self.slopes[t], d_c.unsqueeze(1), out=self.d_others[t])
        return self.d_sums[t], d_c


# ---------------------------------------------------------------- all steps


class Trace(NamedTuple):
    """What the steps read and computed. Node t of instance b is row t · B + b; node 0 is the empty stack, all zeros."""

    # (B, N + 1, 2 H), (4 K, K + 2 H), (5 H, 2 H + K), (2, K): the leaves, and the weights
    states: Tensor
    track: Tensor
    compose: Tensor
    score: Tensor
    # (T + 1, B, 2 K + 2 H): the tracker before a step, the second and the top node, the tracker after it
    read: Tensor
    # (T + 1, B, 2 H), (T, B, 2 H): the nodes, and what each step composed, whether it reduces or not
    nodes: Tensor
    composed: Tensor
    # (T + 1, B, K), (T, B, 4 K), (T, B, 5 H): the tracker's cells, and the gates
    cells: Tensor
    tracker_gates: Tensor
    gates: Tensor
    # (T, B, 2) each
    actions: Tensor
    allowed: Tensor
    # (T + 1, B): the row of the node below each node; (T, B): the row of `states` where each step reads
    below: Tensor
    leaf: Tensor
    # (B,): the row of each root
    root: Tensor


class Machine(Function):
    """All steps of all instances, and their derivatives in reverse order.

    Sizes: B instances, T = 2N − 1 steps, H of a node, K of the tracker. Step t has the node t on top and makes the node
    t + 1. The loops hold only what depends on the step before; gradients of weights are single products over all steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        lengths: Tensor,
        choose: Chooser,
        given: Tensor | None,
        states: Tensor,
        seen: Tensor,
        track: Tensor,
        compose: Tensor,
        compose_bias: Tensor,
        score: Tensor,
        score_bias: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        B, rows = states.shape[:2]
        T, H, K = 2 * rows - 3, states.shape[2] // 2, score.shape[1]
        new = states.new_empty
        read, nodes, composed = new(T + 1, B, 2 * K + 2 * H), new(T + 1, B, 2 * H), new(T, B, 2 * H)
        cells, tracker_gates, gates = new(T + 1, B, K), new(T, B, 4 * K), new(T, B, 5 * H)
        scores, actions = new(T, B, 2), new(T, B, 2)
        nodes[0], cells[0], read[0, :, :K] = 0.0, 0.0, 0.0
        row = torch.arange((T + 1) * B, device=states.device).reshape(T + 1, B)
        # Below the empty stack it is empty.
        below = row.clone()
        leaf = torch.arange(B, device=states.device).mul(rows).repeat(T, 1)

        # views of each step, and of all steps as rows
        before, second, top, after = (part.unbind() for part in read.split([K, H, H, K], -1))
        for_tracker, for_node = read[..., : K + 2 * H].unbind(), read[..., K:].unbind()
        node, node_h, node_c = nodes.unbind(), nodes[..., :H].unbind(), nodes[..., H:].unbind()
        flat_states, flat_seen, flat_nodes = states.flatten(0, 1), seen.flatten(0, 1), nodes.flatten(0, 1)
        flat_below = below.flatten()
        tracker = Cells(tracker_gates, read[:T, :, K + 2 * H :], cells[1:])
        composer = Cells(gates, composed[..., :H], composed[..., H:])
        of_tracker, of_node, of_scores = track.T, compose.T, score.T
        at, allowed, pulls = Transitions(lengths), [], []

        steps = zip(leaf.unbind(), below.unbind(), cells.unbind(), scores.unbind(), actions.unbind(), strict=False)
        for t, (here, under, cell, theta, action) in enumerate(steps):
            here += at.read
            lower = flat_nodes.index_select(0, under)
            second[t].copy_(lower[:, :H])
            top[t].copy_(node_h[t])

            torch.addmm(flat_seen.index_select(0, here), for_tracker[t], of_tracker, out=tracker.sums[t])
            tracker.step(t, cell)
            before[t + 1].copy_(after[t])
            torch.addmm(score_bias, after[t], of_scores, out=theta)

            allowed.append(at.allowed())
            if given is None:
                with torch.enable_grad():
                    asked = theta.clone().requires_grad_()
                    chosen = choose(asked, allowed[t])
                pulls.append((asked, chosen))
                action.copy_(chosen.detach())
            else:
                # On a GPU their values have not been checked.
                torch.mul(given[:, t], allowed[t], out=action)
            at = at.step(action)

            torch.addmm(compose_bias, for_node[t], of_node, out=composer.sums[t])
            composer.step(t, lower[:, H:], node_c[t])
            shift, reduce = action.split(1, 1)
            torch.mul(reduce, composed[t], out=node[t + 1]).addcmul_(shift, flat_states.index_select(0, here))
            torch.where(shift.squeeze(1) > 0, row[t], flat_below.index_select(0, under), out=below[t + 1])

        may = torch.stack(allowed)
        root = row[(2 * lengths - 1).clamp_min(0), torch.arange(B, device=row.device)]
        weights = (track, compose, score)
        kept = (read, nodes, composed, cells, tracker_gates, gates, actions, may, below, leaf, root)
        ctx.save_for_backward(*Trace(states, *weights, *kept))
        ctx.pulls = pulls if any(chosen.requires_grad for _, chosen in pulls) else []
        made = actions.transpose(0, 1).clone()
        if not (ctx.pulls or ctx.needs_input_grad[2]):
            ctx.mark_non_differentiable(made)
        return flat_nodes[root, :H], (scores * may.any(-1, keepdim=True)).transpose(0, 1), made

    @staticmethod
    @first_order
    def backward(ctx: Any, d_root: Tensor, d_scores: Tensor, d_actions: Tensor) -> tuple[Tensor | None, ...]:
        kept = Trace(*ctx.saved_tensors)
        nodes, leaf = kept.nodes, kept.leaf
        T, B, K, H = *leaf.shape, kept.score.shape[1], nodes.shape[2] // 2
        second_c = nodes[..., H:].flatten(0, 1)[kept.below[:T]]
        composer = Pulled(kept.gates, kept.composed[..., H:], second_c, nodes[:T, :, H:])
        tracker = Pulled(kept.tracker_gates, kept.cells[1:], kept.cells[:T])

        d_nodes = torch.zeros_like(nodes)
        d_flat = d_nodes.flatten(0, 1)
        d_flat[kept.root, :H] = d_root
        d_scores = d_scores.transpose(0, 1) * kept.allowed.any(-1, keepdim=True)
        d_actions = d_actions.transpose(0, 1).clone()
        leaves = kept.states.flatten(0, 1)[leaf] if ctx.needs_input_grad[2] or ctx.pulls else None
        d_node, d_node_h, d_node_c = d_nodes.unbind(), d_nodes[..., :H].unbind(), d_nodes[..., H:].unbind()
        f_second, f_top = (f.unbind() for f in kept.gates[..., 2 * H : 4 * H].split(H, -1))
        f_tracker, reduces = kept.tracker_gates[..., 2 * K : 3 * K].unbind(), kept.actions[..., REDUCE:].unbind()
        below, d_theta = kept.below.unbind(), d_scores.unbind()
        d_h, d_cell = nodes.new_zeros(B, K), nodes.new_zeros(B, K)
        for t in reversed(range(T)):
            if leaves is not None:
                d_actions[t, :, SHIFT] += (d_node[t + 1] * leaves[t]).sum(1)
                d_actions[t, :, REDUCE] += (d_node[t + 1] * kept.composed[t]).sum(1) * kept.allowed[t, :, REDUCE]
            if ctx.pulls and ctx.pulls[t][1].requires_grad:
                asked, chosen = ctx.pulls[t]
                d_theta[t].add_(torch.autograd.grad(chosen, asked, d_actions[t], retain_graph=True)[0])

            d_composed_h, d_composed_c = (d_node[t + 1] * reduces[t]).split(H, 1)
            d_sums, d_c = composer.step(t, d_composed_h, d_composed_c)
            d_second, d_top, d_after = (d_sums @ kept.compose).split([H, H, K], 1)
            d_sums, d_cell = tracker.step(t, d_h + torch.addmm(d_after, d_theta[t], kept.score), d_cell)
            d_cell = d_cell * f_tracker[t]
            d_h, d_second_too, d_top_too = (d_sums @ kept.track).split([K, H, H], 1)
            d_node_h[t].add_(d_top).add_(d_top_too)
            d_node_c[t].addcmul_(d_c, f_top[t])
            d_flat.index_add_(0, below[t], torch.cat([d_second + d_second_too, d_c * f_second[t]], 1))

        def of_leaves(d_steps: Tensor) -> Tensor:
            d_rows = d_steps.new_zeros(*kept.states.shape[:2], d_steps.shape[-1])
            d_rows.flatten(0, 1).index_add_(0, leaf.flatten(), d_steps.flatten(0, 1))
            return d_rows

        def of_weights(d_steps: Tensor, inputs: Tensor) -> Tensor:
            return d_steps.flatten(0, 1).T @ inputs.flatten(0, 1)

        return (
            None,
            None,
            (d_actions * kept.allowed).transpose(0, 1) if ctx.needs_input_grad[2] else None,
            of_leaves(kept.actions[..., :REDUCE] * d_nodes[1:]),
            of_leaves(tracker.d_gates),
            of_weights(tracker.d_gates, kept.read[:T, :, : K + 2 * H]),
            of_weights(composer.d_gates, kept.read[:T, :, K:]),
            composer.d_gates.sum((0, 1)),
            of_weights(d_scores, kept.read[:T, :, K + 2 * H :]),
            d_scores.sum((0, 1)),
        )
